"""Open device files of processes. Blocks.

There can be many thousand processes with many descriptors each. A scan inspects the processes that had a device file
open in the previous scan, then new processes, and then as many others as a time budget allows, each in its turn.
"""

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from gpufleet.holders.processes.files import ProcessFiles
from gpufleet.holders.processes.parse.process import is_path_only
from gpufleet.holders.processes.vfio import passed_through_devices
from gpufleet.ports.holder import DeviceName

MAX_HOLDERS = 1_024
"""Maximum number of processes with open device files that are inspected again in each scan."""

MAX_DESCRIPTORS = 4_096
"""Maximum number of descriptors of a process that are inspected."""

BUDGET_SECONDS = 0.015
"""Processor time a scan spends on processes that had no device file open."""

YOUNG_SCANS = 3
"""Scans in which a new process is inspected before it takes its turn with the others."""

_NVIDIA_MAJOR, _LAST_GPU = 195, 247
"""Major number of NVIDIA's device nodes, and the last minor number of a GPU (nv.h in NVIDIA's open kernel modules)."""


class OpenDevices(NamedTuple):
    """Devices that a process has open.

    Attributes:
        minors: N of each /dev/nvidiaN.
        used: GPUs that are open through VFIO.
        grouped: GPUs of open IOMMU groups with several GPUs: the process uses at least one of each group.
    """

    minors: tuple[int, ...] = ()
    used: tuple[DeviceName, ...] = ()
    grouped: tuple[DeviceName, ...] = ()


class DescriptorScanner:
    """Finds processes with open device files.

    Args:
        root: folder that stands for `/`.
        files: files of processes below it.
        status: stat(2) of a path, for device numbers.
    """

    def __init__(self, root: str, files: ProcessFiles, status: Callable[[str], os.stat_result]) -> None:
        self._root, self._files, self._status = root, files, status
        self._scans: dict[int, int] = {}  # process id to the number of its scans
        self._young: OrderedDict[int, None] = OrderedDict()
        self._old: OrderedDict[int, None] = OrderedDict()
        self._holders: set[int] = set()  # processes with open device files
        self._denied: set[int] = set()

    @property
    def is_denied(self) -> bool:
        """Return whether descriptors of a present process cannot be read without more rights."""
        return bool(self._denied)

    def find(self, candidates: set[int], pids: set[int]) -> dict[int, OpenDevices]:
        """Return the device files of processes, as far as the time allows."""
        self._update_known(pids)
        found: dict[int, OpenDevices] = {}
        for pid in sorted(self._holders & candidates)[:MAX_HOLDERS]:
            self._take(pid, found)
        began = time.thread_time()
        end = began + BUDGET_SECONDS
        for queue, limit in ((self._young, began + BUDGET_SECONDS / 2 if self._old else end), (self._old, end)):
            for pid in list(queue):
                if time.thread_time() > limit:
                    break
                if pid in candidates and pid not in self._holders:
                    self._take(pid, found)
                self._scans[pid] += 1
                del queue[pid]
                (self._young if self._scans[pid] < YOUNG_SCANS else self._old)[pid] = None
        self._holders = set(found)
        return found

    def _update_known(self, pids: set[int]) -> None:
        """Drop processes that ended; add new ones."""
        self._denied &= pids
        for pid in self._scans.keys() - pids:
            del self._scans[pid]
            self._young.pop(pid, None)
            self._old.pop(pid, None)
        is_first = not self._scans  # processes that are there already are not new
        new = sorted(pids - self._scans.keys())
        self._scans.update(dict.fromkeys(new, YOUNG_SCANS if is_first else 0))
        (self._old if is_first else self._young).update(dict.fromkeys(new))

    def _take(self, pid: int, found: dict[int, OpenDevices]) -> None:
        self._files.current = pid
        folder = f"{self._files.proc}/{pid}/fd"
        try:
            names = os.listdir(folder)  # noqa: PTH208 - names, not paths
        except PermissionError:
            self._denied.add(pid)
            return
        except OSError:
            return
        self._denied.discard(pid)
        minors: set[int | None] = set()
        used: dict[DeviceName, None] = {}
        grouped: dict[DeviceName, None] = {}
        for name in names[:MAX_DESCRIPTORS]:
            try:
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - many thousand calls
            except OSError:
                continue
            if "/nvidia" in target:
                minors.add(self._minor(pid, name))
            elif "/vfio/" in target:
                devices = passed_through_devices(self._root, target, self._device_number(pid, name))
                (used if len(devices) == 1 else grouped).update(dict.fromkeys(devices))
        opened = tuple(sorted(minor for minor in minors if minor is not None))
        if opened or used or grouped:
            found[pid] = OpenDevices(opened, tuple(used), tuple(name for name in grouped if name not in used))

    def _minor(self, pid: int, descriptor: str) -> int | None:
        """Return N of /dev/nvidiaN by the device number of an open file; its path can be anything."""
        number = self._device_number(pid, descriptor)
        if number is None or number[0] != _NVIDIA_MAJOR or number[1] > _LAST_GPU:
            return None
        return number[1]

    def _device_number(self, pid: int, descriptor: str) -> tuple[int, int] | None:
        """Return the device number of a file that was really opened, or None."""
        if is_path_only(self._files.read(pid, f"fdinfo/{descriptor}", 1_024)):
            return None
        try:
            status = self._status(f"{self._files.proc}/{pid}/fd/{descriptor}")
        except OSError:
            return None
        if not stat.S_ISCHR(status.st_mode):
            return None
        return os.major(status.st_rdev), os.minor(status.st_rdev)
