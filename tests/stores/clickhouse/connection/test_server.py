"""A store on a server: rights, TLS, connections that break, a server that is away, and who may write."""

import itertools
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
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    with ClickHouse(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def database(server: ClickHouse) -> str:
    name = f"fleet_{next(_numbers)}"
    server.make(name)
    return name


def opened(dsn: str, hub: str = "", retention: Retention | None = None) -> ClickHouseStore:
    store = ClickHouseStore.open(dsn)
    try:
        store.migrate(retention, hub)
    except StoreError:
        store.close()
        raise
    return store


def told(watts: float, machine: str = "m") -> list[AcceptedBatch]:
    values = {"gpu_power_watts": watts, "gpu_name": "H200"}
    sample = Sample(view=gpu(0), reader="nvml", lane=Lane.FAST, measured_at=T0, values=values)  # type: ignore[arg-type]
    return [accept("c", machine, [sample])]


def powers(store: ClickHouseStore) -> list[object]:
    return [stored.sample.values["gpu_power_watts"] for stored in store.latest("c", "m")]


def rows(server: ClickHouse, database: str) -> dict[str, int]:
    """Return how many rows there are physically: a double shows."""
    tables = ("samples", "latest", "info", "views")
    return {name: server.ask(f"SELECT count() FROM {database}.{name}")[0][0] for name in tables}


def granted() -> list[str]:
    """Return what the manual says that the user needs."""
    block = MANUAL.read_text().split("<!-- tested: grants -->")[1].split("```")[1]
    return re.findall(r"GRANT (.*) TO gpufleet;", block)


# --- opening


def test_what_is_wrong_with_a_dsn_is_said_with_what_to_do(server: ClickHouse, database: str) -> None:
    for dsn, words in (
        (server.dsn(database, password="wrong"), r"AUTHENTICATION_FAILED"),
        (server.dsn("nowhere"), "CREATE DATABASE"),
    ):
        with pytest.raises(StoreError, match=words) as refused:
            opened(dsn)
        assert "for url" not in str(refused.value)
        assert "wrong" not in str(refused.value)


def test_the_grants_of_the_manual_are_enough(tmp_path: Path) -> None:
    with ClickHouse(tmp_path) as server:
        dsn = server.make("gpufleet")
        server.stop()
        server.may(granted())
        server.start()
        with pytest.raises(StoreError, match="ACCESS_DENIED"):
            opened(server.dsn("default"))  # they are of that database alone
        for days in (12_000, 0):  # TTLs are made, and taken away
            kept = Retention(raw_days=days, rollup_1m_days=days, rollup_1h_days=days)
            with closing(opened(dsn, "hub", kept)) as store:
                store.write(told(100.0), f"t{days}", is_retry=True)
                store.roll_up(T0 + 3 * HOUR_NS)
                assert powers(store) == [100.0]
                assert store.select("SELECT gpu_power_watts FROM fleet_latest").rows == [(100.0,)]
                assert store.stats()["samples"].rows
            server.ask("CREATE OR REPLACE VIEW gpufleet.fleet_events AS SELECT 1")  # another build's


def test_a_user_who_may_only_read_is_refused_at_the_start(tmp_path: Path) -> None:
    with ClickHouse(tmp_path) as server:
        dsn = server.make("fleet")
        for grants, readonly, code in (
            ((), 1, r"is readonly"),
            ((), 2, r"\(READONLY\).*docs/operations/databases.md"),
            (("SELECT ON fleet.*",), 0, r"CREATE TABLE ON fleet\..*docs/operations/databases.md"),
        ):
            server.stop()
            server.may(grants, readonly=readonly)
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
        for options, words in (
            ("", "does not respond"),
            ("?secure=1", "CERTIFICATE_VERIFY_FAILED"),
            (f"?secure=1&ca={other.file}", "CERTIFICATE_VERIFY_FAILED"),
            (f"?secure=1&ca={tmp_path}/none.pem", "none.pem"),
        ):
            with pytest.raises(StoreError, match=words):
                ClickHouseStore.open(server.dsn("default", options=options))


# --- connections that break, and a server that is away


LOST = ("latest", "after")
"""Where what was to be counted is there, and the answer was lost."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("table", ["samples", "latest"])
def test_what_was_cut_in_the_middle_of_an_insert_is_there_once(
    server: ClickHouse, database: str, table: str, when: str
) -> None:
    with closing(opened(server.dsn(database), "hub-a")) as store:
        assert store.known_gpus() == {}
        server.lose(table, when, times=2)
        for begun in (False, True):
            with pytest.raises(StoreError, match=f"insert into {table}"):
                store.write(told(100.0), "t", is_retry=begun)
            assert store.known_gpus() == ({"c": KnownGpus(pci=None, nvml=1)} if (table, when) == LOST else {})
        store.write(told(100.0), "t", is_retry=True)
        assert powers(store) == [100.0]
        assert store.known_gpus() == {"c": KnownGpus(pci=None, nvml=1)}
        assert rows(server, database) == {"samples": 1, "latest": 1, "info": 1, "views": 1}


def test_server_killed_between_insert_and_retry_keeps_one_copy(tmp_path: Path) -> None:
    with ClickHouse(tmp_path) as server, closing(opened(server.make("fleet"))) as store:
        server.lose("latest", "before", times=1)
        with pytest.raises(StoreError, match="insert into latest"):
            store.write(told(100.0), "t")
        server.kill()
        said = []
        for _ in range(2):
            with pytest.raises(StoreError, match="refused") as refused:
                store.write(told(100.0), "t", is_retry=True)
            said.append(str(refused.value))
        assert said[0] == said[1]  # nothing in it that differs each time: a log says it once
        assert len(said[0]) < 200
        server.start()
        store.write(told(100.0), "t", is_retry=True)
        assert powers(store) == [100.0]
        assert store.known_gpus() == {"c": KnownGpus(pci=None, nvml=1)}
        assert rows(server, "fleet") == {"samples": 1, "latest": 1, "info": 1, "views": 1}


def test_a_server_that_says_nothing_is_given_up(server: ClickHouse, database: str) -> None:
    dsn = parse_dsn(server.dsn(database))
    with closing(open_connector(dsn)(seconds=1)) as handle:
        server.freeze()
        try:
            with pytest.raises(StoreError, match=r"^it: "), translate_errors("it"):
                handle.query("SELECT 1")
        finally:
            server.freeze(thaw=True)


def test_looking_for_hours_does_not_block_writes(
    server: ClickHouse, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def patient(_: Handles) -> None:
        pytest.fail("waits for an hour with the writer's lock")

    with closing(opened(server.dsn(database))) as store:
        monkeypatch.setattr(Handles, "long_running", property(patient))
        assert store.roll_up(T0) is None


# --- who may write


def test_one_hub_at_a_time_writes_to_a_database(server: ClickHouse, database: str) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(closing(opened(server.dsn(database), "hub-a")))
        stack.enter_context(closing(opened(server.dsn(database), "hub-a")))  # it was killed, and started again
        stack.enter_context(closing(opened(server.dsn(database))))  # one that only looks
        with pytest.raises(StoreError, match="hub-a"):
            opened(server.dsn(database), "hub-b")
        first.write(told(1.0), "t")
    with closing(opened(server.dsn(database), "hub-b")) as second:  # the first was stopped
        second.write(told(2.0), "u")
        with pytest.raises(StoreError, match="hub-b"):
            opened(server.dsn(database), "hub-a")


def test_a_hub_that_was_silent_for_too_long_has_lost_the_database(server: ClickHouse, database: str) -> None:
    passed = [0.0]
    with closing(ClickHouseStore.open(server.dsn(database), monotonic=lambda: passed[0])) as first:
        first.migrate(None, "hub-a")
        server.ask(  # as if its time had passed
            f"INSERT INTO {database}.writers SELECT hub, host, renewed_at + toIntervalNanosecond(1), renewed_at "
            f"FROM {database}.writers FINAL"
        )
        with closing(opened(server.dsn(database), "hub-b")) as second:
            first.write(told(1.0), "t")  # it is not time to look yet
            assert first.known_gpus()["c"] == KnownGpus(pci=None, nvml=1)
            passed[0] += RENEWAL_SECONDS
            with pytest.raises(StoreError, match="hub-b"):
                first.write(told(2.0), "u")
            with pytest.raises(StoreError, match="hub-b"):
                first.roll_up(T0 + 3 * HOUR_NS)
            second.write(told(3.0, "n"), "v")
            assert first.known_gpus()["c"] == KnownGpus(pci=None, nvml=2)  # nothing is kept by one that lost it
        first.write(told(4.0), "w")  # the second was stopped
        with pytest.raises(StoreError, match="hub-a"):
            opened(server.dsn(database), "hub-b")
    assert 2 * RENEWAL_SECONDS < LEASE_SECONDS


def test_a_refused_hub_leaves_the_database_to_the_other(server: ClickHouse, database: str) -> None:
    with closing(opened(server.dsn(database), "hub-a")) as first:
        with pytest.raises(StoreError):
            opened(server.dsn(database), "hub-b")
        with closing(opened(server.dsn(database), "hub-a")) as again:
            again.write(told(3.0), "t")
        first.write(told(3.0), "t")


# --- giving up


def test_hang_up_ends_statements_on_an_unresponsive_server(server: ClickHouse, database: str) -> None:
    with closing(opened(server.dsn(database), "hub-a")) as store, ThreadPoolExecutor(2) as threads:
        store.write(told(1.0), "t")
        server.freeze()
        try:
            hour = threads.submit(store.roll_up, T0 + 3 * HOUR_NS)
            question = threads.submit(store.readers, "c", "m")
            store.abort_requests()
            for asked in (hour, question):
                with pytest.raises(StoreError):
                    asked.result(timeout=60)
            with pytest.raises(StoreError):
                store.write(told(2.0), "u")
        finally:
            server.freeze(thaw=True)
    with closing(opened(server.dsn(database), "hub-b")) as other:  # the last word came through: it is free
        assert powers(other) == [1.0]


def test_an_hour_that_is_being_made_is_given_up_and_made_later(server: ClickHouse, database: str) -> None:
    begun = threading.Event()

    def stopped() -> bool:
        server.freeze()  # from here on the hour waits
        begun.set()
        return False

    with closing(opened(server.dsn(database))) as store, ThreadPoolExecutor(1) as thread:
        store.write(told(1.0), "t")
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


def test_closing_waits_for_a_silent_server_for_seconds(server: ClickHouse, database: str) -> None:
    store = opened(server.dsn(database), "hub-a")
    server.freeze()
    try:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(store.close).result(timeout=60)
    finally:
        server.freeze(thaw=True)
    with pytest.raises(StoreError, match="hub-a"):  # its row ends by itself
        opened(server.dsn(database), "hub-b")
