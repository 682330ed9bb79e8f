"""Store on a server: grants, TLS, broken connections, an unreachable server, and the writer's lease."""

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import StoreError
from gpufleet.model.reading import Sample
from gpufleet.model.stored.retention import Retention
from gpufleet.model.stored.samples import AcceptedBatch, KnownGpus
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.connection.client import Handles, open_connector, translate_errors
from gpufleet.stores.clickhouse.connection.dsn import parse_dsn
from gpufleet.stores.clickhouse.connection.lease import LEASE_SECONDS, RENEWAL_SECONDS
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS
from tests.support.accepted import accept
from tests.support.authority import Authority
from tests.support.clickhouse.process import ClickHouse
from tests.support.passes import gpu

T0 = 1_700_000_000 * NANOS
MANUAL = Path(__file__).parents[4] / "docs" / "operations" / "databases.md"
SHARED = "shared"
"""Database of the tests that need no server of their own. Creating its tables takes a second of processor time."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    with ClickHouse(tmp_path_factory.mktemp("server")) as server:
        with closing(opened(server.make(SHARED))):
            pass
        yield server


@pytest.fixture(scope="module")
def tables_with_schema(server: ClickHouse) -> list[str]:
    """Return the tables that have rows in an empty store."""
    return tables_with_rows(server)


@pytest.fixture
def database(server: ClickHouse, tables_with_schema: list[str]) -> str:
    """Return the name of a database with the tables of a store and no rows."""
    for table in tables_with_rows(server):
        if table not in tables_with_schema:
            server.query(f"TRUNCATE TABLE {SHARED}.{table}")
    return SHARED


def tables_with_rows(server: ClickHouse) -> list[str]:
    """Return the tables of the shared database that have rows."""
    query = f"SELECT name FROM system.tables WHERE database = '{SHARED}' AND total_rows > 0"
    return [name for (name,) in server.query(query)]


def opened(dsn: str, hub: str = "", retention: Retention | None = None) -> ClickHouseStore:
    store = ClickHouseStore.open(dsn)
    try:
        store.migrate(retention, hub)
    except StoreError:
        store.close()
        raise
    return store


def power_batch(watts: float, machine: str = "m") -> list[AcceptedBatch]:
    values = {"gpu_power_watts": watts, "gpu_name": "H200"}
    sample = Sample(view=gpu(0), reader="nvml", lane=Lane.FAST, measured_at=T0, values=values)  # type: ignore[arg-type]
    return [accept("c", machine, [sample])]


def powers(store: ClickHouseStore) -> list[object]:
    return [stored.sample.values["gpu_power_watts"] for stored in store.latest("c", "m")]


def rows(server: ClickHouse, database: str) -> dict[str, int]:
    """Return the physical number of rows: duplicates are counted."""
    tables = ("samples", "latest", "info", "views")
    return {name: server.query(f"SELECT count() FROM {database}.{name}")[0][0] for name in tables}


def granted() -> list[str]:
    """Return the grants that the manual lists."""
    block = MANUAL.read_text().split("<!-- tested: grants -->")[1].split("```")[1]
    return re.findall(r"GRANT (.*) TO gpufleet;", block)


# --- opening


def test_errors_of_a_dsn_name_the_cause_without_the_password(server: ClickHouse, database: str) -> None:
    for dsn, expected in (
        (server.dsn(database, password="wrong"), r"AUTHENTICATION_FAILED"),
        (server.dsn("nowhere"), "CREATE DATABASE"),
    ):
        with pytest.raises(StoreError, match=expected) as refused:
            opened(dsn)
        assert "for url" not in str(refused.value)
        assert "wrong" not in str(refused.value)


def test_grants_of_the_manual_are_sufficient(tmp_path: Path) -> None:
    with ClickHouse(tmp_path) as server:
        dsn = server.make("gpufleet")
        server.stop()
        server.set_rights(granted())
        server.start()
        with pytest.raises(StoreError, match="ACCESS_DENIED"):
            opened(server.dsn("default"))  # the grants cover one database
        for days in (12_000, 0):  # TTLs are added, then removed
            kept = Retention(raw_days=days, rollup_1m_days=days, rollup_1h_days=days)
            with closing(opened(dsn, "hub", kept)) as store:
                store.write(power_batch(100.0), f"t{days}", is_retry=True)
                store.roll_up(T0 + 3 * HOUR_NS)
                assert powers(store) == [100.0]
                assert store.select("SELECT gpu_power_watts FROM fleet_latest").rows == [(100.0,)]
                assert store.stats()["samples"].rows
            server.query("CREATE OR REPLACE VIEW gpufleet.fleet_events AS SELECT 1")  # the view of another build


def test_read_only_user_is_refused_at_the_start(tmp_path: Path) -> None:
    with ClickHouse(tmp_path) as server:
        dsn = server.make("fleet")
        for grants, readonly, code in (
            ((), 1, r"is readonly"),
            ((), 2, r"\(READONLY\).*docs/operations/databases.md"),
            (("SELECT ON fleet.*",), 0, r"CREATE TABLE ON fleet\..*docs/operations/databases.md"),
        ):
            server.stop()
            server.set_rights(grants, readonly=readonly)
            server.start()
            with pytest.raises(StoreError, match=code):
                opened(dsn)


def test_tls_verifies_the_server_with_the_ca_of_the_dsn(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    authority.issue(certificate, key)
    with ClickHouse(tmp_path / "server", tls=(certificate, key)) as server:
        with closing(ClickHouseStore.open(server.dsn("default", options=f"?secure=1&ca={authority.file}"))) as store:
            assert store.schema_version() == 0
        for options, expected in (
            ("", "does not respond"),
            ("?secure=1", "CERTIFICATE_VERIFY_FAILED"),
            (f"?secure=1&ca={other.file}", "CERTIFICATE_VERIFY_FAILED"),
            (f"?secure=1&ca={tmp_path}/none.pem", "none.pem"),
        ):
            with pytest.raises(StoreError, match=expected):
                ClickHouseStore.open(server.dsn("default", options=options))


# --- broken connections and an unreachable server


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("table", ["samples", "latest"])
def test_interrupted_insert_is_stored_once_after_retries(
    server: ClickHouse, database: str, table: str, when: str
) -> None:
    with closing(opened(server.dsn(database), "hub-a")) as store:
        assert store.known_gpus() == {}
        server.break_inserts(table, when, times=2)
        for is_retry in (False, True):
            with pytest.raises(StoreError, match=f"insert into {table}"):
                store.write(power_batch(100.0), "t", is_retry=is_retry)
            assert store.known_gpus() == {}  # the repetition of the write adds the rows to memory
        store.write(power_batch(100.0), "t", is_retry=True)
        assert powers(store) == [100.0]
        assert store.known_gpus() == {"c": KnownGpus(pci=None, nvml=1)}
        assert rows(server, database) == {"samples": 1, "latest": 1, "info": 1, "views": 1}


def test_server_killed_between_insert_and_retry_keeps_one_copy(tmp_path: Path) -> None:
    with ClickHouse(tmp_path) as server, closing(opened(server.make("fleet"))) as store:
        server.break_inserts("latest", "before", times=1)
        with pytest.raises(StoreError, match="insert into latest"):
            store.write(power_batch(100.0), "t")
        server.kill()
        messages = []
        for _ in range(2):
            with pytest.raises(StoreError, match="refused") as refused:
                store.write(power_batch(100.0), "t", is_retry=True)
            messages.append(str(refused.value))
        assert messages[0] == messages[1]  # nothing that differs each time: repeated log lines can be suppressed
        assert len(messages[0]) < 200
        server.start()
        store.write(power_batch(100.0), "t", is_retry=True)
        assert powers(store) == [100.0]
        assert store.known_gpus() == {"c": KnownGpus(pci=None, nvml=1)}
        assert rows(server, "fleet") == {"samples": 1, "latest": 1, "info": 1, "views": 1}


def test_query_on_a_frozen_server_times_out(server: ClickHouse, database: str) -> None:
    dsn = parse_dsn(server.dsn(database))
    with closing(open_connector(dsn)(seconds=1)) as handle:
        server.freeze()
        try:
            with pytest.raises(StoreError, match=r"^it: "), translate_errors("it"):
                handle.query("SELECT 1")
        finally:
            server.freeze(thaw=True)


def test_search_for_due_hours_does_not_block_writes(
    server: ClickHouse, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def patient(_: Handles) -> None:
        pytest.fail("computes an hour while holding the writer's lock")

    with closing(opened(server.dsn(database))) as store:
        monkeypatch.setattr(Handles, "long_running", property(patient))
        assert store.roll_up(T0) is None


# --- the writer's lease


def test_one_hub_at_a_time_writes_to_a_database(server: ClickHouse, database: str) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(closing(opened(server.dsn(database), "hub-a")))
        stack.enter_context(closing(opened(server.dsn(database), "hub-a")))  # killed and restarted
        stack.enter_context(closing(opened(server.dsn(database))))  # a reader without lease
        with pytest.raises(StoreError, match="hub-a"):
            opened(server.dsn(database), "hub-b")
        first.write(power_batch(1.0), "t")
    with closing(opened(server.dsn(database), "hub-b")) as second:  # the first was stopped
        second.write(power_batch(2.0), "u")
        with pytest.raises(StoreError, match="hub-b"):
            opened(server.dsn(database), "hub-a")


def test_hub_with_an_expired_lease_cannot_write(server: ClickHouse, database: str) -> None:
    passed = [0.0]
    with closing(ClickHouseStore.open(server.dsn(database), monotonic=lambda: passed[0])) as first:
        first.migrate(None, "hub-a")
        first.write(power_batch(1.0), "s")
        server.query(  # as if the lease had expired
            f"INSERT INTO {database}.writers SELECT hub, host, renewed_at + toIntervalNanosecond(1), renewed_at "
            f"FROM {database}.writers FINAL"
        )
        with closing(opened(server.dsn(database), "hub-b")) as second:
            first.write(power_batch(1.5), "t")  # the lease is not due for renewal yet
            assert first.known_gpus()["c"] == KnownGpus(pci=None, nvml=1)
            passed[0] += RENEWAL_SECONDS
            with pytest.raises(StoreError, match="hub-b"):
                first.write(power_batch(2.0), "u")
            with pytest.raises(StoreError, match="hub-b"):
                first.roll_up(T0 + 3 * HOUR_NS)
            second.write(power_batch(3.0, "n"), "v")
            assert first.known_gpus()["c"] == KnownGpus(pci=None, nvml=2)  # a hub without lease caches nothing
        first.write(power_batch(4.0), "w")  # the second was stopped
        with pytest.raises(StoreError, match="hub-a"):
            opened(server.dsn(database), "hub-b")
    assert 2 * RENEWAL_SECONDS < LEASE_SECONDS


def test_refused_hub_does_not_take_the_lease(server: ClickHouse, database: str) -> None:
    with closing(opened(server.dsn(database), "hub-a")) as first:
        with pytest.raises(StoreError):
            opened(server.dsn(database), "hub-b")
        with closing(opened(server.dsn(database), "hub-a")) as again:
            again.write(power_batch(3.0), "t")
        first.write(power_batch(3.0), "t")


# --- aborting requests


def test_hang_up_ends_statements_on_an_unresponsive_server(server: ClickHouse, database: str) -> None:
    with closing(opened(server.dsn(database), "hub-a")) as store, ThreadPoolExecutor(2) as threads:
        store.write(power_batch(1.0), "t")
        server.freeze()
        try:
            hour = threads.submit(store.roll_up, T0 + 3 * HOUR_NS)
            query = threads.submit(store.readers, "c", "m")
            store.abort_requests()
            for request in (hour, query):
                with pytest.raises(StoreError):
                    request.result(timeout=60)
            with pytest.raises(StoreError):
                store.write(power_batch(2.0), "u")
        finally:
            server.freeze(thaw=True)
    with closing(opened(server.dsn(database), "hub-b")) as other:  # the lease was released
        assert powers(other) == [1.0]


def test_aborted_hour_is_computed_later(server: ClickHouse, database: str) -> None:
    begun = threading.Event()

    def stopped() -> bool:
        server.freeze()  # from here on the rollup blocks
        begun.set()
        return False

    with closing(opened(server.dsn(database))) as store, ThreadPoolExecutor(1) as thread:
        store.write(power_batch(1.0), "t")
        hour = thread.submit(store.roll_up, time.time_ns() + HOUR_NS, stopped)
        try:
            assert begun.wait(60)
            store.abort_requests()
            with pytest.raises(StoreError, match="rollup"):
                hour.result(timeout=60)
        finally:
            server.freeze(thaw=True)
    with closing(opened(server.dsn(database))) as again:
        assert again.roll_up(time.time_ns() + HOUR_NS) is not None


def test_close_waits_only_seconds_for_a_frozen_server(server: ClickHouse, database: str) -> None:
    store = opened(server.dsn(database), "hub-a")
    server.freeze()
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(store.close).result(timeout=60)
    finally:
        server.freeze(thaw=True)
    with pytest.raises(StoreError, match="hub-a"):  # its lease expires by itself
        opened(server.dsn(database), "hub-b")
