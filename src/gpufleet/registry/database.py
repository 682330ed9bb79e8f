"""The database behind a registry: SQLite by default, PostgreSQL by DSN.

Many rows with one statement, without what SQLAlchemy does with each of them.

A flush writes a row or three of every sender that spoke. SQLAlchemy looks at each value on its way; here it renders the
statement, and the driver is handed the rows as they are: texts, integers and bytes.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from gpufleet.model.errors import RegistryError
from gpufleet.registry import migrations
from gpufleet.registry.tables import VERSION

_BUSY_MILLISECONDS = 10_000


class Database:
    """Transactions; safe to use from several threads, and beside other processes."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, dsn: str) -> Self:
        """Open by SQLAlchemy DSN: `sqlite:////path/to/registry.sqlite` or `postgresql+psycopg://...`.

        Raises:
            RegistryError: if the DSN or its driver is unknown.
        """
        try:
            engine = sa.create_engine(dsn)
        except (ArgumentError, NoSuchModuleError) as error:
            raise RegistryError(f"the registry's DSN cannot be used: {error}") from error
        except ImportError as error:
            raise RegistryError(
                f"the registry's driver is not installed ({error}): for postgresql+psycopg:// install "
                "gpufleet[hub,postgres]"
            ) from error
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", _set_pragmas)
            sa.event.listen(engine, "begin", _begin)
        return cls(engine)

    def migrate(self) -> None:
        """Bring the schema to this build's version; see `migrations.migrate`."""
        with self.writing() as connection:
            migrations.migrate(connection)

    def version(self) -> int:
        """Return the schema's version, 0 where there is none yet. Raises RegistryError."""
        with self.reading() as connection:
            if not sa.inspect(connection).has_table(VERSION.name):
                return 0
            return int(connection.execute(sa.select(VERSION.c.version)).scalar_one_or_none() or 0)

    def damage(self) -> str:
        """Return what the database's own check of its files finds, empty for nothing. Reads all of an SQLite file.

        A server checks its own files: there the answer is always empty. Raises RegistryError.
        """
        if self._engine.dialect.name != "sqlite":
            return ""
        with self.reading() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check(10)").scalars().all()
        return "" if found == ["ok"] else "; ".join(map(str, found))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads: it waits for no writer. Raises RegistryError."""
        with self._transaction(reading=True) as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that may write; durable when the context ends. Raises RegistryError."""
        with self._transaction(reading=False) as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _transaction(self, *, reading: bool) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect().execution_options(reading=reading) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            # The database's own words: SQLAlchemy's name the statement and its values, which belong in no log.
            words = error.orig if isinstance(error, DBAPIError) else error
            raise RegistryError(f"registry {self._engine.url!r}: {words}") from error


def sqlite_file(dsn: str) -> Path | None:
    """Return the file of an SQLite DSN; None for another database, one in memory, or no DSN at all."""
    try:
        url = sa.make_url(dsn)
    except ArgumentError:
        return None  # opening says what is wrong with it
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def _set_pragmas(connection: sa.engine.interfaces.DBAPIConnection, _record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy's begin event below opens transactions, not the driver
    cursor = connection.cursor()
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        f"busy_timeout = {_BUSY_MILLISECONDS}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    # A transaction that starts reading cannot safely go on to write; one that only reads need not wait for writers.
    reading = connection.get_execution_options().get("reading")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


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
