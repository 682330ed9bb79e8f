"""A registry of every earlier version moves forward with what is in it; that version wrote `golden/versionN.sql`."""

import datetime as dt
import sqlite3
from pathlib import Path

import pytest

from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.errors import RegistryError
from gpufleet.model.machine import Machine
from gpufleet.model.stored.ledger import FlushIntent, Held, SequenceKey
from gpufleet.registry.database import Database, sqlite_file
from gpufleet.registry.migrations import NEWEST
from gpufleet.registry.sql import SqlRegistry
from gpufleet.registry.tokens import SqlTokens

GOLDEN = Path(__file__).parent / "golden"
NOW = 10**18
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def written_by(version: int, folder: Path) -> str:
    file = folder / "registry.sqlite"
    connection = sqlite3.connect(file)
    connection.executescript((GOLDEN / f"version{version}.sql").read_text())
    connection.close()
    return f"sqlite:///{file}"


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_earlier_version_moves_forward_with_everything_in_it(tmp_path: Path, version: int) -> None:
    registry = SqlRegistry.open(written_by(version, tmp_path))
    registry.migrate()
    registry.migrate()  # again changes nothing
    assert {one.id: (one.spec, one.closed_at) for one in registry.clusters()} == {
        "local": (None, None),
        "other": (None, None),
    }
    kept = {one.id: one for one in registry.allocations()}
    assert (kept["a"].generation, kept["a"].spec.tenant, kept["a"].closed_at) == (2, "acme", None)
    assert kept["b"].closed_at == AT + dt.timedelta(hours=2)
    machines = registry.machines()
    assert [one.machine.name for one in machines] == ["node-a", "node-b"]
    assert all(one.conflict for one in machines)
    known = Machine(name="node-a", machine_id="a" * 32, system_uuid="u1", boot_id="b1")
    assert registry.match("local", "s", known, NOW).id == machines[0].id
    assert registry.sequences() == {SequenceKey("local", "s", "e" * 32): Held(ranges=((1, 3), (5, 9)))}
    assert registry.pending_flush("w" * 32) == FlushIntent(wal="w" * 32, token="t", records={1: ("m-1",)})
    assert [(one.sender, one.heard.seq) for one in registry.senders()] == [("s", 9)]
    registry.put_cluster("local", ClusterSpec(team="blue"), AT)
    registry.begin_flush(FlushIntent(wal="w" * 32, token="u", records={}))
    registry.close()


def test_tokens_can_be_made_in_a_registry_that_moved_forward(tmp_path: Path) -> None:
    database = Database.open(written_by(1, tmp_path))
    database.migrate()
    assert SqlTokens(database).tokens() == ()
    database.close()


def test_a_step_that_fails_leaves_the_version_before_it(tmp_path: Path) -> None:
    dsn = written_by(1, tmp_path)
    file = tmp_path / "registry.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE audit (in_the_way INTEGER)")
    connection.close()
    database = Database.open(dsn)
    with pytest.raises(RegistryError, match="audit"):
        database.migrate()
    database.close()
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
        assert [row[1] for row in connection.execute("PRAGMA table_info(clusters)")] == ["id", "registered_at"]
        connection.execute("DROP TABLE audit")
    connection.close()
    database.migrate()
    database.close()


def test_version_and_damage_of_a_registry_can_be_asked_for(tmp_path: Path) -> None:
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
def test_the_file_of_a_dsn(dsn: str, file: Path | None) -> None:
    assert sqlite_file(dsn) == file
