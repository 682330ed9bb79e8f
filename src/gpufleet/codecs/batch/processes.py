"""Tables of processes: from rows to columns, what must hold between them, and back."""

from collections.abc import Callable, Sequence

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import WireError
from gpufleet.model.process import MAX_TOLD, PROCESS_READINGS, Process, most_memory_first
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.wire.batch import Cell, MachinePart, ProcessList, WireBatch

MAX_NAME = 64

_LANES = frozenset(lane.value for lane in Lane)
_PROVENANCES = frozenset(provenance.value for provenance in Provenance)

Absences = list[tuple[str, Absent]]


def list_of(
    sample: Sample,
    view: int,
    cell: Callable[[str, Value | Absent, Absences], Cell],
    absence: Callable[[Absences], int],
) -> ProcessList:
    """Return a sample's processes as columns; of more than `MAX_TOLD` those that hold the most memory.

    Args:
        sample: one that lists processes.
        view: the position of its view.
        cell: what goes into a column; adds to the list why there is nothing.
        absence: position of a set of absences.
    """
    processes = sample.processes or ()
    told = ProcessList(
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
    for process in sorted(processes, key=most_memory_first)[:MAX_TOLD]:
        absent: Absences = []
        told.pids.append(process.pid)
        told.start_times.append(process.start_time)
        told.kinds.append(list(process.kinds))
        told.names.append(process.name[:MAX_NAME])
        for column, name in zip(told.columns, PROCESS_READINGS, strict=True):
            column.append(cell(name, process.values.get(name, Absent(Reason.NOT_REPORTED)), absent))
        told.absence.append(absence(absent))
    return told


def check_processes(field: str, part: MachinePart, wire: WireBatch) -> None:
    """Check every list of a part. Raises WireError naming the field."""
    for at, told in enumerate(part.processes):
        _check_list(f"{field}.processes[{at}]", told, wire)


def _check_list(field: str, told: ProcessList, wire: WireBatch) -> None:
    if told.view >= len(wire.views):
        raise WireError(f"{field}.view", f"{told.view} points past the {len(wire.views)} views")
    if told.lane not in _LANES:
        raise WireError(f"{field}.lane", f"not one of {', '.join(sorted(_LANES))}")
    if told.provenance not in _PROVENANCES:
        raise WireError(f"{field}.provenance", f"not one of {', '.join(sorted(_PROVENANCES))}")
    rows = len(told.pids)
    if len(set(told.readings)) != len(told.readings):
        raise WireError(f"{field}.readings", "a reading is there twice")
    if len(told.columns) != len(told.readings):
        raise WireError(f"{field}.columns", f"{len(told.columns)} columns for {len(told.readings)} readings")
    lists: list[tuple[str, Sequence[object]]] = [
        *((name, getattr(told, name)) for name in ("start_times", "kinds", "names", "absence")),
        *((f"columns[{at}]", column) for at, column in enumerate(told.columns)),
    ]
    for name, entries in lists:
        if len(entries) != rows:
            raise WireError(f"{field}.{name}", f"{len(entries)} entries for {rows} processes")
    highest = max(told.absence, default=-1)
    if highest >= len(wire.absences):
        raise WireError(f"{field}.absence", f"{highest} points past the {len(wire.absences)} absences")


def processes_of(told: ProcessList, absences: Sequence[dict[str, Absent]]) -> tuple[Process, ...]:
    """Return the processes of a checked list, by process id."""
    found = []
    for row, pid in enumerate(told.pids):
        reasons = absences[told.absence[row]] if told.absence[row] >= 0 else {}
        values: dict[str, int | float | Absent] = {}
        for name, column in zip(told.readings, told.columns, strict=True):
            cell = column[row]
            if isinstance(cell, str):
                values[name] = Absent(Reason.INVALID_VALUE, "not a number")
            else:
                values[name] = reasons.get(name, Absent(Reason.NOT_REPORTED)) if cell is None else cell
        found.append(
            Process(
                pid=pid,
                kinds=tuple(told.kinds[row]),
                start_time=told.start_times[row],
                values=values,
                name=told.names[row],
            )
        )
    return tuple(sorted(found, key=lambda process: process.pid))
