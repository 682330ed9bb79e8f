"""Clusters in the registry: put, register, close."""

import datetime as dt
from collections.abc import Iterator

import pytest

from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.errors import NotFoundError
from gpufleet.registry.sql import SqlRegistry

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LATER = AT + dt.timedelta(hours=1)
SPEC = ClusterSpec(environment="production", team="blue", contact="ops@example.org", expected={"H200": 64})


@pytest.fixture
def registry(dsn: str) -> Iterator[SqlRegistry]:
    registry = SqlRegistry.open(dsn)
    registry.migrate()
    registry.load()
    yield registry
    registry.close()


def test_cluster_is_new_on_its_first_put_only(registry: SqlRegistry) -> None:
    first, is_new = registry.put_cluster("a", SPEC, AT)
    assert (first.spec, first.known_since, is_new) == (SPEC, AT, True)
    second, is_new = registry.put_cluster("a", ClusterSpec(), LATER)
    assert (second.spec, second.known_since, is_new) == (ClusterSpec(), AT, False)
    assert registry.cluster("a") == second


def test_configured_cluster_can_be_registered(registry: SqlRegistry) -> None:
    registry.register_clusters(["a"], 10**18)
    assert registry.cluster("a").spec is None
    cluster, is_new = registry.put_cluster("a", SPEC, LATER)
    assert (cluster.spec, is_new, len(registry.clusters())) == (SPEC, True, 1)
    registry.register_clusters(["a"], 10**18 + 1)
    assert registry.cluster("a") == cluster


def test_closed_cluster_keeps_its_data_and_a_put_reopens_it(registry: SqlRegistry) -> None:
    registry.put_cluster("a", SPEC, AT)
    closed = registry.close_cluster("a", LATER)
    assert (closed.closed_at, closed.spec) == (LATER, SPEC)
    assert registry.close_cluster("a", LATER + dt.timedelta(hours=1)) == closed
    opened, is_new = registry.put_cluster("a", SPEC, LATER)
    assert (opened.closed_at, is_new) == (None, False)


def test_unknown_cluster_is_not_found(registry: SqlRegistry) -> None:
    with pytest.raises(NotFoundError, match="'a'"):
        registry.cluster("a")
    with pytest.raises(NotFoundError, match="'a'"):
        registry.close_cluster("a", AT)
