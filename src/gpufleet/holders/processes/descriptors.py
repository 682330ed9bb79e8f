"""Open device files of processes. Blocks.

There can be many thousand processes with many descriptors each. A scan inspects the processes that had a device file
open in the previous scan, then new processes, and then as many others as a time budget allows, each in its turn.
"""

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self

from gpufleet.codecs import mig_minors
from gpufleet.codecs.mig_minors import MigCapability
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

MAX_TABLE_BYTES = 8 << 20
"""Maximum size of the driver's table of capabilities; 32 GPUs have 100 kB."""

_NVIDIA_MAJOR, _LAST_GPU = 195, 247
"""Major number of NVIDIA's device nodes, and the last minor number of a GPU (nv.h in NVIDIA's open kernel modules)."""


class OpenDevices(NamedTuple):
    """Devices that a process has open.

    Attributes:
        minors: N of each /dev/nvidiaN.
        instances: `N/gi/ci` of each compute instance whose capability file is open, with N of its GPU.
        used: GPUs that are open through VFIO.
        grouped: GPUs of open IOMMU groups with several GPUs: the process uses at least one of each group.
    """

    minors: tuple[int, ...] = ()
    instances: tuple[str, ...] = ()
    used: tuple[DeviceName, ...] = ()
    grouped: tuple[DeviceName, ...] = ()


class MigCapabilities:
    """Capability files of MIG devices, by device number."""

    def __init__(self, major: int | None, minors: dict[int, MigCapability]) -> None:
        self._major, self._minors = major, minors

    @classmethod
    def read(cls, proc: str) -> Self:
        """Read the driver's tables below the folder /proc; none without a driver."""
        devices, table = _read(f"{proc}/devices"), _read(proc + mig_minors.PATH.removeprefix("/proc"))
        return cls(mig_minors.parse_major(devices), _parsed(table))

    def get(self, number: tuple[int, int]) -> MigCapability | None:
        """Return the instance that a device file opens, or None if it is no file of an instance."""
        return self._minors.get(number[1]) if number[0] == self._major else None


@lru_cache(maxsize=1)
def _parsed(table: bytes) -> dict[int, MigCapability]:
    return mig_minors.parse_mig_minors(table)


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_TABLE_BYTES)
    except OSError:
        return b""


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
        self._capabilities: MigCapabilities | None = None

    @property
    def is_denied(self) -> bool:
        """Return whether descriptors of a present process cannot be read without more rights."""
        return bool(self._denied)

    def find(self, candidates: set[int], pids: set[int]) -> dict[int, OpenDevices]:
        """Return the device files of processes, as far as the time allows."""
        self._update_known(pids)
        self._capabilities = None
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
        opened: set[tuple[int, int]] = set()
        used: dict[DeviceName, None] = {}
        grouped: dict[DeviceName, None] = {}
        for name in names[:MAX_DESCRIPTORS]:
            try:
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - many thousand calls
            except OSError:
                continue
            if "/nvidia" in target:
                number = self._device_number(pid, name)  # the path can be anything
                opened.update(() if number is None else (number,))
            elif "/vfio/" in target:
                devices = passed_through_devices(self._root, target, self._device_number(pid, name))
                (used if len(devices) == 1 else grouped).update(dict.fromkeys(devices))
        minors = tuple(sorted(minor for major, minor in opened if major == _NVIDIA_MAJOR and minor <= _LAST_GPU))
        instances = self._instances({number for number in opened if number[0] != _NVIDIA_MAJOR})
        if minors or instances or used or grouped:
            others = tuple(name for name in grouped if name not in used)
            found[pid] = OpenDevices(minors, instances, tuple(used), others)

    def _instances(self, numbers: set[tuple[int, int]]) -> tuple[str, ...]:
        """Return the compute instances of open capability files. The file of a GPU instance alone gives no access."""
        if not numbers:
            return ()
        if self._capabilities is None:
            self._capabilities = MigCapabilities.read(self._files.proc)
        known = [self._capabilities.get(number) for number in numbers]
        return tuple(sorted(one.name for one in known if one is not None and one.compute is not None))

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
