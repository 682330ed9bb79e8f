"""Stores of this package's tests: an embedded one and one on a server.

A process can open only one folder, so the embedded store is shared by the whole run. Tests are separated by cluster.
Tests with the fixture `store` run on both stores, or only on the embedded one if they are marked as `costly`.
Tests with the fixture `embedded` run on the embedded store only.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.clickhouse.process import ClickHouse


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "db"


@pytest.fixture(scope="session")
def embedded(folder: Path) -> Iterator[ClickHouseStore]:
    store = ClickHouseStore.open(f"chdb://{folder}")
    store.migrate()
    yield store
    store.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    with ClickHouse(tmp_path_factory.mktemp("server"), zone="America/St_Johns") as server:
        yield server


@pytest.fixture(scope="session")
def on_server(shared_server: ClickHouse) -> Iterator[ClickHouseStore]:
    store = ClickHouseStore.open(shared_server.make("fleet"))
    store.migrate()
    yield store
    store.close()


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> ClickHouseStore:
    store: ClickHouseStore = request.getfixturevalue(request.param)
    return store


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run costly tests on the embedded store only: they show nothing about the connection to a server."""
    if "store" in metafunc.fixturenames:
        is_costly = metafunc.definition.get_closest_marker("costly") is not None
        stores = ["embedded"] if is_costly else ["embedded", "on_server"]
        metafunc.parametrize("store", stores, indirect=True, scope="session")


_numbers = itertools.count(1)


@pytest.fixture
def cluster() -> str:
    return f"cluster-{next(_numbers)}"
