"""Processes on a device: ids, types and memory. nvidia-smi has no utilization per process."""

import re
from collections.abc import Iterable, Mapping

from gpufleet.model.absence import Absent, Reason, worst_absence
from gpufleet.model.driver_texts import text_reason
from gpufleet.model.process import PROCESS_READINGS, Process

KINDS = {
    "c": ("compute",),
    "g": ("graphics",),
    "c+g": ("compute", "graphics"),
    "m": ("mps",),
    "m+c": ("mps",),
}
"""Printed type, in lower case, to kinds of contexts."""

PID, MEMORY = ("pid", "process_id"), ("used_memory", "used_gpu_memory")
"""Field names in XML and CSV, and in text."""

_NOT_REPORTED = {name: Absent(Reason.NOT_REPORTED) for name in PROCESS_READINGS if name != "memory_bytes"}
_PID = re.compile(r"[0-9]{1,10}", re.ASCII)
_MEBIBYTES = re.compile(r"([0-9]{1,9}) MiB", re.ASCII)


def list_processes(listed: Iterable[Mapping[str, str]]) -> tuple[Process, ...]:
    """Return the processes, sorted by id; rows without an id are skipped.

    Rows of the same process are merged: a process on two MIG devices is one process of the GPU, with the memory of
    both.
    """
    kinds: dict[int, dict[str, None]] = {}
    memory: dict[int, int | Absent] = {}
    for row in listed:
        text = _first(row, PID)
        if text is None or not _PID.fullmatch(text) or int(text) >= 2**32:
            continue
        pid, held = int(text), _memory(_first(row, MEMORY))
        kinds.setdefault(pid, {}).update(dict.fromkeys(KINDS.get(row.get("type", "").strip().lower(), ())))
        before = memory.get(pid, 0)
        memory[pid] = held + before if isinstance(held, int) and isinstance(before, int) else _absent(held, before)
    return tuple(
        Process(
            pid=pid, kinds=tuple(kinds[pid]), start_time=None, values={"memory_bytes": memory[pid], **_NOT_REPORTED}
        )
        for pid in sorted(kinds)
    )


def _absent(held: int | Absent, before: int | Absent) -> Absent:
    absent = [value for value in (held, before) if isinstance(value, Absent)]
    return worst_absence(absent) if absent else Absent(Reason.NOT_REPORTED)


def _memory(text: str | None) -> int | Absent:
    if text is None:
        return Absent(Reason.NOT_REPORTED, MEMORY[0])
    found = _MEBIBYTES.fullmatch(text)
    return int(found[1]) << 20 if found else Absent(text_reason(text) or Reason.INVALID_VALUE, MEMORY[0])


def _first(row: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((row[name].strip() for name in names if name in row), None)
