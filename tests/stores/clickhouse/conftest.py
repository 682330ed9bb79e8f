"""One embedded store for the whole run: a process can open one folder only. Tests keep apart by cluster."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.stores.clickhouse import ClickHouseStore


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "db"


@pytest.fixture(scope="session")
def store(folder: Path) -> Iterator[ClickHouseStore]:
    store = ClickHouseStore.open(f"chdb://{folder}")
    store.migrate()
    yield store
    store.close()


_numbers = itertools.count(1)


@pytest.fixture
def cluster() -> str:
    return f"cluster-{next(_numbers)}"
