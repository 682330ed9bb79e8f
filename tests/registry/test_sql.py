"""SQL registry: machines, allocations, pending flushes and retirement, on every supported database."""

import contextlib
import datetime as dt
from array import array
from collections.abc import Iterator

import msgspec
import pytest
import sqlalchemy as sa

from gpufleet.model.allocation import AllocationKind, AllocationSpec, Target
from gpufleet.model.errors import ConflictError, NotFoundError, RegistryError
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.stored.ledger import (
    FlushIntent,
    MachineCounts,
    MachineFreshnessColumns,
    NewestReport,
    ProcessSpan,
    SenderState,
    SequenceKey,
    SequenceState,
    SucceededMachine,
)
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.registry import tables
from gpufleet.registry.database import Database
from gpufleet.registry.machine_rows import count_machines
from gpufleet.registry.machines import EXPIRY_NS
from gpufleet.registry.migrations import MIGRATIONS
from gpufleet.registry.sql import SqlRegistry
from tests.support.postgres import Postgres

NOW = 10**18
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SPEC = AllocationSpec(kind=AllocationKind.BARE_METAL, target=Target(cluster="local", machine="node-a"))
ONE = Machine(name="node-a", machine_id="a" * 32, system_uuid="u1", boot_id="b1")
OTHER = Machine(name="node-b", machine_id="a" * 32, system_uuid="u2", boot_id="b2")
INTENT = FlushIntent(wal="w" * 32, token="t", records={1: ("m-1",)})


def opened(dsn: str) -> SqlRegistry:
    registry = SqlRegistry.open(dsn)
    registry.migrate()
    registry.load()
    registry.register_clusters(["local"], NOW)
    return registry


@pytest.fixture
def registry(dsn: str) -> Iterator[SqlRegistry]:
    registry = opened(dsn)
    yield registry
    registry.close()


def test_migrations_create_the_tables_of_the_queries(registry: SqlRegistry, dsn: str) -> None:
    engine = sa.create_engine(dsn)
    found = sa.inspect(engine)
    assert set(found.get_table_names()) == set(tables.METADATA.tables)
    for name, table in tables.METADATA.tables.items():
        columns = {column["name"]: column for column in found.get_columns(name)}
        assert set(columns) == {column.name for column in table.columns}
        assert found.get_pk_constraint(name)["constrained_columns"] == [one.name for one in table.primary_key]
        nullable = {column.name for column in table.columns if column.nullable}
        assert {name for name, column in columns.items() if column["nullable"]} - {"id", "wal", "number"} == nullable
    engine.dispose()


