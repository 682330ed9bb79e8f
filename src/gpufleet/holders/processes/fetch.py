"""Scans of /proc for processes with devices. Blocks; a scan runs in a thread of its own."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpufleet.holders.processes.cgroup_tree import find_living
from gpufleet.holders.processes.descriptors import DescriptorScanner, OpenDevices
from gpufleet.holders.processes.files import STAT_BYTES, STATUS_BYTES, ProcessFiles
from gpufleet.holders.processes.parse.cgroup import AmbiguousCgroupError
from gpufleet.holders.processes.parse.process import ProcessStat, namespaces_of
from gpufleet.holders.processes.placement import PlacementFinder
from gpufleet.holders.processes.records import ProcessEvidence, Scan
from gpufleet.model.absence import Reason
from gpufleet.model.errors import HolderError
from gpufleet.model.text import bounded

ListedProcesses = Mapping[str, Sequence[tuple[int, int | None]]]
"""Key of a view to the processes that the driver lists on it: process id, and start time in clock ticks since boot."""

MAX_LISTED = 2_048
"""Maximum number of processes of the driver's lists that are inspected in a scan."""

MAX_PROCESSES = 65_536
MAX_PROBLEM = 300

OUTSIDE_NAMESPACE = (
    "the driver's process ids cannot be mapped: this agent does not see the machine's processes; "
    "run it in the host's PID namespace (hostPID: true)"
)
DESCRIPTORS_DENIED = (
    "open device files of other users' processes cannot be read: run the agent as root, "
    "or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
)
NO_CGROUP = "the cgroup of a process on a device cannot be read"
UNVERIFIED = "a process on a device is not the one that the driver listed, or there are too many"

_MPS_SERVER = b"nvidia-cuda-mps"
_KTHREADD = 2


class ProcessScanner:
    """Finds the processes that have devices. An instance is used by one thread at a time.

    Args:
        root: folder that stands for `/`, without a slash at its end.
        status: stat(2) of a path, for device numbers.
        skipped: process ids that are not read while they exist, because a read of them did not return.
    """

    def __init__(
        self,
        root: str = "",
        *,
        status: Callable[[str], os.stat_result] = os.stat,
        skipped: frozenset[int] = frozenset(),
    ) -> None:
        self._root = root
        self._files = ProcessFiles(root)
        self._descriptors = DescriptorScanner(root, self._files, status)
        self._placements = PlacementFinder(self._files)
        self.skipped = skipped

    @property
    def current(self) -> int:
        """Return the process that is being read, or 0."""
        return self._files.current

    def scan(self, listed: ListedProcesses) -> Scan:
        """Scan /proc once.

        Raises:
            HolderError: if there is no /proc.
        """
        pids = self._process_ids()
        own = self._own_id()
        result = Scan(processes=[], unattributed=set(), unattributed_devices=set(), problems={})
        driver = self._verify(listed, pids, result)
        for pid, (identity, views) in driver.items():
            if own in (pid, identity.parent):
                continue
            if identity.name == _MPS_SERVER:  # it works for its clients, which the driver lists too
                result.unattributed.update(views)
            else:
                self._add(pid, identity, result, views=tuple(views))
        # CUDA opens every device that it may use. Of a process that the driver lists, only the driver's list counts.
        for pid, opened in self._descriptors.find(pids - driver.keys() - {own}, pids).items():
            found = self._files.stat(pid)
            if found is not None and found.parent != own:
                self._add(pid, found, result, opened=opened)
        self._placements.drop_unused()
        if self._descriptors.is_denied:
            result.note(DESCRIPTORS_DENIED)
        self._files.current = 0
        result.living = find_living(self._root)
        return result

    def _process_ids(self) -> set[int]:
        proc = self._files.proc
        try:
            names = os.listdir(proc)  # noqa: PTH208 - names, not paths
        except OSError as error:
            raise HolderError(Reason.NOT_ENABLED, f"{proc}: {error.strerror}") from None
        pids = {int(name) for name in names if name.isdecimal()}
        if not pids:
            raise HolderError(Reason.NOT_ENABLED, f"{proc} lists no processes: mount a proc file system there")
        if len(pids) > MAX_PROCESSES:
            raise HolderError(Reason.READER_FAILED, f"{proc}: more than {MAX_PROCESSES} processes")
        self.skipped &= pids
        return pids - self.skipped

    def _own_id(self) -> int:
        """Return the id of this process in that /proc."""
        try:
            return int(Path(self._files.proc, "self").readlink().name)
        except (OSError, ValueError):
            return os.getpid()

    def _shares_host_ids(self) -> bool:
        """Return whether this process and that /proc have the process ids of the machine, as the driver has."""
        shows_host = b"(kthreadd)" in self._files.read(_KTHREADD, "stat", STAT_BYTES)
        return shows_host and namespaces_of(self._files.read("self", "status", STATUS_BYTES)) <= 1

    def _verify(
        self, listed: ListedProcesses, pids: set[int], result: Scan
    ) -> dict[int, tuple[ProcessStat, list[str]]]:
        """Return the listed processes that are the same process in /proc, with their views."""
        if any(listed.values()) and not self._shares_host_ids():
            # In another PID namespace the same number is another process.
            result.unattributed |= {view for view, processes in listed.items() if processes}
            result.note(OUTSIDE_NAMESPACE)
            result.complete = False
            return {}
        verified: dict[int, tuple[ProcessStat, list[str]]] = {}
        identities: dict[int, ProcessStat | None] = {}
        for view, processes in listed.items():
            for pid, start_time in processes:
                if pid not in identities and pid in pids and len(identities) < MAX_LISTED:
                    identities[pid] = self._files.stat(pid)
                identity = identities.get(pid)
                if identity is not None and identity.start_time == start_time:
                    verified.setdefault(pid, (identity, []))[1].append(view)
                elif identity is not None or pid in self.skipped or (pid in pids and pid not in identities):
                    result.unattributed.add(view)
                    result.note(UNVERIFIED)
                    result.complete = False
        return verified

    def _add(
        self,
        pid: int,
        identity: ProcessStat,
        result: Scan,
        *,
        views: tuple[str, ...] = (),
        opened: OpenDevices = OpenDevices(),  # noqa: B008 - immutable
    ) -> None:
        """Add the evidence of a process. Without a holder, its views and passed-through devices are not attributed."""
        result.unattributed_devices.update(opened.grouped)
        try:
            located = self._placements.locate(pid, identity, runs_vm=bool(opened.used or opened.grouped))
        except AmbiguousCgroupError as error:
            names = bounded(", ".join(map(str, error.args)), MAX_PROBLEM)
            result.note(f"the cgroups of a process on a device name several holders: {names}")
            self._leave_unattributed(result, views, opened)
            return
        if located is None:
            if self._files.stat(pid) == identity:  # it has not ended
                result.note(NO_CGROUP)
                self._leave_unattributed(result, views, opened)
            return
        if not located.has_holder:
            self._leave_unattributed(result, views, opened)
        if located.placement.machine and located.vm is None:
            machine = located.placement.machine
            result.note(f"QEMU's command line shows no UUID of the virtual machine {machine}")
        result.processes.append(
            ProcessEvidence(
                placement=located.placement,
                vm=located.vm,
                is_weak=located.is_weak,
                views=views,
                minors=opened.minors,
                instances=opened.instances,
                passed_through=opened.used,
                grouped=opened.grouped,
            )
        )

    @staticmethod
    def _leave_unattributed(result: Scan, views: tuple[str, ...], opened: OpenDevices) -> None:
        result.unattributed.update(views)
        result.unattributed_devices.update(opened.used)
