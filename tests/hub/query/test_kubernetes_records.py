"""State of the collection of a cluster's Kubernetes objects."""

from typing import Any

import pytest

from gpufleet.fleet.cluster_objects import OBJECT_TTL_NS
from gpufleet.hub.query.kubernetes_records import NEVER, cluster_collection
from gpufleet.model.api.kubernetes import CollectionState
from gpufleet.model.kubernetes import CopyState, CopyStatus
from gpufleet.model.stored.kubernetes import StoredCollector
from gpufleet.model.time import NANOS
from tests.support.holdings import T0


def copy(state: CopyState = CopyState.SYNCED, **fields: Any) -> CopyStatus:
    return CopyStatus(resource="pods", state=state, since=T0 - 60 * NANOS, **fields)


def collector(sender: str = "a", at: int = T0, **fields: Any) -> StoredCollector:
    given = {"system_uid": "u", "server_version": "v1.36.2", "copies": (copy(),), **fields}
    return StoredCollector(sender=sender, observed_at=at, reported_at=at, **given)


@pytest.mark.parametrize(
    ("collectors", "expected"),
    [
        ([], CollectionState.ABSENT),
        ([collector()], CollectionState.CURRENT),
        ([collector(at=T0 - OBJECT_TTL_NS)], CollectionState.CURRENT),
        ([collector(at=T0 - OBJECT_TTL_NS - 1)], CollectionState.ABSENT),
        ([collector(), collector("b")], CollectionState.CURRENT),
        ([collector(), collector("b", system_uid="")], CollectionState.CURRENT),
        ([collector(), collector("b", system_uid="v")], CollectionState.CONFLICT),
        ([collector(), collector("b", at=T0 - OBJECT_TTL_NS - 1, system_uid="v")], CollectionState.CURRENT),
        ([collector(copies=(copy(CopyState.FORBIDDEN),))], CollectionState.PARTIAL),
        ([collector(copies=(copy(CopyState.NOT_SERVED),))], CollectionState.CURRENT),
        ([collector(copies=(copy(is_complete=False),))], CollectionState.PARTIAL),
        ([collector(copies=(copy(rejected=1),))], CollectionState.PARTIAL),
        # the copies of an earlier leader do not count
        ([collector(copies=(copy(CopyState.STALE),)), collector("b", at=T0 - NANOS)], CollectionState.CURRENT),
        # an earlier leader that ended hides nothing
        ([collector(copies=(copy(CopyState.STALE),)), collector("b", at=T0 - 61 * NANOS)], CollectionState.PARTIAL),
    ],
)  # fmt: skip
def test_state_of_a_cluster(collectors: list[StoredCollector], expected: CollectionState) -> None:
    found = cluster_collection(collectors, T0)
    assert found.state is expected
    assert bool(found.detail) is (expected is not CollectionState.CURRENT)
    assert (found.detail == NEVER) is (not collectors)


@pytest.mark.parametrize(
    ("state", "age"),
    [(CopyState.SYNCED, 10), (CopyState.STALE, 70), (CopyState.FORBIDDEN, 70), (CopyState.STARTING, None)],
)
def test_age_of_a_copy(state: CopyState, age: float | None) -> None:
    (found,) = cluster_collection([collector(copies=(copy(state),))], T0 + 10 * NANOS).collectors
    assert (found.age_seconds, found.copies[0].age_seconds) == (10, age)
