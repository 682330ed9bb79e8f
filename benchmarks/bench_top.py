"""Recordings, and the screen of `gpufleet top`.

Method: `gpufleet record` runs for 30 seconds at 1 s with the tests' driver of 8 GPUs, as a process of its own. Its
documents are then repeated to an hour of 3,600 frames in this process: writing, opening, search, decoding.
The screen shows 800 GPUs, each with a holder and a process, in textual's headless terminal of 160 by 50, for 20
seconds at one frame per second. Its figure contains the making of rows from a decoded snapshot, not the poll.
"""

import asyncio
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.table import Table
from gpufleet.recording.reader import RecordedFrame, RecordingReader
from gpufleet.recording.writer import RecordingWriter
from gpufleet.runtime import SystemClock
from gpufleet.top.app import TopApp
from gpufleet.top.observation import Observation, observe_snapshot
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.observed import ALICE, GIB, gpu, h200, held, node_snapshot, process

SECONDS = 30
FRAMES = 3600
AT, SECOND = 1_767_225_600_000_000_000, 1_000_000_000
GPUS = 800


def record(folder: Path, file: Path) -> float:
    """Record this host with 8 GPUs; return the share of a core that the process used."""
    environment = {**os.environ, **FakeNvml(folder, Scenario.healthy(8)).environment}
    command = [sys.executable, "-m", "gpufleet.cli.main", "record", str(file), "--duration", f"{SECONDS}s"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / SECONDS


def documents_of(file: Path) -> list[bytes]:
    with file.open("rb") as stream:
        reader = RecordingReader(stream)
        return [reader.document(frame) for frame in reader.frames() if isinstance(frame, RecordedFrame)]


def measure_recording(table: Table) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-top-") as name:
        folder = Path(name)
        table.row("record 8 GPUs at 1 s, share of a core with start", f"{record(folder, folder / 'live'):.3f}")
        documents = documents_of(folder / "live")
        table.row("document", f"{sum(map(len, documents)) / len(documents) / 1000:.0f} kB")
        hour = folder / "hour"
        writer = RecordingWriter(hour, SystemClock())
        start = time.process_time()
        for number in range(FRAMES):
            writer.append(documents[number % len(documents)], AT + number * SECOND)
        table.row("write a frame, processor time", f"{(time.process_time() - start) / FRAMES * 1000:.2f} ms")
        table.row("size of a frame", f"{hour.stat().st_size / FRAMES / 1000:.1f} kB")
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
    measure_recording(table)
    table.row(f"screen of {GPUS} GPUs at 1 frame/s, share of a core", f"{asyncio.run(screen_share()):.3f}")
    table.print()


if __name__ == "__main__":
    main()
