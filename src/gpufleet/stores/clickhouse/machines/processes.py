"""Process lists: rows of the table `processes`, and queries."""

from collections.abc import Sequence
from typing import Any

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.process import PROCESS_READINGS, Process
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.samples import AcceptedBatch, ProcessQuery, StoredProcesses
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.columns import Columns, RowBuffer
from gpufleet.stores.clickhouse.schema.sets import EMPTY_SET, AbsenceSets, fetch_absences
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
"""  # noqa: S608 - names are constants; values are bound as parameters


class ProcessRows:
    """Rows of `processes` from many batches: one row per list."""

    def __init__(self) -> None:
        self._rows = RowBuffer(column.name for column in PROCESSES.columns)

    def add(self, accepted: AcceptedBatch, absence_ids: Sequence[int]) -> None:
        """Add every list of a batch; `absence_ids` are the ids of `batch.absences`."""
        batch = accepted.batch
        absences = [*absence_ids, EMPTY_SET]
        for part in batch.parts:
            for listed in part.processes:
                columns = dict(zip(listed.readings, listed.columns, strict=True))
                self._rows.add(
                    batch.cluster,
                    accepted.machine_ids[part.machine],
                    batch.views[listed.view].key,
                    listed.reader,
                    listed.provenance,
                    listed.measured_at,
                    accepted.received_at,
                    listed.total,
                    listed.pids,
                    listed.start_times,
                    [",".join(kinds) for kinds in listed.kinds],
                    listed.names,
                    *(columns[name] for name in PROCESS_READINGS),
                    [absences[position] for position in listed.absence],
                )

    @property
    def columns(self) -> Columns:
        """The rows as columns."""
        return self._rows.columns


def fetch_processes(handle: Handle, cache: AbsenceSets, query: ProcessQuery) -> tuple[StoredProcesses, ...]:
    """Return the newest process lists of a machine; see `ports.SampleStore.processes`."""
    parameters: dict[str, Any] = {
        "cluster": query.cluster,
        "machine": query.machine,
        "start": query.start,
        "end": query.end,
        "view": query.view or "",
    }
    rows = handle.query(_NEWEST, parameters=parameters).result_rows
    absences = fetch_absences(handle, {number for row in rows for number in row[10]}, cache)
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
