"""The table of processes of a device: who holds it, how much memory, and what share of its time."""

import os
from pathlib import Path

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.process import Process
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls import CALLS
from gpufleet.readers.nvml.calls.processes import COMPUTE, GRAPHICS, MPS, UTILIZATION
from gpufleet.readers.nvml.parse import absence_of, is_sentinel, label_of
from gpufleet.readers.nvml.protocol import Answer, DeviceRecord

SHARES = ("sm_utilization_ratio", "memory_activity_ratio", "encoder_utilization_ratio", "decoder_utilization_ratio")
_KINDS = ((COMPUTE, "compute"), (GRAPHICS, "graphics"), (MPS, "mps"))
_POSITIONS = {call.key: position for position, call in enumerate(CALLS["fast"])}
_START_TIME = 19
"""Position in /proc/PID/stat behind the name in parentheses (proc(5): field 22)."""


def list_processes(record: DeviceRecord, root: Path) -> tuple[Process, ...] | None:
    """Return the processes of a device that answered on the fast lane, or None where the driver lists none of a kind.

    Args:
        record: the device's answers.
        root: where the machine's /proc is.
    """
    kinds: dict[int, list[str]] = {}
    memory: dict[int, int | Absent] = {}
    listed = False
    for call, kind in _KINDS:
        answer = record.answers[_POSITIONS[call]]
        if answer.code or not isinstance(answer.value, list):
            continue
        listed = True
        for entry in answer.value:
            if not _is_record(entry, 4):
                continue
            pid, used = entry[:2]
            kinds.setdefault(pid, []).append(kind)
            held = Absent(Reason.NOT_REPORTED, call) if is_sentinel(used, 64) else used
            if not isinstance(memory.get(pid), int):
                memory[pid] = held
    if not listed:
        return None
    shares = _shares(record.answers[_POSITIONS[UTILIZATION]])
    return tuple(
        [
            Process(
                pid=pid,
                kinds=tuple(dict.fromkeys(kinds[pid])),
                start_time=start_time(root, pid),
                values={"memory_bytes": memory[pid], **(shares.get(pid) or shares[0])},
            )
            for pid in sorted(kinds)
        ]
    )


def start_time(root: Path, pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot, or None if the kernel does not show it."""
    try:
        descriptor = os.open(f"{root}/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, 4096).rpartition(b")")[2].split()[_START_TIME])
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(descriptor)


def _shares(answer: Answer) -> dict[int, dict[str, int | float | Absent]]:
    """Return process id to its shares; what holds of all others stands under 0."""
    call = label_of(answer.asked)
    why = absence_of(answer.code, call, answer.value) if answer.code else Absent(Reason.NO_DATA, call)
    found: dict[int, dict[str, int | float | Absent]] = {0: dict.fromkeys(SHARES, why)}
    for entry in answer.value if isinstance(answer.value, list) else []:
        if _is_record(entry, 5):
            found[entry[0]] = {name: _share(percent, call) for name, percent in zip(SHARES, entry[1:], strict=True)}
    return found


def _share(percent: int, call: str) -> float | Absent:
    return percent / 100 if 0 <= percent <= 100 else Absent(Reason.INVALID_VALUE, call)


def _is_record(entry: protocol.Value, length: int) -> bool:
    return isinstance(entry, list) and len(entry) == length and all(isinstance(part, int) for part in entry)
