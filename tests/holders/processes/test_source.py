"""Processes as a holder source: reports, hanging reads, and their cost."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufleet.holders.processes import ProcessHolders
from gpufleet.holders.processes.fetch import ListedProcesses, ProcessScanner
from gpufleet.holders.processes.records import Scan
from gpufleet.holders.processes.source import MAX_STUCK
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.holdings import HolderKind, Method
from tests.fakes.machine import JOB_CGROUP, POD, POD_CGROUP, FakeMachine

GPU0 = "gpu/GPU-0"


def source(machine: FakeMachine, listed: ListedProcesses) -> ProcessHolders:
    return ProcessHolders(lambda: listed, machine.root, make_scanner=lambda _, skipped: machine.scanner(skipped))


async def test_report_has_the_holders_of_processes(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.add(100, cgroup=POD_CGROUP)
    machine.add(101, cgroup=JOB_CGROUP, opens=["/dev/nvidia1"])
    machine.add(102)
    machine.add_v2(POD_CGROUP, JOB_CGROUP)
    report = await source(machine, {GPU0: [(100, 1000)], "gpu/GPU-2": [(102, 1020)]}).report()
    assert [(claim.holder.kind, claim.method) for claim in report.claims] == [
        (HolderKind.POD, Method.PROCESS),
        (HolderKind.JOB, Method.DEVICE_FILE),
    ]
    assert report.living == frozenset({(HolderKind.POD, POD), (HolderKind.JOB, "4")})
    assert (report.observes, report.complete, report.detail) == (True, True, "")
    assert report.unattributed == {"gpu/GPU-2"}


async def test_machine_without_proc_is_not_enabled(tmp_path: Path) -> None:
    with pytest.raises(HolderError) as caught:
        await ProcessHolders(dict, tmp_path).report()
    assert caught.value.absence is Reason.NOT_ENABLED


async def test_this_machine_gives_a_report() -> None:
    holders = ProcessHolders(dict)
    assert (await holders.report()).observes
    await holders.close()
    assert (await holders.report()).complete


class HangingScanner(ProcessScanner):
    """A scanner that hangs at the first process that it may read, until released."""

    release = threading.Event()

    def scan(self, listed: ListedProcesses) -> Scan:
        pids = sorted({100, 101, 102, 103, 104} - self.skipped)
        self._files.current = pids[0]
        assert self.release.wait(60)
        return Scan()


@pytest.fixture
def release() -> Iterator[Callable[[], None]]:
    HangingScanner.release.clear()
    yield HangingScanner.release.set
    HangingScanner.release.set()


async def test_read_that_hangs_costs_its_process(release: Callable[[], None]) -> None:
    skipped: list[frozenset[int]] = []

    def make(root: str, without: frozenset[int]) -> ProcessScanner:
        skipped.append(without)
        return HangingScanner(root, skipped=without)

    holders = ProcessHolders(dict, timeout_seconds=0.01, make_scanner=make)
    for _ in range(MAX_STUCK + 2):
        with pytest.raises(HolderError) as caught:
            await holders.report()
        assert caught.value.absence is Reason.TIMEOUT
    assert skipped == [frozenset(range(100, 100 + count)) for count in range(MAX_STUCK + 1)]
    release()
    for thread in holders._stuck:
        await asyncio.to_thread(thread.join, 10)
    assert (await ProcessHolders.report(holders)).complete
