"""The table of processes of a device: who holds it, how much memory, and what share of its time.

Since when processes live, asked of the kernel once a process.
"""

import os
import select
from pathlib import Path
from typing import Any, NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.process import Process
from gpufleet.readers.nvml.calls import CALLS, INSTANCE_CALLS, Call
from gpufleet.readers.nvml.calls.processes import COMPUTE, GRAPHICS, MPS, UTILIZATION
from gpufleet.readers.nvml.parse import absence_of, is_sentinel, label_of
from gpufleet.readers.nvml.protocol import Answer, DeviceRecord, InstanceRecord

MOST_KEPT = 256
"""Descriptors that are held; of more processes than that /proc is read in every pass."""

_START_TIME = 19
"""Position in /proc/PID/stat behind the name in parentheses (proc(5): field 22)."""


class Lives:
    """Start times, each kept while that very process lives: a descriptor of it tells (pidfd_open(2)).

    One system call a pass looks after all of them. An id that another process got meanwhile is another life. Where the
    kernel gives no descriptor, or /proc is of another namespace than this process, each is read every time.
    """

    def __init__(self, root: Path) -> None:
        """Take where the machine's /proc is; nothing is looked at yet."""
        self._root = root
        self._kept: dict[int, tuple[int, int]] = {}  # process id to descriptor and start time
        self._asked: set[int] = set()
        self._living = select.poll() if hasattr(select, "poll") else None
        self._can: bool | None = None

    def begin(self) -> None:
        """Let go of those that ended, and of those that nobody asked about since the last time."""
        if not self._kept:
            return
        assert self._living is not None
        ended = {descriptor for descriptor, _ in self._living.poll(0)}
        gone = [pid for pid, (descriptor, _) in self._kept.items() if descriptor in ended or pid not in self._asked]
        for pid in gone:
            self._drop(pid)
        self._asked.clear()

    def start_time(self, pid: int) -> int | None:
        """Return when a process began, in clock ticks since boot, or None where the kernel shows no such process."""
        self._asked.add(pid)
        kept = self._kept.get(pid)
        if kept is not None:
            return kept[1]
        # The descriptor first: if the process ends before it is read about, the next `begin` hears of that.
        try:
            descriptor = self._open(pid) if len(self._kept) < MOST_KEPT else None
        except ProcessLookupError:
            return None
        began = start_time(stat_of(self._root, pid))
        if descriptor is not None and began is None:
            os.close(descriptor)
        elif descriptor is not None and began is not None:
            assert self._living is not None
            self._living.register(descriptor, select.POLLIN)
            self._kept[pid] = descriptor, began
        return began

    def close(self) -> None:
        """Give all descriptors back."""
        for pid in list(self._kept):
            self._drop(pid)

    def _open(self, pid: int) -> int | None:
        """Return a descriptor of a process, or None where there are none to be had.

        Raises:
            ProcessLookupError: if there is no such process.
        """
        if self._can is None:
            self._can = self._living is not None and hasattr(os, "pidfd_open") and self._same_namespace()
        if not self._can:
            return None
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (OSError, OverflowError):
            return None

    def _same_namespace(self) -> bool:
        """Tell whether ids in that /proc are those that this process may ask the kernel for."""
        try:
            return str((self._root / "proc/self").readlink()) == str(os.getpid())
        except OSError:
            return False

    def _drop(self, pid: int) -> None:
        descriptor, _ = self._kept.pop(pid)
        assert self._living is not None
        self._living.unregister(descriptor)
        os.close(descriptor)


def start_time(stat: bytes) -> int | None:
    """Return when a process began, in clock ticks since boot, or None where /proc/PID/stat does not say."""
    try:
        return int(stat.rpartition(b")")[2].split()[_START_TIME])
    except (ValueError, IndexError):
        return None


