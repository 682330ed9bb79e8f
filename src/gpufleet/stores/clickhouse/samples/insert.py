"""Conversion of accepted batches to table columns, and completion of interrupted inserts."""

import logging
from collections.abc import Sequence
from hashlib import blake2b
from secrets import token_hex
from typing import Any

import msgspec

from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.machines.cluster_objects import ClusterRows
from gpufleet.stores.clickhouse.machines.declarations import DeclaredRows
from gpufleet.stores.clickhouse.machines.processes import ProcessRows
from gpufleet.stores.clickhouse.machines.rows import PartRows
from gpufleet.stores.clickhouse.samples.blocks import DimRows, SampleRows, info_rows
from gpufleet.stores.clickhouse.samples.newest_rows import ValueGroup
from gpufleet.stores.clickhouse.samples.subjects import SubjectNumbers
from gpufleet.stores.clickhouse.schema.columns import Columns, RowBuffer, row_count
from gpufleet.stores.clickhouse.schema.sets import WriteCache, absence_set_id
from gpufleet.stores.clickhouse.schema.tables import ABSENCE_SETS, INFO, SUBJECTS, TableDefinition

LOG = logging.getLogger(__name__)


class InsertColumns(msgspec.Struct, frozen=True):
    """Columns that a write inserts.

    Attributes:
        tables: table name to columns, in write order, without empty tables; `latest` has no values.
        newest: the values of the rows of `latest`.
    """

    tables: dict[str, Columns]
    newest: list[ValueGroup]


def build_columns(accepted: Sequence[AcceptedBatch], known: WriteCache, subjects: SubjectNumbers) -> InsertColumns:
    """Return what to insert for batches. Pure except for updates of `known` and `subjects`.

    Referenced rows are written before the rows that refer to them, and `latest` is written last. So readers always
    find the absences, texts and dimensions of a row.

    Args:
        accepted: the batches.
        known: content that the store already has; content of the result is added to it.
        subjects: numbers of subjects; those that the store lacks are in the result.

    Raises:
        UnstorableError: if a state is not a state of its metric.
        StoreError: if no subject number is left.
    """
    sets = RowBuffer(column.name for column in ABSENCE_SETS.columns)
    samples, dims = SampleRows(known, subjects), DimRows(subjects)
    parts, processes = PartRows(known), ProcessRows()
    declared, objects = DeclaredRows(), ClusterRows()
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
        objects.add(one)
    sample_columns, newest, texts, values = samples.convert()
    dim_columns = dims.columns
    info = RowBuffer(column.name for column in INFO.columns)
    for row in info_rows(texts):
        info.add(*row)
    tables = {
        SUBJECTS.name: subjects.new_rows,
        "absence_sets": sets.columns,
        "info": info.columns,
        **{name: rows.columns for name, rows in (parts.tables | objects.tables).items()},
        "processes": processes.columns,
        "declared": declared.columns,
        "dim_samples": dim_columns,
        "samples": sample_columns,
        "latest": newest,
    }
    return InsertColumns({name: columns for name, columns in tables.items() if row_count(columns)}, values)


def complete_insert(handle: Handle, table: TableDefinition, rows: Any, token: str) -> None:
    """Insert the rows of an Arrow table that are missing in the table, whatever the insert token suggests.

    The server stores a token in `deduplication_logs` before it commits the part. If the process is killed in between,
    the token exists without rows, and a retry is dropped as a duplicate (MergeTree without Keeper, engine 26.9;
    `docs/decisions/0010-a-token-proves-nothing.md`). So the rows themselves are compared.
    """
    staged = f"staged_{blake2b(token.encode(), digest_size=8).hexdigest()}"
    missing = render_missing(table, staged)
    handle.command(f"DROP TABLE IF EXISTS {staged} SYNC")  # left by a process that was killed here
    handle.command(f"CREATE TABLE {staged} AS {table.name} ENGINE = Memory")
    try:
        handle.insert_arrow(staged, rows)
        count = int(handle.query(f"SELECT count() FROM {missing}").result_rows[0][0])  # noqa: S608 - names are constants
        if count:
            LOG.warning(
                "%d rows of %s were missing after an interrupted insert and are inserted now", count, table.name
            )
            # Without an explicit token the content is the token, which may have been stored without rows as well.
            settings = {"insert_deduplication_token": token_hex(16)}
            handle.command(f"INSERT INTO {table.name} SELECT * FROM {missing}", settings=settings)  # noqa: S608
    finally:
        handle.command(f"DROP TABLE IF EXISTS {staged} SYNC")


def render_missing(table: TableDefinition, staged: str) -> str:
    """Return the FROM clause for the rows of `staged` that the table lacks, compared by key and version.

    In a table with versions, only the greatest version per key is compared, because an insert keeps only that row.
    """
    key = ", ".join(f"`{name}`" for name in table.key)
    identity = f"{key}, `{table.version}`" if table.version else key
    present = f"SELECT {identity} FROM {table.name} WHERE ({key}) IN (SELECT {key} FROM {staged})"  # noqa: S608
    missing = f"{staged} WHERE ({identity}) NOT IN ({present})"
    if not table.version:
        return missing
    newest = f"SELECT {key}, max(`{table.version}`) FROM {staged} GROUP BY {key}"  # noqa: S608
    return f"{missing} AND ({identity}) IN ({newest})"
