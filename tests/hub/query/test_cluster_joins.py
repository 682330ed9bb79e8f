"""Joins with the objects of Kubernetes clusters: several clusters, and more pods than fit in a query."""

from typing import Any, cast

import pytest

from gpufleet.hub.query import cluster_joins
from gpufleet.hub.query.cluster_joins import ClusterJoins
from gpufleet.hub.query.targets import MachineLookup
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.kubernetes import ClusterNode
from gpufleet.model.machine import Machine
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import ClusterPart
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore
from tests.support.cluster_objects import accept_part, pod
from tests.support.holdings import T0


class Lookup:
    """Machines that are named like their ids."""

    def with_ids(self, cluster: str, ids: set[str]) -> list[MachineRecord]:
        at = to_datetime(T0)
        return [
            MachineRecord(id=id_, cluster=cluster, machine=Machine(name=id_), sender="s", first_seen=at, last_seen=at)
            for id_ in sorted(ids)
        ]


def held(id_: str, cluster: str = "c", kind: HolderKind = HolderKind.POD) -> StoredHolding:
    holding = Holding(
        view="gpu/GPU-1",
        holder=Holder(kind=kind, id=id_),
        since=T0,
        methods=("kubelet",),
        verdict=HoldingVerdict.AGREED,
    )
    return StoredHolding(cluster=cluster, machine="m", holding=holding, reported_at=T0)


@pytest.fixture
def joins() -> ClusterJoins:
    store = MemoryStore()
    pods = [pod(f"u{number}", name=f"p{number}", node="m", created=T0, queue=f"q{number}") for number in range(9)]
    part = ClusterPart(observed_at=T0, pods=pods, nodes=[ClusterNode(uid="n", name="m")])
    other = ClusterPart(observed_at=T0, pods=[pod("u1", name="other", queue="other")])
    store.write([accept_part("c", part, at=T0), accept_part("d", other, at=T0)], "t")
    return ClusterJoins(store=store, lookup=cast(MachineLookup, Lookup()), clock=FakeClock(T0 + NANOS))


HOLDINGS = [
    *(held(f"u{number}") for number in (8, 1, 4, 1, 99)),
    held("u1", "d"),
    held("ml/p3"),
    held("ml/p99"),
    held("u2", kind=HolderKind.JOB),
]


def queues(found: Any) -> list[str]:
    return [one.holding.holder.queue for one in found]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_holdings_keep_their_order(joins: ClusterJoins, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_joins, "CHUNK", chunk)
    found = joins.complete(HOLDINGS)
    assert queues(found) == ["q8", "q1", "q4", "q1", "", "other", "q3", "", ""]
    assert found[4] == HOLDINGS[4]
    assert found[6].holding.holder.id == "u3"
    assert found[7:] == tuple(HOLDINGS[7:])


def test_too_many_names_are_not_identified(joins: ClusterJoins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_joins, "MAX_NAMED", 1)
    assert queues(joins.complete(HOLDINGS)) == ["q8", "q1", "q4", "q1", "", "other", "", "", ""]