def stat_of(root: Path, pid: int) -> bytes:
    """Return /proc/PID/stat; nothing if the kernel shows no such process."""
    try:
        descriptor = os.open(f"{root}/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""  # it ended meanwhile
    finally:
        os.close(descriptor)


SHARES = ("sm_utilization_ratio", "memory_activity_ratio", "encoder_utilization_ratio", "decoder_utilization_ratio")
_KINDS = ((COMPUTE, "compute"), (GRAPHICS, "graphics"), (MPS, "mps"))


def _places(calls: tuple[Call, ...]) -> tuple[tuple[int, str, str], ...]:
    """Return where the answer of each kind's call stands among those of the fast lane, the call, and the kind."""
    positions = {call.key: position for position, call in enumerate(calls)}
    return tuple([(positions[call], call, kind) for call, kind in _KINDS if call in positions])


_GPU_PLACES = _places(CALLS["fast"])
_PART_PLACES = {kind: _places(lanes["fast"]) for kind, lanes in INSTANCE_CALLS.items()}
_UTILIZATION_AT = [call.key for call in CALLS["fast"]].index(UTILIZATION)
_NOT_OF_PARTS = Absent(Reason.NOT_IN_MIG_MODE)
"""Shares of a process on a MIG device: the driver defines none."""


class _Shares(NamedTuple):
    """Process id to its shares, and what there is of a process without any."""

    found: dict[int, dict[str, int | float | Absent]]
    none: dict[str, Absent]


_NO_SHARES = _Shares({}, dict.fromkeys(SHARES, _NOT_OF_PARTS))


class ProcessLister:
    """Lists processes, and asks the kernel what it knows of them."""

    def __init__(self, root: Path, *, names: bool = False) -> None:
        """Take where the machine's /proc is, and whether processes are told with the kernel's short names of them."""
        self._root = root
        self._names = names
        self._sees: bool | None = None
        self._lives = Lives(root)

    def begin(self) -> None:
        """Look which of the processes of the pass before live on; called at the begin of every pass."""
        self._lives.begin()

    def close(self) -> None:
        """Let go of what is held of processes."""
        self._lives.close()

    def of_device(self, record: DeviceRecord) -> tuple[Process, ...] | None:
        """Return who uses a device that answered on the fast lane, or None where the driver lists none of a kind."""
        return self._list(_GPU_PLACES, record.answers, _shares(record.answers[_UTILIZATION_AT]))

    def of_part(self, record: InstanceRecord) -> tuple[Process, ...] | None:
        """Return who uses a part of a GPU, as the driver lists them for that very part; None where it does not."""
        return self._list(_PART_PLACES[record.kind], record.answers, _NO_SHARES)

    def _list(
        self, places: tuple[tuple[int, str, str], ...], answers: tuple[Answer, ...], shares: _Shares
    ) -> tuple[Process, ...] | None:
        kinds: dict[int, tuple[str, ...]] = {}
        memory: dict[int, int | Absent] = {}
        listed = False
        for position, call, kind in places:
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
        seen = bool(kinds) and self._sees_the_machine()
        return tuple([self._process(pid, kinds[pid], memory[pid], shares, seen=seen) for pid in sorted(kinds)])

    def _process(
        self, pid: int, kinds: tuple[str, ...], memory: int | Absent, shares: _Shares, *, seen: bool
    ) -> Process:
        name, began = "", None
        if seen and self._names:  # which a process can change while it lives
            stat = stat_of(self._root, pid)
            name, began = short_name(stat), start_time(stat)
        elif seen:
            began = self._lives.start_time(pid)
        values = {"memory_bytes": memory, **shares.found.get(pid, shares.none)}
        return Process(pid=pid, kinds=kinds, start_time=began, values=values, name=name)

    def _sees_the_machine(self) -> bool:
        """Tell whether /proc has the ids that the driver tells: process 2 is the kernel's in that namespace only.

        In a namespace of its own (a container), /proc has other processes under the same numbers. A process stays in
        its namespace, so it is looked at once.
        """
        if self._sees is None:
            self._sees = b"(kthreadd)" in stat_of(self._root, 2)
        return self._sees


def short_name(stat: bytes) -> str:
    """Return the kernel's name of a process (proc(5): comm, up to 15 bytes), empty where there is none."""
    name = stat.partition(b"(")[2].rpartition(b")")[0]
    return "".join(letter if letter.isprintable() else "?" for letter in name.decode("utf-8", "replace"))


def _shares(answer: Answer) -> _Shares:
    """Return what the driver's samples say. One of process 0 is an empty place in its list, of nobody."""
    call = label_of(answer.asked)
    why = absence_of(answer.code, call, answer.value) if answer.code else Absent(Reason.NO_DATA, call)
    found: dict[int, dict[str, int | float | Absent]] = {}
    for entry in answer.value if isinstance(answer.value, list) else []:
        if _is_record(entry, 5) and entry[0]:
            found[entry[0]] = {name: _share(percent, call) for name, percent in zip(SHARES, entry[1:], strict=True)}
    return _Shares(found, dict.fromkeys(SHARES, why))


def _share(percent: int, call: str) -> float | Absent:
    return percent / 100 if 0 <= percent <= 100 else Absent(Reason.INVALID_VALUE, call)


_INTEGERS = frozenset({int})


def _is_record(entry: Any, length: int) -> bool:
    return entry.__class__ is list and len(entry) == length and _INTEGERS.issuperset(map(type, entry))
