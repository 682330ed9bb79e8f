"""Processes as a holder source."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from gpufleet.holders.processes.fetch import ListedProcesses, ProcessScanner
from gpufleet.holders.processes.mapping import claims_of
from gpufleet.holders.processes.records import Scan
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.text import bounded
from gpufleet.ports.holder import HolderReport

TIMEOUT_SECONDS = 5.0
MAX_STUCK = 4
"""Maximum number of threads whose read of a process does not return."""

MAX_DETAIL = 1_000


class ProcessHolders:
    """Pods, jobs, virtual machines and containers whose processes have devices open.

    Args:
        listed: returns the processes that the driver lists, as of now. A GPU that is split into MIG devices is left
            out: its processes are those of its MIG devices.
        root: folder that stands for `/`.
        timeout_seconds: time limit of a report.
        make_scanner: makes a scanner that leaves out some process ids.
    """

    def __init__(
        self,
        listed: Callable[[], ListedProcesses],
        root: Path = Path("/"),
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        make_scanner: Callable[[str, frozenset[int]], ProcessScanner] = lambda root, skipped: ProcessScanner(
            root, skipped=skipped
        ),
    ) -> None:
        self._listed, self._timeout, self._make_scanner = listed, timeout_seconds, make_scanner
        self._root = str(root).rstrip("/")
        self._scanner = make_scanner(self._root, frozenset())
        self._stuck: list[threading.Thread] = []

    @property
    def name(self) -> str:
        """Return `processes`."""
        return "processes"

    async def report(self) -> HolderReport:
        """Return the holders of the processes with devices; see `HolderSource.report`."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MAX_STUCK:
            raise HolderError(Reason.TIMEOUT, f"reads of {MAX_STUCK} processes in /proc do not return")
        scan = await self._scan()
        return HolderReport(
            claims=claims_of(scan.processes),
            observes=True,
            complete=scan.complete,
            living=scan.living,
            unattributed=frozenset(scan.unattributed),
            unattributed_devices=frozenset(scan.unattributed_devices),
            detail=bounded("; ".join(scan.problems), MAX_DETAIL),
        )

    async def close(self) -> None:
        """Drop what was seen in earlier scans."""
        self._scanner = self._make_scanner(self._root, self._scanner.skipped)

    async def _scan(self) -> Scan:
        """Scan in a thread. A read that does not return costs the thread and the process that it read."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Scan] = loop.create_future()
        scanner, listed = self._scanner, self._listed()

        def run() -> None:
            error: BaseException | None = None
            result = Scan()
            try:
                result = scanner.scan(listed)
            except BaseException as raised:  # noqa: BLE001 - passed to the waiting task
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, future, result, error)

        # A daemon thread: a read that hangs must not keep the agent from ending.
        thread = threading.Thread(target=run, name="holder-processes", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self._timeout):
                return await future
        except TimeoutError:
            self._stuck.append(thread)
            self._scanner = self._make_scanner(self._root, scanner.skipped | {scanner.current})
            raise HolderError(Reason.TIMEOUT, f"/proc was not read within {self._timeout:g} s") from None


def _resolve(future: asyncio.Future[Scan], result: Scan, error: BaseException | None) -> None:
    if future.done():
        return  # abandoned
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
