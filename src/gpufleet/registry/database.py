"""The database of a registry: SQLite by default, PostgreSQL by DSN, with fast bulk writes.

A flush writes one to three rows per reporting sender. SQLAlchemy processes each value of each row; `upsert` and
`execute_rows` only use it to render the statement and pass the rows to the driver unchanged: texts, integers, bytes and
NULL.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from gpufleet.model.errors import RegistryError
from gpufleet.registry import migrations
from gpufleet.registry.tables import VERSION

T = TypeVar("T")

_BUSY_MILLISECONDS = 10_000


class Database:
    """Transactions on a database. Thread-safe, and safe to use beside other processes."""

    def __init__(self, engine: sa.Engine, file: Path | None = None) -> None:
        """Take the engine, and the file of an SQLite database."""
        self._engine = engine
        self._file = file
        self._file_id: tuple[int, int] | None = None

    @classmethod
    def open(cls, dsn: str) -> Self:
        """Open by SQLAlchemy DSN: `sqlite:////path/to/registry.sqlite` or `postgresql+psycopg://...`.

        Raises:
            RegistryError: if the DSN or its driver is not usable, or the SQLite file has 0 bytes.
        """
        file = sqlite_file(dsn)
        if file is not None and file.is_file() and file.stat().st_size == 0:
            raise RegistryError(
                f"registry {file}: the file has 0 bytes, so its contents are lost: restore it from a backup "
                "(docs/operations/backup.md), or delete it to start with an empty registry"
            )
        try:
            engine = sa.create_engine(dsn)
        except (ArgumentError, NoSuchModuleError) as error:
            raise RegistryError(f"the registry's DSN cannot be used: {error}") from error
        except ValueError:  # not shown: its message may contain a part of the password
            raise RegistryError(
                "the registry's DSN cannot be used: its port is not a number. In user and password, write characters "
                "other than letters and digits as %XX"
            ) from None
        except ImportError as error:
            raise RegistryError(
                f"the registry's driver is not installed ({error}): for postgresql+psycopg:// install "
                "gpufleet[hub,postgres]"
            ) from error
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", _set_pragmas)
            sa.event.listen(engine, "begin", _begin)
        return cls(engine, file)

    @property
    def is_file(self) -> bool:
        """Return whether the database is a file, which one process writes."""
        return self._file is not None

    def migrate(self) -> None:
        """Bring the schema to this build's version; see `migrations.migrate`. Raises RegistryError."""
        with self.writing() as connection:
            migrations.migrate(connection)

    def version(self) -> int:
        """Return the schema version, 0 if there is no schema yet. Raises RegistryError."""
        with self.reading() as connection:
            if not sa.inspect(connection).has_table(VERSION.name):
                return 0
            return int(connection.execute(sa.select(VERSION.c.version)).scalar_one_or_none() or 0)

    def damage(self) -> str:
        """Return the problems that SQLite's integrity check finds, or an empty text. Reads the whole file.

        Always empty for PostgreSQL, which checks its own files. Raises RegistryError.
        """
        if self._engine.dialect.name != "sqlite":
            return ""
        with self.reading() as connection:
            found = connection.exec_driver_sql("PRAGMA integrity_check(10)").scalars().all()
        return "" if found == ["ok"] else "; ".join(map(str, found))

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a read-only transaction, which does not wait for writers. Raises RegistryError."""
        with self._transaction(reading=True) as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a read-write transaction, durable when the context ends. Raises RegistryError."""
        self._check_file()
        with self._transaction(reading=False) as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def _check_file(self) -> None:
        """Check that the path still names the file of the first write: SQLite goes on writing to a deleted file."""
        if self._file is None:
            return
        try:
            status = self._file.stat()
            found = (status.st_dev, status.st_ino)
        except FileNotFoundError:
            found = None
        if self._file_id is not None and found != self._file_id:
            raise RegistryError(
                f"registry {self._file}: the file was deleted or replaced while it was open: "
                "restore it from a backup, and restart"
            )
        self._file_id = found

    @contextlib.contextmanager
    def _transaction(self, *, reading: bool) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect().execution_options(reading=reading) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            # The driver's message: SQLAlchemy's includes the statement and its values, which must not reach a log.
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise RegistryError(f"registry {self._engine.url!r}: {cause}") from error


def sqlite_file(dsn: str) -> Path | None:
    """Return the file of an SQLite DSN; None for another database, an in-memory one, or an invalid DSN."""
    try:
        url = sa.make_url(dsn)
    except (ArgumentError, ValueError):
        return None  # `Database.open` reports the error
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
    # A deferred transaction cannot safely turn from reading to writing, so a writing one takes the lock at once.
    reading = connection.get_execution_options().get("reading")
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


Row = tuple[str | int | bytes | None, ...]

_ROWS_PER_FETCH = 10_000


def read_rows(connection: sa.Connection, table: sa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield all rows of a table, in any order, with values in the order of its columns."""
    for row in connection.execute(sa.select(table), execution_options={"yield_per": _ROWS_PER_FETCH}):
        yield tuple(row)


def record_decoder(table: sa.Table, type_: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes the records of a table. It raises RegistryError for a damaged record."""
    decode = msgspec.msgpack.Decoder(type_).decode

    def decode_record(content: bytes) -> T:
        try:
            return decode(content)
        except (msgspec.DecodeError, TypeError) as error:
            raise RegistryError(
                f"table {table.name}: a record is damaged ({error}): restore the registry from a backup"
            ) from error

    return decode_record


def upsert(connection: sa.Connection, table: sa.Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Insert rows, or update the rows with the same primary key.

    Args:
        connection: in a transaction.
        table: the table; columns that are not named keep their values, or take their defaults.
        columns: column names, including the primary key.
        rows: a value for each column.
    """
    keys = [column.name for column in table.primary_key]
    insert = _insert(connection, table)
    statement = insert.on_conflict_do_update(
        index_elements=keys, set_={name: insert.excluded[name] for name in columns if name not in keys}
    )
    execute_rows(connection, statement, columns, rows)


def execute_rows(
    connection: sa.Connection, statement: sa.sql.dml.UpdateBase, names: Sequence[str], rows: Sequence[Row]
) -> None:
    """Execute a statement once per row; `names` are the bound parameters in the order of a row's values."""
    if not rows:
        return
    compiled = statement.compile(dialect=connection.dialect, column_keys=list(names))
    sql = str(compiled)
    if compiled.positional:
        assert compiled.positiontup is not None
        order = [names.index(name) for name in compiled.positiontup]
        in_order = order == list(range(len(names)))
        connection.exec_driver_sql(sql, list(rows) if in_order else [tuple(row[at] for at in order) for row in rows])
    else:
        connection.exec_driver_sql(sql, [dict(zip(names, row, strict=True)) for row in rows])


def storable_text(text: str) -> str:
    """Replace NUL in external text: PostgreSQL cannot store it."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}")


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT with ON CONFLICT, which both dialects have and standard SQL lacks."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
