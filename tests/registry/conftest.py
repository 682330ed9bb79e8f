"""Registry databases: SQLite files and a PostgreSQL server. Every test with `dsn` runs on both."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.postgres import Postgres

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres(peer: Callable[[str], Path]) -> Iterator[Postgres]:
    with Postgres(peer("postgres").parent) as server:
        yield server


@pytest.fixture
def make_dsn(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that creates a database, `sqlite` or `postgresql`, and returns its DSN."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / 'registry.sqlite'}"
        server: Postgres = request.getfixturevalue("postgres")
        return server.make(f"registry_{next(_numbers)}")

    return make


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def dsn(request: pytest.FixtureRequest, make_dsn: Callable[[str], str]) -> str:
    return make_dsn(request.param)


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'registry.sqlite'}"
