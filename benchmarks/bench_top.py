"""Recordings, and the screen of `gpufleet top`.

Method: `gpufleet record` runs for 60 seconds at 1 s with the tests' driver of 8 GPUs, as a process of its own with the
child that calls the driver; its start is not counted. Few values of this driver change. An hour of 3,600 frames is then
written in this process from its last document, with all numbers and times of measurement changed in each frame: an
upper limit of size and work. A fleet is 100 simulated nodes of 8 GPUs, polled 30 times, with documents of 81 kB.
The screen shows 800 GPUs, each with a holder and a process, in textual's headless terminal of 160 by 50, for 20
seconds at one frame per second. Its figure contains the making of rows from a decoded snapshot, not the poll.
"""

import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import children, cpu_seconds
from benchmarks.table import Table
from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import LATEST, to_datetime
from gpufleet.recording.reader import RecordedFrame, RecordingReader
from gpufleet.recording.writer import RecordingWriter
from gpufleet.runtime import SystemClock
from gpufleet.simulate.fleet.single_node import single_node
from gpufleet.top.app import TopApp
from gpufleet.top.observation import Observation, observe_snapshot
from gpufleet.top.rows import list_rows
from gpufleet.top.source import Playback
from gpufleet.wiring.simulated_exporter import SimulatedExporter
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.observed import ALICE, GIB, gpu, h200, held, node_snapshot, process

SECONDS = 60
START_SECONDS = 10
FRAMES = 3600
MACHINES = 100
POLLS = 30
AT, SECOND = 1_767_225_600_000_000_000, 1_000_000_000
GPUS = 800


