"""Tables of processes: from batches to the columns of `processes`, and out of it."""

from collections.abc import Sequence
from typing import Any

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.process import PROCESS_READINGS, Process
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.samples import Accepted, ProcessQuestion, StoredProcesses
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.columns import Columns, Rows
from gpufleet.stores.clickhouse.schema.sets import EMPTY, AbsenceSets, fetch_absences
from gpufleet.stores.clickhouse.schema.tables import PROCESSES

_NEWEST = f"""
SELECT view, reader, provenance, toUnixTimestamp64Nano(measured_at), toUnixTimestamp64Nano(received_at), total,
    pids, start_times, kinds, names, absence_sets, {", ".join(PROCESS_READINGS)}
FROM processes
WHERE cluster = {{cluster:String}} AND machine = {{machine:String}}
    AND measured_at >= fromUnixTimestamp64Nano({{start:Int64}}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({{end:Int64}}, 'UTC')
    AND ({{view:String}} = '' OR view = {{view:String}})
ORDER BY view, reader, measured_at DESC, received_at DESC
LIMIT 1 BY view, reader
"""  # noqa: S608 - the names are the model's own; what is asked for is bound


class ProcessRows:
    """Gathers the lists of many batches: one row a list."""

    def __init__(self) -> None:
        self._rows = Rows(column.name for column in PROCESSES.columns)

    def add(self, accepted: Accepted, absence_ids: Sequence[int]) -> None:
        """Add every list of a batch; `absence_ids` are the ids of `batch.absences`."""
        batch = accepted.batch
        absences = [*absence_ids, EMPTY]
        for part in batch.parts:
            for told in part.processes:
                columns = dict(zip(told.readings, told.columns, strict=True))
                self._rows.add(
                    batch.cluster,
                    accepted.machine_ids[part.machine],
                    batch.views[told.view].key,
                    told.reader,
                    told.provenance,
                    told.measured_at,
                    accepted.received_at,
                    told.total,
                    told.pids,
                    told.start_times,
                    [",".join(kinds) for kinds in told.kinds],
                    told.names,
                    *(columns[name] for name in PROCESS_READINGS),
                    [absences[position] for position in told.absence],
                )

    @property
    def columns(self) -> Columns:
        """Everything gathered, as columns."""
        return self._rows.columns


def fetch_processes(handle: Handle, met: AbsenceSets, question: ProcessQuestion) -> tuple[StoredProcesses, ...]:
    """Ask for the newest lists of a machine, as `ports.Store.processes` says."""
    parameters: dict[str, Any] = {
        "cluster": question.cluster,
        "machine": question.machine,
        "start": question.start,
        "end": question.end,
        "view": question.view or "",
    }
    rows = handle.query(_NEWEST, parameters=parameters).result_rows
    absences = fetch_absences(handle, {number for row in rows for number in row[10]}, met)
    return tuple(_stored(row, absences) for row in rows)


def _stored(row: Sequence[Any], absences: dict[int, dict[str, Absent]]) -> StoredProcesses:
    view, reader, provenance, measured_at, received_at, total, pids, start_times, kinds, names, sets, *columns = row
    readings = list(zip(*columns, strict=True)) if pids else []
    return StoredProcesses(
        view=view,
        reader=reader,
        provenance=Provenance(provenance),
        measured_at=measured_at,
        received_at=received_at,
        total=total,
        processes=tuple(
            Process(
                pid=pid,
                kinds=tuple(kind.split(",")) if kind else (),
                start_time=start,
                values=_values(cells, absences.get(number, {})),
                name=name,
            )
            for pid, start, kind, name, number, cells in zip(
                pids, start_times, kinds, names, sets, readings, strict=True
            )
        ),
    )


def _values(cells: Sequence[Any], reasons: dict[str, Absent]) -> dict[str, int | float | Absent]:
    return {
        name: reasons.get(name, Absent(Reason.NOT_REPORTED)) if cell is None else cell
        for name, cell in zip(PROCESS_READINGS, cells, strict=True)
    }
