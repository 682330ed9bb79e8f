"""Allocations of one machine, and their answers."""

import datetime as dt
from collections.abc import Mapping

from gpufleet.fleet.attribution.contract import answer
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.answer import AllocationAnswer, MachineRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimReading, Reading, Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS, to_datetime
from tests.fakes.batches import gpu_sample, gpu_view, host_sample

NOW = 1_800_000_000 * NANOS
STALE_AFTER = 120.0


def at(seconds: float) -> dt.datetime:
    return to_datetime(NOW) + dt.timedelta(seconds=seconds)


def record(id_: str = "m-a", name: str = "node-a", **more: object) -> MachineRecord:
    machine = Machine(name=name, system_uuid="11111111-2222-3333-4444-555555555555", machine_id="a" * 32)
    fields = {"id": id_, "cluster": "local", "machine": machine, "sender": "s", **more}
    return MachineRecord(first_seen=at(-100), last_seen=at(0), **fields)  # type: ignore[arg-type]


def bare_metal(machine: str = "node-a", **more: object) -> Allocation:
    fields = {"valid_from": at(-3600), **more}
    spec = AllocationSpec(
        kind=AllocationKind.BARE_METAL,
        target=Target(cluster="local", machine=machine),
        **fields,  # type: ignore[arg-type]
    )
    return Allocation(id="a", generation=1, spec=spec, created_at=at(-3600))


def stored(sample: Sample, age: float = 1.0) -> StoredSample:
    return StoredSample(sample=sample, received_at=NOW - int(age * NANOS))


def status(reader: str = "nvml", lane: Lane = Lane.FAST, interval: float = 10, **more: object) -> ReaderStatus:
    fields = {"state": ReaderState.OK, **more}
    return ReaderStatus(reader=reader, lane=lane, interval_seconds=interval, **fields)  # type: ignore[arg-type]


FAILING = status(last_error="driver text", state=ReaderState.PARTIAL, last_attempt=NOW)


def answer_for(
    allocation: Allocation,
    samples: list[StoredSample],
    *,
    machines: list[MachineRecord] | None = None,
    readers: tuple[ReaderStatus, ...] = (),
    own_xids: Mapping[str, int] = {},
) -> AllocationAnswer:
    return answer(
        allocation,
        [record()] if machines is None else machines,
        samples,
        readers,
        NOW,
        stale_after_seconds=STALE_AFTER,
        own_xids=own_xids,
    )


FRESH = [stored(host_sample(NOW - 2 * NANOS)), stored(gpu_sample(gpu_view(1), NOW - 2 * NANOS))]


def shown_readings(found: AllocationAnswer) -> list[Reading | DimReading]:
    """Return every reading in an answer."""
    every: list[Reading | DimReading] = [*found.host.values(), *found.host_dimensions]
    for device in found.devices:
        every += [*device.readings.values(), *device.dimensions]
    return every


def shown_values(found: AllocationAnswer) -> list[object]:
    """Return every value in an answer."""
    totals = [one.value for one in found.aggregate.metrics.values()]
    return [one for one in (*(one.value for one in shown_readings(found)), *totals) if one is not None]
