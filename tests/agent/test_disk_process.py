"""Agent process on a full or read-only disk (a small tmpfs) that recovers."""

import asyncio
import errno
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufleet.hub.receive.sequences import Intervals
from tests.fakes.hub import FakeHub
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.processes import Gpufleet, free_port, get_text
from tests.support.waiting import wait_until, wait_until_async

FAST = {"GPUFLEET_AGENT_LANES__FAST": "1", "GPUFLEET_AGENT_LANES__SLOW": "2"}


class Disk:
    """Tmpfs of two megabytes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._ballast = folder / "ballast"
        self._mount("-t", "tmpfs", "-o", "size=2m", "tmpfs")

    def fill(self) -> None:
        """Fill the disk completely."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def free(self) -> None:
        self._ballast.unlink()

    def set_read_only(self, read_only: bool) -> None:
        self._mount("-o", f"remount,{'ro' if read_only else 'rw'}")

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def _mount(self, *options: str) -> None:
        subprocess.run(["mount", *options, str(self.folder)], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root; delivery/test_full_disk.py covers refused writes without root")
    try:
        disk = Disk(tmp_path / "disk")
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"cannot mount here: {error}")
    yield disk
    disk.close()


class RunningAgent:
    def __init__(self, tmp_path: Path, disk: Disk, hub: str) -> None:
        self.fake = FakeNvml(tmp_path, Scenario.healthy(2))
        self.url = f"http://127.0.0.1:{free_port()}"
        arguments = ["agent", "--listen", self.url.removeprefix("http://"), "--state", str(disk.folder), "--hub", hub]
        self.process = Gpufleet(arguments, tmp_path / "agent.log", {**self.fake.environment, **FAST})

    def gauge(self, name: str) -> float:
        found = re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", get_text(f"{self.url}/metrics"), re.MULTILINE)
        assert found, name
        return float(found[1])

    def shows_gpus(self) -> bool:
        return "gpufleet_gpu_power_watts{" in get_text(f"{self.url}/metrics")


def missing(hub: FakeHub) -> int:
    received: dict[str, Intervals] = {}
    for batch in hub.taken:
        received.setdefault(batch.epoch, Intervals()).add(batch.seq)
    return sum(one.missing for one in received.values())


def in_thread(condition: Callable[[], bool]) -> Callable[[], "asyncio.Future[bool]"]:
    """Evaluate a condition in a thread: the hub runs on this event loop."""
    return lambda: asyncio.ensure_future(asyncio.to_thread(condition))


async def test_disk_that_fails_and_recovers_loses_no_batch(tmp_path: Path, disk: Disk) -> None:
    """Read-only at the start, then writable, full, and free again."""
    disk.set_read_only(True)
    async with FakeHub.running() as hub:
        agent = RunningAgent(tmp_path, disk, hub.url)
        with agent.process as process:
            await asyncio.to_thread(process.wait_for, f"{agent.url}/readyz")
            await wait_until_async(in_thread(lambda: len(hub.taken) >= 3), what="batches from memory")
            memory_epoch = hub.taken[0].epoch
            assert agent.shows_gpus()
            assert os.strerror(errno.EROFS) in process.log.read_text()

            def from_disk(first: int = 0) -> int:
                return sum(batch.epoch != memory_epoch for batch in hub.taken[first:])

            disk.set_read_only(False)
            await wait_until_async(in_thread(lambda: from_disk() >= 2), seconds=60, what="batches from the disk")

            disk.fill()
            before = len(hub.taken)

            def from_memory() -> int:
                return sum(batch.epoch == memory_epoch for batch in hub.taken[before:])

            # The last page of the spool file may still have space for a batch or two.
            await wait_until_async(in_thread(lambda: from_memory() >= 3), seconds=60, what="batches from memory again")
            assert agent.shows_gpus()
            disk.free()
            freed = len(hub.taken)
            await wait_until_async(
                in_thread(lambda: from_disk(freed) >= 2), seconds=60, what="batches from the disk again"
            )
            assert await asyncio.to_thread(agent.gauge, "gpufleet_batches_lost_total") == 0
            assert missing(hub) == 0
            assert await asyncio.to_thread(process.stop) == 0  # the hub runs on this event loop


def test_batches_lost_with_the_memory_are_logged(tmp_path: Path, disk: Disk) -> None:
    def errors() -> list[str]:
        lines = [json.loads(line) for line in process.log.read_text().splitlines()]
        return [line["message"] for line in lines if line["level"] == "error"]

    agent = RunningAgent(tmp_path, disk, f"http://127.0.0.1:{free_port()}")
    with agent.process as process:
        process.wait_for(f"{agent.url}/readyz")
        disk.fill()
        wait_until(lambda: agent.gauge("gpufleet_spool_memory_records") >= 2, seconds=60, what="batches in memory")
        assert agent.gauge("gpufleet_batches_lost_total") == 0
        assert agent.shows_gpus()
        before = errors()
        assert process.stop() == 0
    (lost,) = errors()[len(before) :]
    assert int(lost.split()[0]) >= 2
