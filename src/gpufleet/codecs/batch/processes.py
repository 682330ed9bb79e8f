"""Process lists: conversion to columns and back, and validation."""

from collections.abc import Callable, Sequence

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import WireError
from gpufleet.model.process import MAX_PROCESSES, PROCESS_READINGS, Process, most_memory_first
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.wire.batch import Cell, MachinePart, ProcessList, WireBatch

MAX_NAME = 64

_LANES = frozenset(lane.value for lane in Lane)
_PROVENANCES = frozenset(provenance.value for provenance in Provenance)

Absences = list[tuple[str, Absent]]


def encode_processes(
    sample: Sample,
    view: int,
    cell: Callable[[str, Value | Absent, Absences], Cell],
    absence: Callable[[Absences], int],
) -> ProcessList:
    """Return a sample's processes as columns: at most `MAX_PROCESSES`, those with the most memory.

    Args:
        sample: sample with processes.
        view: position of its view.
        cell: returns the cell of a value, and appends the reason of an absence to the list.
        absence: returns the position of a set of absences.
    """
    processes = sample.processes or ()
    block = ProcessList(
        view,
        sample.reader,
        sample.lane.value,
        sample.provenance.value,
        sample.measured_at,
        sample.driver_session,
        len(processes),
        list(PROCESS_READINGS),
        *([], [], [], [], []),
        [[] for _ in PROCESS_READINGS],
    )
    for process in sorted(processes, key=most_memory_first)[:MAX_PROCESSES]:
        absent: Absences = []
        block.pids.append(process.pid)
        block.start_times.append(process.start_time)
        block.kinds.append(list(process.kinds))
        block.names.append(process.name[:MAX_NAME])
        for column, name in zip(block.columns, PROCESS_READINGS, strict=True):
            column.append(cell(name, process.values.get(name, Absent(Reason.NOT_REPORTED)), absent))
        block.absence.append(absence(absent))
    return block


def check_processes(field: str, part: MachinePart, wire: WireBatch) -> None:
    """Check every list of a part. Raises WireError naming the field."""
    for at, block in enumerate(part.processes):
        _check_list(f"{field}.processes[{at}]", block, wire)


def _check_list(field: str, block: ProcessList, wire: WireBatch) -> None:
    if block.view >= len(wire.views):
        raise WireError(f"{field}.view", f"{block.view} points past the {len(wire.views)} views")
    if block.lane not in _LANES:
        raise WireError(f"{field}.lane", f"not one of {', '.join(sorted(_LANES))}")
    if block.provenance not in _PROVENANCES:
        raise WireError(f"{field}.provenance", f"not one of {', '.join(sorted(_PROVENANCES))}")
    rows = len(block.pids)
    if len(set(block.readings)) != len(block.readings):
        raise WireError(f"{field}.readings", "a reading is listed twice")
    if len(block.columns) != len(block.readings):
        raise WireError(f"{field}.columns", f"{len(block.columns)} columns for {len(block.readings)} readings")
    lists: list[tuple[str, Sequence[object]]] = [
        *((name, getattr(block, name)) for name in ("start_times", "kinds", "names", "absence")),
        *((f"columns[{at}]", column) for at, column in enumerate(block.columns)),
    ]
    for name, entries in lists:
        if len(entries) != rows:
            raise WireError(f"{field}.{name}", f"{len(entries)} entries for {rows} processes")
    highest = max(block.absence, default=-1)
    if highest >= len(wire.absences):
        raise WireError(f"{field}.absence", f"{highest} points past the {len(wire.absences)} absences")


def decode_processes(block: ProcessList, absences: Sequence[dict[str, Absent]]) -> tuple[Process, ...]:
    """Return the processes of a checked list, by process id."""
    found = []
    for row, pid in enumerate(block.pids):
        reasons = absences[block.absence[row]] if block.absence[row] >= 0 else {}
        values: dict[str, int | float | Absent] = {}
        for name, column in zip(block.readings, block.columns, strict=True):
            cell = column[row]
            if isinstance(cell, str):
                values[name] = Absent(Reason.INVALID_VALUE, "not a number")
            else:
                values[name] = reasons.get(name, Absent(Reason.NOT_REPORTED)) if cell is None else cell
        found.append(
            Process(
                pid=pid,
                kinds=tuple(block.kinds[row]),
                start_time=block.start_times[row],
                values=values,
                name=block.names[row],
            )
        )
    return tuple(sorted(found, key=lambda process: process.pid))