def record(folder: Path, file: Path) -> tuple[float, float]:
    """Record this host with 8 GPUs; return processor seconds and bytes per frame."""
    environment = {**os.environ, **FakeNvml(folder, Scenario.healthy(8)).environment}
    command = [sys.executable, "-m", "gpufleet.cli.main", "record", str(file)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as recorder:
        time.sleep(START_SECONDS)
        pids = [recorder.pid, *children(recorder.pid)]
        used, size, frames = sum(map(cpu_seconds, pids)), file.stat().st_size, count_frames(file)
        time.sleep(SECONDS)
        used, size = sum(map(cpu_seconds, pids)) - used, file.stat().st_size - size
        frames = count_frames(file) - frames
        recorder.terminate()
    return used / frames, size / frames


def count_frames(file: Path) -> int:
    with file.open("rb") as stream:
        return RecordingReader(stream).index.frames


def snapshots(seed: int, count: int) -> Iterator[Snapshot]:
    """Yield the snapshots of a simulated node, a second apart."""
    exporter = SimulatedExporter(single_node(seed=seed), "native", AT, 1.0)
    with asyncio.Runner() as runner:
        for number in range(count):
            runner.run(exporter.collect(number))
            yield runner.run(exporter.snapshot())


def measure_live(table: Table, folder: Path) -> None:
    used, size = record(folder, folder / "live")
    table.row("record 8 GPUs at 1 s: processor time a frame, with the readers", f"{used * 1000:.0f} ms")
    table.row("size of a frame of it", f"{size / 1000:.1f} kB")


def changed_documents(document: bytes, count: int) -> Iterator[bytes]:
    """Yield a document with other numbers and times of measurement, a second apart."""
    draw = random.Random(1)

    def other(value: re.Match[bytes]) -> bytes:
        number = float(value[1]) * draw.uniform(0.9, 1.1)
        return b'"value":%d' % round(number) if value[2] is None else b'"value":%.6f' % number

    for number in range(count):
        at = to_datetime(AT + number * SECOND).isoformat().encode()
        timed = re.sub(rb'"measured_at":"[^"]+"', b'"measured_at":"%b"' % at, document)
        yield re.sub(rb'"value":(-?\d+(\.\d+)?)', other, timed)


def measure_hour(table: Table, folder: Path) -> None:
    hour = folder / "hour"
    with (folder / "live").open("rb") as stream:
        live = RecordingReader(stream)
        document = encode_snapshot(live.poll(live.seek(LATEST)).snapshots[0])
    table.row("document of 8 GPUs", f"{len(document) / 1000:.0f} kB")
    writer = RecordingWriter(hour, SystemClock())
    writing = 0.0
    for number, changed in enumerate(changed_documents(document, FRAMES)):
        start = time.process_time()
        writer.append(changed, AT + number * SECOND)
        writing += time.process_time() - start
    table.row("write a frame, processor time", f"{writing / FRAMES * 1000:.2f} ms")
    table.row("size of a frame, all numbers changed", f"{hour.stat().st_size / FRAMES / 1000:.1f} kB")
    table.row("size of an hour, all numbers changed", f"{hour.stat().st_size / 1e6:.0f} MB")
    with hour.open("rb") as stream:
        start = time.perf_counter()
        RecordingReader(stream)
        table.row("open an hour without index", f"{(time.perf_counter() - start) * 1000:.0f} ms")
    writer.close()
    with hour.open("rb") as stream:
        start = time.perf_counter()
        reader = RecordingReader(stream)
        table.row("open an hour with index", f"{(time.perf_counter() - start) * 1000:.0f} ms")
        start = time.perf_counter()
        frame = next(reader.frames(reader.seek(AT + FRAMES // 2 * SECOND)))
        assert isinstance(frame, RecordedFrame)
        table.row("search a time in it", f"{(time.perf_counter() - start) * 1000:.1f} ms")
        start = time.perf_counter()
        count = sum(bool(reader.snapshot(one)) for one in reader.frames() if isinstance(one, RecordedFrame))
        table.row("decode all frames", f"{count / (time.perf_counter() - start):.0f} /s")
    start = time.perf_counter()
    command = [sys.executable, "-m", "gpufleet.cli.main", "replay", str(hour), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    table.row("`replay --json`, recorded seconds per second", f"{FRAMES / (time.perf_counter() - start):.0f}")


def measure_fleet(table: Table, folder: Path) -> None:
    fleet = folder / "fleet"
    nodes = [snapshots(seed, POLLS) for seed in range(MACHINES)]
    writer = RecordingWriter(fleet, SystemClock())
    writing = 0.0
    for number in range(POLLS):
        documents = [(str(place), encode_snapshot(next(node))) for place, node in enumerate(nodes)]
        start = time.process_time()
        writer.append_group(documents, AT + number * SECOND)
        writing += time.process_time() - start
    writer.close()
    table.row(f"poll of {MACHINES} nodes: write, processor time", f"{writing / POLLS * 1000:.0f} ms")
    table.row(f"poll of {MACHINES} nodes: size", f"{fleet.stat().st_size / POLLS / 1000:.0f} kB")
    with fleet.open("rb") as stream:
        playback = Playback(RecordingReader(stream), AT, lambda: 0.0, lambda snapshot: snapshot)
        start = time.perf_counter()
        for _ in range(POLLS):
            list_rows(asyncio.run(playback.poll()))
            playback.skip(1)
        table.row(f"poll of {MACHINES} nodes: show in top", f"{(time.perf_counter() - start) / POLLS * 1000:.0f} ms")


class ManyGpus:
    """Source of changing observations of many GPUs."""

    def __init__(self) -> None:
        draw = random.Random(1)
        self._snapshots = [
            node_snapshot(
                found=tuple(
                    gpu(
                        number,
                        h200(draw.randrange(140), draw.random(), 700 * draw.random()),
                        held(ALICE),
                        (process(4000 + number, GIB * draw.randrange(100)),),
                    )
                    for number in range(GPUS)
                )
            )
            for _ in range(5)
        ]
        self._polls = 0

    async def poll(self) -> Observation:
        self._polls += 1
        return observe_snapshot(self._snapshots[self._polls % len(self._snapshots)])


async def screen_share() -> float:
    """Return the share of a core that the screen takes."""
    app = TopApp(ManyGpus(), 1.0)
    async with app.run_test(size=(160, 50)) as pilot:
        await pilot.pause(2)
        start, used = time.perf_counter(), time.process_time()
        await pilot.pause(20)
        return (time.process_time() - used) / (time.perf_counter() - start)


def main() -> None:
    table = Table("Recordings and top", "what", "figure")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-top-") as name:
        measure_live(table, Path(name))
        measure_hour(table, Path(name))
        measure_fleet(table, Path(name))
    table.row(f"screen of {GPUS} GPUs at 1 frame/s, share of a core", f"{asyncio.run(screen_share()):.3f}")
    table.print()


if __name__ == "__main__":
    main()
