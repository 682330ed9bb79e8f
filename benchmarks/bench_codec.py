"""Cost of the batch codec and of normalisation, per value.

Method: batches of 40 numeric GPU metrics are made with a fixed seed. Values differ from their neighbours in every
digit, the worst case for compression. Each step runs in one thread for at least half a second of processor time, three
times, and the best is reported. Between machines only the ratios of the figures are comparable.
"""

import random
import time
from collections.abc import Callable

from benchmarks.table import Table
from gpufleet.codecs.batch import decode, encode_wire, to_rows, to_wire
from gpufleet.hub.flush.normalise import normalise
from gpufleet.model.catalogue import CATALOGUE, CATALOGUE_VERSION, Metric, Subject, ValueType
from gpufleet.model.machine import Machine
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import WIRE_VERSION, Cell, SampleBlock, WireBatch

METRICS = [
    metric
    for metric in CATALOGUE.values()
    if Subject.GPU in metric.subjects and not metric.dims and metric.type in (ValueType.INT, ValueType.FLOAT)
][:40]
GPUS_PER_NODE = 8
NOW = 1_790_000_000_000_000_000


def make_batch(gpus: int) -> WireBatch:
    chance = random.Random(1)
    views = [View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{chance.getrandbits(128):032x}") for _ in range(gpus)]
    return WireBatch(
        version=WIRE_VERSION,
        catalogue=CATALOGUE_VERSION,
        cluster="cluster",
        sender="sender",
        epoch="0" * 32,
        seq=1,
        sent_at=NOW,
        machines=[Machine(name=f"node-{number}") for number in range(-(-gpus // GPUS_PER_NODE))],
        views=views,
        samples=[
            SampleBlock(
                reader="nvml",
                lane="fast",
                provenance="host_local_probe",
                metrics=[metric.name for metric in METRICS],
                machine=[row // GPUS_PER_NODE for row in range(gpus)],
                view=list(range(gpus)),
                measured_at=[NOW - row for row in range(gpus)],
                driver_session=[1] * gpus,
                absence=[-1] * gpus,
                columns=[[value_of(metric, chance) for _ in range(gpus)] for metric in METRICS],
            )
        ],
    )


def value_of(metric: Metric, chance: random.Random) -> Cell:
    low = metric.low or 0
    high = min(1e13 if metric.high is None else metric.high, 1e13)
    return chance.randint(int(low), int(high)) if metric.type is ValueType.INT else chance.uniform(low, high)


def best_seconds(step: Callable[[], object]) -> float:
    """Return the processor time of a step, which does not depend on other work like wall time."""
    best = float("inf")
    for _ in range(3):
        runs, start = 0, time.thread_time()
        while time.thread_time() - start < 0.5:
            step()
            runs += 1
        best = min(best, (time.thread_time() - start) / runs)
    return best


def steps_of(batch: WireBatch) -> list[tuple[str, Callable[[], object], int | None]]:
    """Return name, function and, for encoders, body size of each step."""
    rows, plain, packed = to_rows(batch), encode_wire(batch, compress=False), encode_wire(batch)
    return [
        ("rows to columns", lambda: to_wire(rows), None),
        ("encode", lambda: encode_wire(batch, compress=False), len(plain)),
        ("encode, zstd", lambda: encode_wire(batch), len(packed)),
        ("decode", lambda: decode(plain), None),
        ("decode, zstd", lambda: decode(packed), None),
        ("decode, zstd, for a hub", lambda: decode(packed, as_matrix=True), None),
        ("normalise", lambda: normalise(batch, NOW), None),
    ]


def main() -> None:
    table = Table("Batch codec", "GPUs", "step", "us/batch", "M values/s", "bytes/value")
    for gpus in (8, 1_000, 10_000):
        values = gpus * len(METRICS)
        for name, step, size in steps_of(make_batch(gpus)):
            seconds = best_seconds(step)
            density = "" if size is None else f"{size / values:.2f}"
            table.row(str(gpus), name, f"{seconds * 1e6:.0f}", f"{values / seconds / 1e6:.1f}", density)
    table.print()


if __name__ == "__main__":
    main()
