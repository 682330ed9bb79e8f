"""Processes of a device with their memory and utilisation, and a cache of their start times."""

import os
import select
from pathlib import Path
from typing import Any, NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.process import Process
from gpufleet.model.products import ENCODER, lacking_parts
from gpufleet.readers.nvml.calls import CALLS, INSTANCE_CALLS, Call
from gpufleet.readers.nvml.calls.activity import (
    COMPUTE_PROCESSES,
    GRAPHICS_PROCESSES,
    MPS_PROCESSES,
    PROCESS_UTILIZATION,
)
from gpufleet.readers.nvml.parse import absence_of, is_sentinel, label_of
from gpufleet.readers.nvml.protocol import CallResult, GpuPassRecord, InstanceRecord

MAX_PIDFDS = 256
"""Maximum open pidfds; for further processes /proc is read in every pass."""

_START_TIME = 19
"""Position in /proc/PID/stat after the name in parentheses (proc(5): field 22)."""


class StartTimeCache:
    """Start times of processes, each cached until the process ends, which its pidfd reports (pidfd_open(2)).

    One system call per pass polls all pidfds. A process that reuses an id is a new entry. Without pidfds, or if /proc
    belongs to another namespace than this process, each start time is read every time.
    """

    def __init__(self, root: Path) -> None:
        """Create an empty cache.

        Args:
            root: directory of the machine's /proc.
        """
        self._root = root
        self._cached: dict[int, tuple[int, int]] = {}  # process id to pidfd and start time
        self._queried: set[int] = set()
        self._poll = select.poll() if hasattr(select, "poll") else None
        self._has_pidfds: bool | None = None

    def begin(self) -> None:
        """Start a pass: drop processes that ended, and those that were not queried in the previous pass."""
        if not self._cached:
            return
        assert self._poll is not None
        ended = {descriptor for descriptor, _ in self._poll.poll(0)}
        gone = [pid for pid, (descriptor, _) in self._cached.items() if descriptor in ended or pid not in self._queried]
        for pid in gone:
            self._drop(pid)
        self._queried.clear()

    def start_time(self, pid: int) -> int | None:
        """Return a process's start time in clock ticks since boot, or None if /proc does not show the process."""
        self._queried.add(pid)
        cached = self._cached.get(pid)
        if cached is not None:
            return cached[1]
        # The pidfd is opened first: if the process ends before it is read, the next `begin` detects that.
        try:
            descriptor = self._open(pid) if len(self._cached) < MAX_PIDFDS else None
        except ProcessLookupError:
            return None
        began = parse_start_time(read_stat(self._root, pid))
        if descriptor is not None and began is None:
            os.close(descriptor)
        elif descriptor is not None and began is not None:
            assert self._poll is not None
            self._poll.register(descriptor, select.POLLIN)
            self._cached[pid] = descriptor, began
        return began

    def close(self) -> None:
        """Close all pidfds."""
        for pid in list(self._cached):
            self._drop(pid)

    def _open(self, pid: int) -> int | None:
        """Return a pidfd of a process, or None if pidfds are not available.

        Raises:
            ProcessLookupError: if the process does not exist.
        """
        if self._has_pidfds is None:
            self._has_pidfds = self._poll is not None and hasattr(os, "pidfd_open") and self._same_namespace()
        if not self._has_pidfds:
            return None
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (OSError, OverflowError):
            return None

    def _same_namespace(self) -> bool:
        """Return whether the ids in that /proc belong to this process's namespace."""
        try:
            return str((self._root / "proc/self").readlink()) == str(os.getpid())
        except OSError:
            return False

    def _drop(self, pid: int) -> None:
        descriptor, _ = self._cached.pop(pid)
        assert self._poll is not None
        self._poll.unregister(descriptor)
        os.close(descriptor)


def parse_start_time(stat: bytes) -> int | None:
    """Return the start time in clock ticks since boot from /proc/PID/stat, or None if it is malformed."""
    try:
        return int(stat.rpartition(b")")[2].split()[_START_TIME])
    except (ValueError, IndexError):
        return None


