"""The table of processes of a device: who holds it, how much memory, and what share of its time."""

import os
from pathlib import Path
from typing import NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.process import Process
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import CALLS, INSTANCE_CALLS, Call
from gpufleet.readers.nvml.calls.processes import COMPUTE, GRAPHICS, MPS, UTILIZATION
from gpufleet.readers.nvml.parse import absence_of, is_sentinel, label_of
from gpufleet.readers.nvml.protocol import Answer, DeviceRecord, InstanceRecord

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

_START_TIME = 19
"""Position in /proc/PID/stat behind the name in parentheses (proc(5): field 22)."""


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
        stat = _stat(self._root, pid) if seen else b""
        return Process(
            pid=pid,
            kinds=kinds,
            start_time=start_time(stat) if stat else None,
            values={"memory_bytes": memory, **shares.found.get(pid, shares.none)},
            name=short_name(stat) if self._names else "",
        )

    def _sees_the_machine(self) -> bool:
        """Tell whether /proc has the ids that the driver tells: process 2 is the kernel's in that namespace only.

        In a namespace of its own (a container), /proc has other processes under the same numbers. A process stays in
        its namespace, so it is looked at once.
        """
        if self._sees is None:
            self._sees = b"(kthreadd)" in _stat(self._root, 2)
        return self._sees


def start_time(stat: bytes) -> int | None:
    """Return when a process began, in clock ticks since boot, or None where /proc/PID/stat does not say."""
    try:
        return int(stat.rpartition(b")")[2].split()[_START_TIME])
    except (ValueError, IndexError):
        return None


def short_name(stat: bytes) -> str:
    """Return the kernel's name of a process (proc(5): comm, up to 15 bytes), empty where there is none."""
    name = stat.partition(b"(")[2].rpartition(b")")[0]
    return "".join(letter if letter.isprintable() else "?" for letter in name.decode("utf-8", "replace"))


def _stat(root: Path, pid: int) -> bytes:
    """Return what the kernel shows of a process; nothing if it shows no such process."""
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


def _is_record(entry: protocol.Value, length: int) -> bool:
    return isinstance(entry, list) and len(entry) == length and set(map(type, entry)) == {int}
