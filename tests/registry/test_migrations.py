"""Registry migrations: forward only and atomic; version and damage of a file."""

import sqlite3
from pathlib import Path

import pytest

from gpufleet.model.errors import RegistryError
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import FlushIntent
from gpufleet.registry import migrations
from gpufleet.registry.database import Database, sqlite_file
from gpufleet.registry.migrations import MIGRATIONS, NEWEST
from gpufleet.registry.sql import SqlRegistry

NOW = 10**18
NEXT_STEP = ("ALTER TABLE machines ADD COLUMN rack TEXT", "CREATE TABLE racks (id TEXT PRIMARY KEY)")


def make_registry(folder: Path) -> tuple[str, Path]:
    """Create a registry of this build with one machine."""
    file = folder / "registry.sqlite"
    dsn = f"sqlite:///{file}"
    registry = SqlRegistry.open(dsn)
    registry.migrate()
    registry.load()
    registry.register_clusters(["local"], NOW)
    registry.match("local", "s", Machine(name="node-a"), NOW)
    registry.begin_flush(FlushIntent(wal="w" * 32, token="t", records={}))
    registry.close()
    return dsn, file


def version_and_columns(file: Path) -> tuple[int, list[str]]:
    connection = sqlite3.connect(file)
    version = connection.execute("SELECT version FROM schema_version").fetchone()[0]
    columns = [row[1] for row in connection.execute("PRAGMA table_info(machines)")]
    connection.close()
    return version, columns


def test_new_migration_is_applied_once_and_keeps_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dsn, file = make_registry(tmp_path)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, NEXT_STEP))
    for _ in range(2):
        registry = SqlRegistry.open(dsn)
        registry.migrate()
        registry.load()
        assert [one.machine.name for one in registry.machines()] == ["node-a"]
        registry.close()
        version, columns = version_and_columns(file)
        assert (version, columns[-1]) == (NEWEST + 1, "rack")


def test_failed_migration_keeps_the_previous_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dsn, file = make_registry(tmp_path)
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE racks (in_the_way INTEGER)")
    connection.close()
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, NEXT_STEP))
    database = Database.open(dsn)
    with pytest.raises(RegistryError, match="racks"):
        database.migrate()
    database.close()
    version, columns = version_and_columns(file)
    assert version == NEWEST
    assert "rack" not in columns
    with sqlite3.connect(file) as connection:
        connection.execute("DROP TABLE racks")
    connection.close()
    database.migrate()
    assert database.version() == NEWEST + 1
    database.close()


def test_version_and_damage_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "r.sqlite"
    database = Database.open(f"sqlite:///{file}")
    assert database.version() == 0
    database.migrate()
    assert (database.version(), database.damage()) == (NEWEST, "")
    database.close()
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET rootpage = 2 WHERE name = 'senders'")
    database = Database.open(f"sqlite:///{file}")
    assert database.damage()
    database.close()


@pytest.mark.parametrize(
    ("dsn", "file"),
    [
        ("sqlite:////a/b.sqlite", Path("/a/b.sqlite")),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("postgresql+psycopg://user:password@host/db", None),
        ("nonsense", None),
    ],
)
def test_file_of_a_dsn(dsn: str, file: Path | None) -> None:
    assert sqlite_file(dsn) == file
