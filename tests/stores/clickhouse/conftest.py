"""One embedded store for the whole run, for a process can open one folder only, and one on a server, by its DSN.

Tests keep apart by cluster. What is asked of `store` is asked of both, unless it is marked as
`costly`; what is asked of `embedded`, of the one in the folder alone.
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
def on_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseStore]:
    with ClickHouse(tmp_path_factory.mktemp("server"), zone="America/St_Johns") as server:
        store = ClickHouseStore.open(server.make("fleet"))
        store.migrate()
        yield store
        store.close()


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> ClickHouseStore:
    store: ClickHouseStore = request.getfixturevalue(request.param)
    return store


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have what takes long, and shows nothing of the way to a server, done on the embedded store alone."""
    if "store" in metafunc.fixturenames:
        is_costly = metafunc.definition.get_closest_marker("costly") is not None
        where = ["embedded"] if is_costly else ["embedded", "on_server"]
        metafunc.parametrize("store", where, indirect=True, scope="session")


_numbers = itertools.count(1)


@pytest.fixture
def cluster() -> str:
    return f"cluster-{next(_numbers)}"
