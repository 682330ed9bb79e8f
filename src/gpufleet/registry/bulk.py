"""Many rows with one statement, without what SQLAlchemy does with each of them.

A flush writes a row or three of every sender that spoke. SQLAlchemy looks at each value on its way; here it renders the
statement, and the driver is handed the rows as they are: texts, integers and bytes.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

Row = tuple[str | int | bytes, ...]


def replace(connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Insert rows, or put their values in the place of those of the rows with the same primary key.

    Args:
        connection: in a transaction.
        table: which; its other columns stay as they are, or take their defaults.
        columns: names, the primary key's among them.
        rows: a value for each of the columns.
    """
    keys = [column.name for column in table.primary_key]
    insert = _insert(connection, table)
    statement = insert.on_conflict_do_update(
        index_elements=keys, set_={name: insert.excluded[name] for name in columns if name not in keys}
    )
    run(connection, statement, columns, rows)


def run(connection: sa.Connection, statement: sa.sql.dml.UpdateBase, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Run a statement once a row, whose values are those of the bound parameters `names`."""
    if not rows:
        return
    compiled = statement.compile(dialect=connection.dialect, column_keys=list(names))
    sql = str(compiled)
    if compiled.positional:
        assert compiled.positiontup is not None
        order = [names.index(name) for name in compiled.positiontup]
        straight = order == list(range(len(names)))
        connection.exec_driver_sql(sql, list(rows) if straight else [tuple(row[at] for at in order) for row in rows])
    else:
        connection.exec_driver_sql(sql, [dict(zip(names, row, strict=True)) for row in rows])


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT of this database's kind: how to replace a row is the same in both, and in no standard."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
