"""Objects of Kubernetes in the store: round trip, newest state over collectors, and selection."""

import itertools
import time
from random import Random

import msgspec
import pytest

from gpufleet.fleet.cluster_objects import OBJECT_TTL_NS, end_of, is_present, judged_at, listed_objects
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.kubernetes import ClusterPod, CopyState, CopyStatus
from gpufleet.model.stored.holdings import HoldingQuery
from gpufleet.model.stored.kubernetes import ObjectKind, ObjectQuery, StoredCollector, StoredObject
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import LATEST, NANOS
from gpufleet.model.wire.batch import ClusterPart, MachinePart, RemovedObject
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.codecs.batch.cluster_parts import PART
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept
from tests.support.cluster_objects import accept_part, pod
from tests.support.holdings import HOSTILE, T0

_tokens = itertools.count(1)

Stores = ClickHouseStore | MemoryStore


def put(store: Stores, *batches: AcceptedBatch) -> None:
    store.write(batches, f"objects-{next(_tokens)}")


def pods(store: Stores, cluster: str, **changes: object) -> tuple[StoredObject, ...]:
    query = ObjectQuery(cluster=cluster, kind=ObjectKind.POD)
    return store.cluster_objects(msgspec.structs.replace(query, **changes))


def removal(uid: str, at: int) -> RemovedObject:
    return RemovedObject("pods", uid, at)


def test_every_kind_of_object_comes_back(store: ClickHouseStore, cluster: str) -> None:
    put(store, accept_part(cluster, PART, at=PART.observed_at + 5))
    listed = list(listed_objects(PART))
    assert [kind for kind, _ in listed] == list(ObjectKind)
    for kind, record in listed:
        expected = (StoredObject(cluster=cluster, record=record, known_at=PART.observed_at),)
        assert store.cluster_objects(ObjectQuery(cluster=cluster, kind=kind)) == expected
        assert store.cluster_objects(ObjectQuery(cluster="other", kind=kind)) == ()


def test_collectors_come_back_newest_first(store: ClickHouseStore, cluster: str) -> None:
    late = ClusterPart(observed_at=T0, copies=PART.copies)
    put(store, accept_part(cluster, PART, at=T0 + 3), accept_part(cluster, late, at=T0 + 2))
    put(store, accept_part(cluster, late, at=T0 + 5, sender="b"))
    put(store, accept_part(cluster, ClusterPart(observed_at=T0 + 9), at=T0 + 9, sender="b"))  # without status
    first = StoredCollector(
        sender="b", observed_at=T0, reported_at=T0 + 5, system_uid="", server_version="", copies=tuple(PART.copies)
    )
    second = StoredCollector(
        sender="collector",
        observed_at=PART.observed_at,
        reported_at=T0 + 3,
        system_uid=PART.system_uid,
        server_version=PART.server_version,
        copies=tuple(PART.copies),
    )
    assert store.collectors([cluster, "other"]) == {cluster: (first, second)}
    assert store.collectors([]) == {}


def test_ended_object_keeps_its_last_state(store: ClickHouseStore, cluster: str) -> None:
    one = pod("p", queue=HOSTILE)
    put(store, accept_part(cluster, ClusterPart(observed_at=T0, pods=[one]), at=T0))
    put(store, accept_part(cluster, ClusterPart(observed_at=T0 + 9, removed=[removal("p", T0 + 8)]), at=T0 + 9))
    put(store, accept_part(cluster, ClusterPart(observed_at=T0 + 1, pods=[one]), at=T0 + 1))  # late
    expected = (StoredObject(cluster=cluster, record=one, known_at=T0 + 1, ended_at=T0 + 8),)
    assert pods(store, cluster) == expected
    store._handles.writer.command("OPTIMIZE TABLE cluster_objects FINAL")  # merges can run at any time
    assert pods(store, cluster) == expected
    put(store, accept_part(cluster, ClusterPart(observed_at=T0 + 20, pods=[one]), at=T0 + 20))  # has GPUs again
    assert pods(store, cluster)[0].ended_at is None


def test_objects_are_selected_by_uid_or_name(store: ClickHouseStore, cluster: str) -> None:
    listed = [pod("p", name="a"), pod("q", name="b"), pod("r", name="a", namespace="other")]
    put(store, accept_part(cluster, ClusterPart(observed_at=T0, pods=listed), at=T0))
    for changes, expected in (
        ({"uids": ("p", "x")}, {"p"}),
        ({"names": ("ml/a",)}, {"p"}),
        ({"names": ("ml/b",), "uids": ("r",)}, {"q", "r"}),
        ({"names": (), "uids": ()}, set()),
        ({"names": (), "uids": ("p",)}, {"p"}),
        ({"since": T0}, {"p", "q", "r"}),
        ({"since": T0 + 1}, set()),
    ):
        assert {one.record.uid for one in pods(store, cluster, **changes)} == expected, changes


