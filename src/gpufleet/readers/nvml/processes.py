"""The table of processes of a device: who holds it, how much memory, and what share of its time."""

from pathlib import Path
from typing import Any, NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.process import Process
from gpufleet.readers.nvml.calls import CALLS, INSTANCE_CALLS, Call
from gpufleet.readers.nvml.calls.processes import COMPUTE, GRAPHICS, MPS, UTILIZATION
from gpufleet.readers.nvml.lives import Lives, start_time, stat_of
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
