"""Accepted batches to the rows of every table. Pure but for what `Known` remembers."""

from collections.abc import Sequence

from gpufleet.model.stored import Accepted
from gpufleet.stores.clickhouse.columns import Columns, Rows, count
from gpufleet.stores.clickhouse.declared import DeclaredRows
from gpufleet.stores.clickhouse.dims import DimRows
from gpufleet.stores.clickhouse.parts import PartRows
from gpufleet.stores.clickhouse.processes import ProcessRows
from gpufleet.stores.clickhouse.samples import SampleRows, info_rows
from gpufleet.stores.clickhouse.schema import ABSENCE_SETS, INFO
from gpufleet.stores.clickhouse.sets import Known, absence_set_id


def build(accepted: Sequence[Accepted], known: Known) -> dict[str, Columns]:
    """Return table name to columns, in the order to write them; tables with nothing to write are left out.

    What rows point at comes before the rows, and `latest` comes last, so that a reader never meets a row
    whose absences, texts or dimensions are not there yet.

    Args:
        accepted: the batches.
        known: what the store holds already; what is to be written is added to it.

    Raises:
        UnstorableError: if a state is not one of its metric's states.
    """
    sets = Rows(column.name for column in ABSENCE_SETS.columns)
    samples, dims, parts, processes = SampleRows(known), DimRows(), PartRows(known), ProcessRows()
    declared = DeclaredRows()
    for one in accepted:
        ids = []
        for absences in one.batch.absences:
            number = absence_set_id(absences)
            ids.append(number)
            if absences and number not in known.absence_sets:
                known.absence_sets.add(number)
                ordered = sorted(absences, key=lambda absence: absence.metric)
                sets.add(
                    number,
                    [absence.metric for absence in ordered],
                    [absence.reason.value for absence in ordered],
                    [absence.detail for absence in ordered],
                )
        samples.add(one, ids)
        dims.add(one, ids)
        parts.add(one)
        processes.add(one, ids)
        declared.add(one)
    sample_columns, newest, texts = samples.gather()
    info = Rows(column.name for column in INFO.columns)
    for row in info_rows(texts):
        info.add(*row)
    tables = {
        "absence_sets": sets.columns,
        "info": info.columns,
        **{name: rows.columns for name, rows in parts.tables.items()},
        "processes": processes.columns,
        "declared": declared.columns,
        "dim_samples": dims.columns,
        "samples": sample_columns,
        "latest": newest,
    }
    return {name: columns for name, columns in tables.items() if count(columns)}