def test_backlog_of_an_earlier_leader_replaces_nothing(store: ClickHouseStore, cluster: str) -> None:
    new = pod("p", phase="Running")
    put(store, accept_part(cluster, ClusterPart(observed_at=T0 + 9, pods=[new]), at=T0 + 9, sender="b"))
    put(store, accept_part(cluster, ClusterPart(observed_at=T0, pods=[pod("p")]), at=T0 + 50, sender="a"))
    assert pods(store, cluster) == (StoredObject(cluster=cluster, record=new, known_at=T0 + 9),)


def test_holders_are_selected_by_texts_that_only_their_cluster_has(store: ClickHouseStore, cluster: str) -> None:
    memory = MemoryStore()
    holders = [
        Holder(kind=HolderKind.POD, id="p"),
        Holder(kind=HolderKind.POD, id="q", namespace="own", queue="own"),
        Holder(kind=HolderKind.JOB, id="p"),
        Holder(kind=HolderKind.POD, id="r"),
        Holder(kind=HolderKind.POD, id="ml/p", namespace="ml", name="p"),
    ]
    part = MachinePart(machine=0, holdings=[held(one) for one in holders])
    listed = [pod("p", queue="x"), pod("q", queue="x"), pod("p", queue="y")]
    for each in (store, memory):
        each.write([accept(cluster, "m", part=part, reported_at=T0)], f"held-{next(_tokens)}")
        for at, one in enumerate(listed):
            put(each, accept_part(cluster, ClusterPart(observed_at=T0 + at, pods=[one]), at=T0 + at))
        put(each, accept_part(f"{cluster}-other", ClusterPart(observed_at=T0, pods=[pod("r", queue="x")]), at=T0))
    for changes, expected in (
        ({"queue": "y"}, ["ml/p", "p"]),
        ({"queue": "own"}, ["q"]),
        ({"namespace": "ml"}, ["ml/p", "p"]),
        ({"namespace": "ml", "queue": "z"}, []),
        ({"name": "p", "kind": HolderKind.POD}, ["ml/p", "p"]),
    ):
        query = msgspec.structs.replace(HoldingQuery(cluster=cluster, start=0, end=LATEST), **changes)
        found = store.holdings(query)
        assert found == memory.holdings(query)
        assert [(one.holding.holder.kind, one.holding.holder.id) for one in found] == [
            (HolderKind.POD, id_) for id_ in expected
        ], changes


def held(holder: Holder) -> Holding:
    return Holding(view="gpu/GPU-1", holder=holder, since=T0, methods=("kubelet",), verdict=HoldingVerdict.AGREED)