def contents(dsn: str) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of all tables, as another client reads them."""
    engine = sa.create_engine(dsn)
    with engine.connect() as connection:
        found = {
            name: sorted((tuple(row) for row in connection.execute(sa.select(table))), key=repr)
            for name, table in tables.METADATA.tables.items()
        }
    engine.dispose()
    return found


def test_opening_a_registry_again_changes_nothing(dsn: str) -> None:
    registry = opened(dsn)
    registry.put_allocation("a", SPEC, AT)
    registry.close()
    before = contents(dsn)
    assert all(before[name] for name in ("clusters", "allocations", "schema_version"))
    again = SqlRegistry.open(dsn)
    again.migrate()
    again.load()
    again.register_clusters(["local"], NOW + 1)
    again.close()
    assert contents(dsn) == before


def test_registry_knows_whether_it_has_machines_before_their_load(dsn: str) -> None:
    for has_machines in (False, True):
        registry = SqlRegistry.open(dsn)
        registry.migrate()
        assert registry.has_machines() is has_machines
        assert registry.machines() == ()
        registry.load()
        assert [one.machine.name for one in registry.machines()] == ["node-a"][:has_machines]
        registry.register_clusters(["local"], NOW)
        registry.match("local", "s", ONE, NOW)
        registry.begin_flush(INTENT)  # writes the machine
        registry.close()


def test_newer_schema_is_rejected(dsn: str) -> None:
    opened(dsn).close()
    engine = sa.create_engine(dsn)
    with engine.begin() as connection:
        connection.execute(tables.VERSION.update().values(version=len(MIGRATIONS) + 1))
    engine.dispose()
    registry = SqlRegistry.open(dsn)
    with pytest.raises(RegistryError, match=str(len(MIGRATIONS) + 1)):
        registry.migrate()
    registry.close()


def test_sqlite_is_opened_with_durable_settings(sqlite: str) -> None:
    registry = opened(sqlite)
    with registry._database._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    registry.close()


@pytest.mark.parametrize(
    "wrong",
    [
        "nonsense",
        "mystery://x",
        "sqlite:////nowhere/at/all/registry.sqlite",
        "postgresql+psycopg://user:secret@/nowhere?host=/nowhere/at/all",
    ],
)
def test_error_of_an_unusable_dsn_has_no_password(wrong: str) -> None:
    with pytest.raises(RegistryError) as refused:
        opened(wrong)
    assert "secret" not in str(refused.value)


def test_machines_survive_a_restart_with_their_ids(dsn: str) -> None:
    first = opened(dsn)
    id_ = first.match("local", "s", ONE, NOW).id
    first.begin_flush(INTENT)
    first.close()
    again = opened(dsn)
    assert again.match("local", "s", ONE, NOW + NANOS).id == id_
    record = again.machine(id_)
    assert record.machine == ONE
    assert record.first_seen < record.last_seen
    again.close()


def test_clone_is_a_conflict_on_both_machines_over_a_restart(dsn: str) -> None:
    first = opened(dsn)
    ids = [first.match("local", "s", machine, NOW).id for machine in (ONE, OTHER)]
    first.begin_flush(INTENT)
    first.close()
    again = opened(dsn)
    conflicts = {record.id: record.conflict for record in again.machines("local")}
    assert set(conflicts) == set(ids)
    assert all(other in (conflicts[id_] or "") for id_, other in zip(ids, reversed(ids), strict=True))
    again.close()


def test_conflict_ends_when_the_evidence_is_fixed(registry: SqlRegistry) -> None:
    registry.match("local", "s", ONE, NOW)
    other = registry.match("local", "s", OTHER, NOW)
    assert other.conflict is not None
    fixed = msgspec.structs.replace(OTHER, machine_id="b" * 32)
    assert registry.match("local", "s", fixed, NOW + NANOS) == type(other)(other.id)


def test_equal_machines_of_two_clusters_are_separate(registry: SqlRegistry) -> None:
    registry.register_clusters(["other"], NOW)
    assert registry.match("local", "s", ONE, NOW).id != registry.match("other", "s", ONE, NOW).id
    assert len(registry.machines()) == 2
    assert len(registry.machines("other")) == 1


def test_unknown_machine_is_not_found(registry: SqlRegistry) -> None:
    with pytest.raises(NotFoundError):
        registry.machine("m-none")
    known = registry.match("local", "s", ONE, NOW).id
    assert registry.machine_names([known, "m-none"]) == {known: ONE.name}


def test_repeated_evidence_moves_last_seen_forward(registry: SqlRegistry) -> None:
    id_ = registry.match("local", "s", ONE, NOW).id
    registry.match("local", "s", ONE, NOW + 5 * NANOS)
    registry.match("local", "s", ONE, NOW + 2 * NANOS)  # late data does not move it back
    assert registry.machine(id_).last_seen - registry.machine(id_).first_seen == dt.timedelta(seconds=5)


def test_last_seen_survives_a_restart(dsn: str) -> None:
    registry = opened(dsn)
    for at in (NOW, NOW + NANOS, NOW + 2 * NANOS):
        one = registry.match("local", "node-a", ONE, at)
        other = registry.match("local", "node-b", OTHER, at)
        registry.begin_flush(INTENT)
    registry.match("local", "node-b", msgspec.structs.replace(OTHER, instance_id="i"), NOW + 3 * NANOS)
    registry.begin_flush(INTENT)
    registry.close()
    registry = opened(dsn)
    assert registry.machine(one.id).last_seen == to_datetime(NOW + 2 * NANOS)
    assert registry.machine(other.id).last_seen == to_datetime(NOW + 3 * NANOS)
    assert registry.machine(other.id).machine.instance_id == "i"
    assert registry.machine(other.id).first_seen == to_datetime(NOW)
    registry.close()


def test_changed_allocation_gets_a_new_generation(registry: SqlRegistry) -> None:
    first, is_new = registry.put_allocation("a", SPEC, AT)
    assert (first.generation, is_new, first.spec.valid_from) == (1, True, AT)
    again, is_new = registry.put_allocation("a", SPEC, AT + dt.timedelta(hours=1))
    assert (again, is_new) == (first, False)
    changed = msgspec.structs.replace(SPEC, team="blue")
    second, is_new = registry.put_allocation("a", changed, AT + dt.timedelta(hours=2))
    assert (second.generation, is_new, second.spec.valid_from, second.created_at) == (2, False, AT, AT)
    assert registry.allocation("a") == second
    assert registry.allocations() == (second,)


def test_closed_allocation_keeps_its_data_and_stays_closed(registry: SqlRegistry, dsn: str) -> None:
    registry.put_allocation("a", SPEC, AT)
    registry.put_allocation("a", msgspec.structs.replace(SPEC, team="blue"), AT)
    closed = registry.close_allocation("a", AT)
    assert closed.closed_at == AT
    assert registry.close_allocation("a", AT + dt.timedelta(days=1)) == closed
    assert registry.allocation("a") == closed
    with pytest.raises(ConflictError, match="'a'"):
        registry.put_allocation("a", SPEC, AT)
    with registry._database._engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(tables.ALLOCATIONS)) == 2


def test_unknown_allocations_are_not_found(registry: SqlRegistry) -> None:
    for query in (registry.allocation, lambda id_: registry.close_allocation(id_, AT)):
        with pytest.raises(NotFoundError):
            query("none")


def test_flush_is_pending_until_it_is_finished(dsn: str) -> None:
    key = SequenceKey("local", "s", "e" * 32)
    newest = NewestReport(epoch="e" * 32, seq=3, sent_at=1, received_at=2)
    first = opened(dsn)
    assert first.pending_flush(INTENT.wal) is None
    first.begin_flush(INTENT)
    first.close()
    second = opened(dsn)
    assert second.pending_flush(INTENT.wal) == INTENT
    assert second.pending_flush("other") is None
    state = SenderState(cluster="local", sender="s", newest_report=newest)
    held = SequenceState(ranges=((1, 4),), digests=bytes(20), processes=(ProcessSpan(7, 1, 4),), top=(4, 5))
    second.finish_flush(INTENT, {key: SequenceState(ranges=((1, 3),))}, [state])
    second.finish_flush(INTENT, {key: held}, [state])
    second.close()
    third = opened(dsn)
    assert third.pending_flush(INTENT.wal) is None
    assert third.sequences() == {key: held}
    assert third.senders() == (state,)
    third.close()


def test_hundreds_of_machines_are_saved_together(dsn: str) -> None:
    first = opened(dsn)
    machines = [Machine(name=f"n{n}", machine_id=f"{n:032x}", boot_id=f"b{n}") for n in range(1200)]
    ids = [first.match("local", "s", machine, NOW).id for machine in machines]
    first.begin_flush(INTENT)
    first.close()
    assert len(set(ids)) == len(machines)
    again = opened(dsn)
    assert [again.match("local", "s", machine, NOW).id for machine in machines] == ids
    again.close()


def test_allocation_of_another_tenant_looks_missing(registry: SqlRegistry) -> None:
    registry.put_allocation("a", msgspec.structs.replace(SPEC, tenant="acme"), AT)
    registry.put_allocation("b", SPEC, AT)
    assert registry.allocation("a", "acme").id == "a"
    assert [one.id for one in registry.allocations("acme")] == ["a"]
    assert registry.allocations("other") == ()
    messages = set()
    for id_ in ("a", "b", "c"):
        with pytest.raises(NotFoundError) as refused:
            registry.allocation(id_, "other")
        messages.add(str(refused.value).replace(f"'{id_}'", "ID"))
    assert len(messages) == 1


def test_allocation_cannot_move_to_another_tenant(registry: SqlRegistry) -> None:
    registry.put_allocation("a", SPEC, AT)
    mine = msgspec.structs.replace(SPEC, tenant="acme")
    assert registry.put_allocation("a", mine, AT)[0].generation == 2
    for tenant in ("other", None):
        with pytest.raises(ConflictError, match="'a'"):
            registry.put_allocation("a", msgspec.structs.replace(SPEC, tenant=tenant), AT)


def test_retirement_survives_a_restart_until_a_report(dsn: str) -> None:
    machine = Machine(name="node-a", machine_id="a" * 32)
    registry = opened(dsn)
    id_ = registry.match("local", "s", machine, NOW).id
    with pytest.raises(NotFoundError, match="'m-none'"):
        registry.retire_machine("m-none", NOW)
    record = registry.retire_machine(id_, NOW + 5)  # before the first flush
    assert record.retired_at == to_datetime(NOW + 5)
    registry.begin_flush(FlushIntent(wal="w", token="t", records={}))
    registry.close()
    registry = opened(dsn)
    (found,) = registry.machine_freshness("local")
    assert (found.id, found.sender, found.last_seen) == (id_, "s", NOW)
    assert (found.retired_at, found.is_retired) == (NOW + 5, True)
    assert registry.machine_freshness("other") == ()
    registry.match("local", "s", machine, NOW + 6)
    (found,) = registry.machine_freshness()
    assert not found.is_retired
    registry.retire_machine(id_, NOW + 7)
    registry.match("local", "s", machine, NOW + 3)  # late report
    assert registry.machine_freshness()[0].is_retired
    registry.close()


def test_freshness_columns_equal_the_freshness_rows(dsn: str) -> None:
    registry = opened(dsn)
    registry.register_clusters(["other"], NOW)
    plain, gone, *_ = (
        registry.match("local", name, Machine(name=name, machine_id=name[0] * 32, boot_id=name), NOW).id
        for name in ("plain", "gone", "twin", "twin-2", "twin")  # the first twin reports again after the second
    )
    registry.match_named("local", "importer", Machine(name="named"), NOW, NOW)
    registry.match("other", "s", Machine(name="elsewhere"), NOW)
    registry.retire_machine(gone, NOW + 5)
    for _ in range(2):
        rows = {one.id: one for one in registry.machine_freshness("local")}
        freshness = registry.machine_freshness_columns("local")
        columns = {id_: freshness.at("local", number) for number, id_ in enumerate(freshness.ids)}
        assert {**columns, **{one.id: one for one in freshness.others}} == rows
        assert plain in columns
        assert not columns.keys() & {one.id for one in freshness.others}
        assert len(freshness.ids) + len(freshness.others) == len(rows) >= 4
        assert gone not in columns
        assert any(one.conflict for one in freshness.others)
        assert any(one.named_only for one in freshness.others)
        empty = MachineFreshnessColumns(ids=[], senders=[], last_seen=array("q"))
        assert registry.machine_freshness_columns("nowhere") == empty
        registry.begin_flush(FlushIntent(wal="w", token="t", records={}))
        registry.close()
        registry = opened(dsn)
    registry.close()


def test_clock_step_before_a_second_retirement_does_not_undo_it(registry: SqlRegistry, dsn: str) -> None:
    """A report notes the clamped first retirement; the second is committed before the note is saved."""
    id_ = registry.match("local", "s", ONE, NOW).id
    registry.begin_flush(INTENT)
    ahead = NOW + 3600 * NANOS
    registry.retire_machine(id_, ahead)
    registry.match("local", "s", ONE, NOW + 1, NOW + 1)
    registry.retire_machine(id_, NOW + 50)
    registry.begin_flush(INTENT)
    assert registry.machine(id_).retired_at == to_datetime(NOW + 50)
    reopened = opened(dsn)
    assert reopened.machine(id_).retired_at == to_datetime(NOW + 50)
    reopened.close()


def test_removed_machine_is_retired_until_a_report_or_its_return(dsn: str) -> None:
    registry = opened(dsn)
    id_ = registry.match("local", "s", ONE, NOW).id
    registry.expire_machine(id_)
    registry.begin_flush(INTENT)
    registry.close()
    registry = opened(dsn)
    assert (registry.machine(id_).retired_at, registry.machine(id_).is_retired) == (to_datetime(NOW), True)
    assert registry.machine_counts().by_cluster == {}
    registry.match("local", "s", ONE, NOW + NANOS)
    assert not registry.machine(id_).is_retired
    registry.expire_machine(id_)
    registry.revive_expired(id_)
    registry.begin_flush(INTENT)
    registry.close()
    registry = opened(dsn)
    assert registry.machine(id_).retired_at is None
    assert registry.machine_counts().by_cluster == {"local": 1}
    registry.close()


def test_repeated_imports_under_the_old_name_are_no_reports_after_a_restart(dsn: str) -> None:
    registry = opened(dsn)
    id_ = registry.match("local", "s", ONE, NOW).id
    registry.match("local", "import", Machine(name=ONE.name), NOW + 1)
    registry.match("local", "import", Machine(name="new"), NOW + 2)
    registry.begin_flush(INTENT)
    assert registry.match("local", "import", Machine(name=ONE.name), NOW + 3).id == id_
    registry.begin_flush(INTENT)
    registry.close()
    registry = opened(dsn)
    returned = NOW + 300 * NANOS
    assert registry.match("local", "s", msgspec.structs.replace(ONE, name="new"), returned).id == id_
    assert [one.successor for one in registry.succeeded_machines()] == [id_]
    registry.close()


def test_succession_outlasts_a_further_bearer_of_the_name(dsn: str) -> None:
    registry = opened(dsn)
    id_ = registry.match("local", "s", ONE, NOW).id
    new = msgspec.structs.replace(ONE, name="new")
    imported = registry.match("local", "import", Machine(name="new"), NOW + 1).id
    registry.match("local", "s", new, NOW + 2)
    registry.begin_flush(INTENT)
    registry.close()
    registry = opened(dsn)
    assert registry.succeeded_machines() == (SucceededMachine("local", imported, id_, NOW + 1, was_reported=True),)
    registry.match("local", "s", msgspec.structs.replace(new, name="third"), NOW + 3)
    assert registry.match("local", "import", Machine(name="new"), NOW + 4).id not in (imported, id_)
    assert registry.succeeded_machines() == (SucceededMachine("local", imported, id_, NOW + 1, was_reported=True),)
    registry.close()


def test_retirement_by_an_operator_outlasts_removal_and_return(registry: SqlRegistry) -> None:
    id_ = registry.match("local", "s", ONE, NOW).id
    registry.retire_machine(id_, NOW + 5)
    registry.expire_machine(id_)
    registry.revive_expired(id_)
    assert registry.machine(id_).retired_at == to_datetime(NOW + 5)
    for change in (registry.expire_machine, registry.revive_expired):
        with pytest.raises(NotFoundError):
            change("m-none")


def test_expired_machines_stay_retired_after_a_restart(dsn: str) -> None:
    registry = SqlRegistry(Database.open(dsn), max_machines=2)
    registry.migrate()
    registry.load()
    registry.register_clusters(["local"], NOW)
    ids = [registry.match("local", "s", one, NOW).id for one in (ONE, OTHER)]
    registry.begin_flush(INTENT)
    later = NOW + 2 * EXPIRY_NS
    registry.match("local", "s", ONE, later)
    registry.begin_flush(INTENT)
    registry.close()
    reopened = opened(dsn)
    assert [one.is_retired for id_ in ids for one in reopened.machine_freshness() if one.id == id_] == [False, True]
    expected = MachineCounts(by_cluster={"local": 1}, limit=100_000, ratios={"local": 2e-5})
    assert reopened.machine_counts() == expected
    reopened.close()
    database = Database.open(dsn)
    with database.reading() as connection:
        assert count_machines(connection, 100_000) == expected
    database.close()


def test_name_after_a_restart_begins_after_the_reports_before(dsn: str) -> None:
    """The clock of the renamed machine shows a time of before them."""
    registry = opened(dsn)
    id_ = registry.match("local", "s", ONE, NOW).id
    registry.begin_flush(INTENT)
    registry.match("local", "s", ONE, NOW + 1000 * NANOS)
    registry.begin_flush(INTENT)
    registry.close()
    reopened = opened(dsn)
    renamed = msgspec.structs.replace(ONE, name="node-c", boot_id="b2")
    later = NOW + 2000 * NANOS
    assert reopened.match("local", "s", renamed, later, later, NOW + 500 * NANOS).id == id_
    assert [one.name for one in reopened.past_names(id_, NOW, NOW + 1000 * NANOS)] == ["node-a"]
    assert [one.name for one in reopened.past_names(id_, later, later + 1)] == ["node-c"]
    reopened.close()


def test_freshness_of_retired_siblings_includes_their_senders(dsn: str) -> None:
    registry = opened(dsn)
    registry.register_clusters(["other"], NOW)
    found = {
        (cluster, sender, name): registry.match(cluster, sender, Machine(name=name, machine_id=name * 32), NOW).id
        for cluster, sender, name in (
            ("local", "s", "a"),
            ("local", "s", "b"),
            ("local", "t", "c"),
            ("other", "s", "d"),
        )
    }
    assert registry.machine_freshness(siblings_of_retired=True) == ()
    registry.retire_machine(found["local", "s", "b"], NOW + 5)
    for _ in range(2):
        rows = {one.id: one.is_retired for one in registry.machine_freshness(siblings_of_retired=True)}
        assert rows == {found["local", "s", "a"]: False, found["local", "s", "b"]: True}
        assert len(registry.machine_freshness("local", siblings_of_retired=True)) == 2
        assert registry.machine_freshness("other", siblings_of_retired=True) == ()
        assert len(registry.machine_freshness("local")) == 3
        registry.begin_flush(FlushIntent(wal="w", token="t", records={}))
        registry.close()
        registry = opened(dsn)
    registry.close()


def test_renamed_machine_is_listed_once(dsn: str) -> None:
    registry = opened(dsn)
    for name, machine in (("b", "1"), ("c", "2"), ("d", "3")):
        registry.match("local", "s", Machine(name=name, machine_id=machine * 32), NOW)
    later = NOW + 3600 * 10**9
    registry.match("local", "s", Machine(name="z", machine_id="1" * 32), later)
    assert [one.machine.name for one in registry.machines("local")] == ["c", "d", "z"]
    first = registry.machines("local", limit=1)[0]
    after = registry.machines(after=("local", "c", first.id), limit=9)
    assert [one.machine.name for one in after] == ["d", "z"]
    registry.close()


def test_vm_is_found_by_uuid_on_every_host(registry: SqlRegistry) -> None:
    uuid = "6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f"
    vm = Machine(name="ml/vm", kind=MachineKind.GUEST, system_uuid=uuid, hypervisor="node-a")
    first = registry.match("local", "node-a", vm, NOW).id
    moved = registry.match("local", "node-b", msgspec.structs.replace(vm, hypervisor="node-b"), NOW).id
    registry.match("local", "node-a", ONE, NOW)
    assert first != moved
    assert {one.id for one in registry.machines_with_uuid("local", uuid)} == {first, moved}
    assert registry.machines_with_uuid("other", uuid) == ()
    assert registry.machines_with_uuid("local", uuid.replace("6", "7")) == ()


def test_machines_that_share_evidence_are_found(registry: SqlRegistry) -> None:
    known = Machine(name="ip-10-0-0-1", machine_id="1" * 32, system_uuid="6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f")
    one = registry.match("local", "agent", known, NOW).id
    for evidence in (
        Machine(name="kube-a", machine_id="1" * 32),
        Machine(name="kube-a", system_uuid=known.system_uuid, machine_id="2" * 32),
        Machine(name=known.name),
    ):
        assert [found.id for found in registry.machines_sharing("local", evidence)] == [one]
        assert registry.machines_sharing("other", evidence) == ()
    assert registry.machines_sharing("local", Machine(name="kube-a")) == ()


class CountedReads(Database):
    """Database that counts its reading transactions."""

    reads = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        self.reads += 1
        with super().reading() as connection:
            yield connection


def test_refused_changes_of_allocations_read_nothing_again(sqlite: str) -> None:
    opened(sqlite).close()
    database = CountedReads.open(sqlite)
    registry = SqlRegistry(database)
    registry.put_allocation("a", SPEC, AT)
    registry.close_allocation("a", AT)
    assert registry.allocation("a").closed_at == AT
    reads = database.reads
    for change in (lambda: registry.put_allocation("a", SPEC, AT), lambda: registry.close_allocation("b", AT)):
        with pytest.raises((ConflictError, NotFoundError)):
            change()
    assert registry.allocation("a").closed_at == AT
    assert database.reads == reads
    registry.close()


@pytest.mark.system
def test_change_by_another_hub_is_seen_on_a_database_server(postgres: Postgres) -> None:
    dsn = postgres.make("two_hubs")
    one, other = opened(dsn), opened(dsn)
    one.put_allocation("a", SPEC, AT)
    assert one.allocation("a").closed_at is None
    other.close_allocation("a", AT)
    assert one.allocation("a").closed_at == AT
    assert [found.closed_at for found in one.allocations()] == [AT]
    one.close()
    other.close()


class UnansweredCommits(Database):
    """Database whose commits succeed, and then the connection is lost."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        with super().writing() as connection:
            yield connection
        raise RegistryError("the connection was lost")


def test_allocation_of_an_unanswered_commit_is_read_again(sqlite: str) -> None:
    opened(sqlite).close()
    registry = SqlRegistry(UnansweredCommits.open(sqlite))
    assert registry.allocations() == ()
    with pytest.raises(RegistryError):
        registry.put_allocation("a", SPEC, AT)
    assert registry.allocation("a").spec.target == SPEC.target
    registry.close()