def read_stat(root: Path, pid: int) -> bytes:
    """Return /proc/PID/stat; empty if /proc does not show the process."""
    try:
        descriptor = os.open(f"{root}/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""  # the process ended meanwhile
    finally:
        os.close(descriptor)


ENCODER_UTILIZATION = "encoder_utilization_ratio"
UTILIZATION_METRICS = (
    "sm_utilization_ratio",
    "memory_activity_ratio",
    ENCODER_UTILIZATION,
    "decoder_utilization_ratio",
)
_KINDS = ((COMPUTE_PROCESSES, "compute"), (GRAPHICS_PROCESSES, "graphics"), (MPS_PROCESSES, "mps"))


def _call_positions(calls: tuple[Call, ...]) -> tuple[tuple[int, str, str], ...]:
    """Return the position of each kind's call on the fast lane, the call, and the kind."""
    positions = {call.key: position for position, call in enumerate(calls)}
    return tuple([(positions[call], call, kind) for call, kind in _KINDS if call in positions])


_GPU_POSITIONS = _call_positions(CALLS["fast"])
_INSTANCE_POSITIONS = {kind: _call_positions(lanes["fast"]) for kind, lanes in INSTANCE_CALLS.items()}
_UTILIZATION_POSITION = [call.key for call in CALLS["fast"]].index(PROCESS_UTILIZATION)
_NO_MIG_UTILIZATION = Absent(Reason.NOT_IN_MIG_MODE)
"""Utilisation of a process on a MIG device: the driver does not define it."""


class _UtilizationTable(NamedTuple):
    """Utilisation of the processes of a device.

    Attributes:
        by_pid: process id to its utilisation metrics.
        default: metrics of a process without a sample.
    """

    by_pid: dict[int, dict[str, int | float | Absent]]
    default: dict[str, Absent]


_NO_UTILIZATION = _UtilizationTable({}, dict.fromkeys(UTILIZATION_METRICS, _NO_MIG_UTILIZATION))


class ProcessLister:
    """Process lists of devices and instances, completed with start times and names from /proc."""

    def __init__(self, root: Path, *, names: bool = False) -> None:
        """Create the lister.

        Args:
            root: directory of the machine's /proc.
            names: report processes with the kernel's short names.
        """
        self._root = root
        self._names = names
        self._sees_host: bool | None = None
        self._start_times = StartTimeCache(root)

    def begin(self) -> None:
        """Start a pass: drop cached start times of processes that ended."""
        self._start_times.begin()

    def close(self) -> None:
        """Close all pidfds."""
        self._start_times.close()

    def list_device(self, record: GpuPassRecord) -> tuple[Process, ...] | None:
        """Return the processes of a device that answered on the fast lane, or None if the driver lists no kind."""
        product = record.product
        without_encoder = product is not None and not product.code and ENCODER in lacking_parts(str(product.value))
        table = _utilization(record.answers[_UTILIZATION_POSITION], without_encoder=without_encoder)
        return self._list(_GPU_POSITIONS, record.answers, table)

    def list_instance(self, record: InstanceRecord) -> tuple[Process, ...] | None:
        """Return the processes that the driver lists for an instance, or None if it lists no kind."""
        return self._list(_INSTANCE_POSITIONS[record.kind], record.answers, _NO_UTILIZATION)

    def _list(
        self,
        positions: tuple[tuple[int, str, str], ...],
        answers: tuple[CallResult, ...],
        utilization: _UtilizationTable,
    ) -> tuple[Process, ...] | None:
        kinds: dict[int, tuple[str, ...]] = {}
        memory: dict[int, int | Absent] = {}
        listed = False
        for position, call, kind in positions:
            answer = answers[position]
            if answer.code or not isinstance(answer.value, list):
                continue
            listed = True
            for entry in answer.value:
                if not _is_record(entry, 4):
                    continue
                pid, used = entry[:2]
                others = kinds.get(pid, ())
                kinds[pid] = others if kind in others else (*others, kind)
                held = Absent(Reason.NOT_REPORTED, call) if is_sentinel(used, 64) else used
                if not isinstance(memory.get(pid), int):
                    memory[pid] = held
        if not listed:
            return None
        seen = bool(kinds) and self._check_namespace()
        return tuple([self._process(pid, kinds[pid], memory[pid], utilization, seen=seen) for pid in sorted(kinds)])

    def _process(
        self, pid: int, kinds: tuple[str, ...], memory: int | Absent, utilization: _UtilizationTable, *, seen: bool
    ) -> Process:
        name, began = "", None
        if seen and self._names:  # read every time: a process can change its name
            stat = read_stat(self._root, pid)
            name, began = short_name(stat), parse_start_time(stat)
        elif seen:
            began = self._start_times.start_time(pid)
        values = {"memory_bytes": memory, **utilization.by_pid.get(pid, utilization.default)}
        return Process(pid=pid, kinds=kinds, start_time=began, values=values, name=name)

    def _check_namespace(self) -> bool:
        """Return whether /proc has the driver's process ids: only in the host's namespace is process 2 the kernel's.

        In another PID namespace (a container) the same ids belong to other processes. A process never changes its
        namespace, so this is checked once.
        """
        if self._sees_host is None:
            self._sees_host = b"(kthreadd)" in read_stat(self._root, 2)
        return self._sees_host


def short_name(stat: bytes) -> str:
    """Return the kernel's name of a process (proc(5): comm, up to 15 bytes); empty if there is none."""
    name = stat.partition(b"(")[2].rpartition(b")")[0]
    return "".join(letter if letter.isprintable() else "?" for letter in name.decode("utf-8", "replace"))


def _utilization(answer: CallResult, *, without_encoder: bool) -> _UtilizationTable:
    """Return the utilisation in the driver's samples. A sample of process 0 is an empty entry of its list."""
    call = label_of(answer.breadcrumb)
    why = absence_of(answer.code, call, answer.value) if answer.code else Absent(Reason.NO_DATA, call)
    found: dict[int, dict[str, int | float | Absent]] = {}
    for entry in answer.value if isinstance(answer.value, list) else []:
        if _is_record(entry, 5) and entry[0]:
            found[entry[0]] = {
                name: _ratio(percent, call) for name, percent in zip(UTILIZATION_METRICS, entry[1:], strict=True)
            }
            if without_encoder and entry[3] == 0:
                found[entry[0]][ENCODER_UTILIZATION] = Absent(Reason.NOT_SUPPORTED, call)
    return _UtilizationTable(found, dict.fromkeys(UTILIZATION_METRICS, why))


def _ratio(percent: int, call: str) -> float | Absent:
    return percent / 100 if 0 <= percent <= 100 else Absent(Reason.INVALID_VALUE, call)


_INTEGERS = frozenset({int})


def _is_record(entry: Any, length: int) -> bool:
    return entry.__class__ is list and len(entry) == length and _INTEGERS.issuperset(map(type, entry))