class World:
    """Pods of a cluster over time, and the batches that its collectors send."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = T0
        self.pods: dict[str, ClusterPod] = {}
        self.removed: dict[str, int] = {}
        self.changed: set[str] = set()
        self.gone: list[RemovedObject] = []
        self.sent: dict[str, list[ClusterPart]] = {}
        self.leader = "collector-0"

    def step(self) -> None:
        self.now += self.random.randrange(1, 400) * NANOS
        for _ in range(self.random.randrange(4)):
            uid = f"pod-{self.random.randrange(8)}"
            if uid in self.removed:
                continue
            if uid in self.pods and self.random.random() < 0.4:
                del self.pods[uid]
                self.changed.discard(uid)
                self.removed[uid] = self.now
                self.gone.append(removal(uid, self.now))
            else:
                self.pods[uid] = pod(uid, phase=f"phase-{self.now}")
                self.changed.add(uid)
        self.now += NANOS
        if self.random.random() < 0.15:  # another replica leads, and lists everything
            self.leader = f"collector-{self.random.randrange(3)}"
            self.gone.clear()
            self.send(repeat=True)
        else:
            self.send(repeat=self.random.random() < 0.2)

    def send(self, *, repeat: bool) -> None:
        listed = [self.pods[uid] for uid in sorted(self.pods if repeat else self.changed)]
        part = ClusterPart(observed_at=self.now, pods=listed, removed=list(self.gone))
        self.sent.setdefault(self.leader, []).append(part)
        self.changed.clear()
        self.gone.clear()

    def batches(self, cluster: str) -> list[AcceptedBatch]:
        """Return the batches in the order of their receipt, late ones and duplicates included."""
        found: list[AcceptedBatch] = []
        for sender, parts in self.sent.items():
            received = [part.observed_at + self.random.choice((1, 5, 900, 4000)) * NANOS for part in parts]
            for number, part in enumerate(parts):
                at = min(received[number:]) + number  # a late batch has its place before the following ones
                one = accept_part(cluster, part, at=at, sender=sender, seq=number + 1)
                found += [one] * self.random.choice((1, 1, 1, 2))
        self.random.shuffle(found)
        return found


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_give_the_state_of_the_cluster(embedded: ClickHouseStore, cluster: str, seed: int) -> None:
    world, memory = World(Random(seed)), MemoryStore()
    for _ in range(30):
        world.step()
    world.now += 3 * OBJECT_TTL_NS
    world.send(repeat=True)
    batches = world.batches(cluster)
    for at in range(0, len(batches), 7):
        for each in (embedded, memory):
            put(each, *batches[at : at + 7])
    found = pods(embedded, cluster)
    assert found == pods(memory, cluster)
    now = world.now + NANOS
    assert {one.record.uid: one.record for one in found if is_present(one, now)} == world.pods
    reported = {gone.uid: gone.at for parts in world.sent.values() for part in parts for gone in part.removed}
    for one in found:
        uid = one.record.uid
        if uid in reported:
            assert one.ended_at == world.removed[uid]
        elif uid in world.removed:  # its end was lost with a leader
            end = end_of(one, now)
            assert end is not None
            assert end <= world.removed[uid]


def test_pods_are_an_sql_view(store: ClickHouseStore, cluster: str) -> None:
    first, second = pod("p", phase="Pending"), PART.pods[0]
    put(store, accept_part(cluster, ClusterPart(observed_at=T0, pods=[first, second]), at=T0))
    put(store, accept_part(cluster, ClusterPart(observed_at=T0 + 5, removed=[removal("p", T0 + 4)]), at=T0 + 5))
    found = store.select(
        "SELECT uid, namespace, name, node, queue, phase, owner_kind, owner_name, requests, "
        "toUnixTimestamp64Nano(reported_at), toUnixTimestamp64Nano(ended_at) "
        f"FROM fleet_pods WHERE cluster = '{cluster}' ORDER BY name"
    )
    assert [list(row) for row in found.rows] == [
        ["p", "ml", "p", "", "", "Pending", "", "", {}, T0, T0 + 4],
        [
            *(second.uid, "ml", "train-0", "gpu-1", "research", "Running", "JobSet", "trainer", {"nvidia.com/gpu": 2}),
            *(T0, T0),  # not reported for 31 minutes
        ],
    ]


HOUR = 3600 * NANOS


@pytest.mark.parametrize(
    ("copies", "has_ended"),
    [
        ([(CopyState.SYNCED, 0)], True),
        ([(CopyState.STALE, HOUR)], False),
        ([(CopyState.FORBIDDEN, HOUR)], False),
        ([(CopyState.STALE, 0)], True),
        ([(CopyState.NOT_SERVED, HOUR)], True),
        ([(CopyState.STALE, HOUR), (CopyState.SYNCED, 0)], True),  # another leader has a connection
        ([], True),
    ],
)
def test_pods_of_a_stale_copy_have_not_ended_in_sql(
    embedded: ClickHouseStore, cluster: str, copies: list[tuple[CopyState, int]], has_ended: bool
) -> None:
    """As `fleet.cluster_objects` judges: a pod that was last reported an hour before."""
    now = time.time_ns()
    put(embedded, accept_part(cluster, ClusterPart(observed_at=now - HOUR, pods=[pod("p")]), at=now - HOUR))
    for number, (state, age) in enumerate(copies):
        status = [CopyStatus(resource=kind, state=state, since=now - age) for kind in (ObjectKind.NODE, ObjectKind.POD)]
        part = ClusterPart(observed_at=now, copies=status)
        put(embedded, accept_part(cluster, part, at=now, sender=f"collector-{number}", seq=2))
    found = embedded.select(f"SELECT ended_at IS NOT NULL FROM fleet_pods WHERE cluster = '{cluster}'")
    assert [row[0] for row in found.rows] == [has_ended]
    (stored,) = pods(embedded, cluster)
    at = judged_at(ObjectKind.POD, embedded.collectors([cluster]).get(cluster, ()), now)
    assert (end_of(stored, at) is not None) == has_ended
