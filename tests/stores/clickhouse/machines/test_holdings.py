"""Holdings in the store: whole round trip, newest reports, and each condition of a query."""

import time

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.model.holdings import HET_JOB, Holder, HolderKind, Holding, HoldingVerdict, Owner
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolding, holding_place
from gpufleet.model.time import LATEST, NANOS
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept
from tests.support.holdings import HOLDINGS, T0

INSTANTS = st.integers(T0, T0 + 4 * HOLDING_TTL_NS)

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking, which takes minutes with a real store."""

_numbers = iter(range(1, 1_000_000))


def put(store: ClickHouseStore | MemoryStore, cluster: str, machine: str, *holdings: Holding, at: int) -> None:
    """Write the holdings of a machine as one report."""
    part = MachinePart(machine=0, holdings=list(holdings))
    store.write([accept(cluster, machine, part=part, reported_at=at)], f"holdings-{next(_numbers)}")


def every(cluster: str, **changes: object) -> HoldingQuery:
    return msgspec.structs.replace(HoldingQuery(cluster=cluster, start=0, end=LATEST), **changes)


def pod(name: str, **fields: object) -> Holding:
    one = Holding(
        view="gpu/GPU-1",
        holder=Holder(kind=HolderKind.POD, id=name),
        since=T0,
        methods=("kubelet",),
        verdict=HoldingVerdict.AGREED,
    )
    return msgspec.structs.replace(one, **fields)


@settings(max_examples=15, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(held=st.lists(HOLDINGS, min_size=1, max_size=8), ended=st.integers(0, 7), place=st.integers(0, 10**9))
def test_every_field_of_a_holding_comes_back(
    embedded: ClickHouseStore, held: list[Holding], ended: int, place: int
) -> None:
    cluster = f"round-trip-{next(_numbers)}"
    put(embedded, cluster, "m", *held, at=T0)
    newest = {holding_place(stored(cluster, "m", one, T0)): stored(cluster, "m", one, T0) for one in held}
    assert embedded.holdings(every(cluster)) == tuple(newest[place] for place in sorted(newest))
    last = msgspec.structs.replace(held[ended % len(held)], until=LATEST, verdict=HoldingVerdict.NONE, steps=("9",))
    put(embedded, cluster, "m", last, at=T0 + 1)
    newest[holding_place(stored(cluster, "m", last, T0))] = stored(cluster, "m", last, T0 + 1)
    assert embedded.holdings(every(cluster)) == tuple(newest[place] for place in sorted(newest))


def stored(cluster: str, machine: str, holding: Holding, at: int) -> StoredHolding:
    return StoredHolding(cluster=cluster, machine=machine, holding=holding, reported_at=at)


def test_end_survives_merges_and_a_late_older_report(embedded: ClickHouseStore, cluster: str) -> None:
    ended = pod("p", until=T0 + 5)
    put(embedded, cluster, "m", pod("p"), at=T0 + 1)
    put(embedded, cluster, "m", ended, at=T0 + 9)
    put(embedded, cluster, "m", pod("p"), at=T0 + 3)
    expected = (stored(cluster, "m", ended, T0 + 9),)
    assert embedded.holdings(every(cluster)) == expected
    embedded._handles.writer.command("OPTIMIZE TABLE holdings FINAL")  # merges can run at any time
    assert embedded.holdings(every(cluster)) == expected


def test_last_report_of_a_batch_counts(store: ClickHouseStore, cluster: str) -> None:
    again = pod("p", verdict=HoldingVerdict.DECLARED_ONLY)
    put(store, cluster, "m", pod("p", until=T0 + 5), again, at=T0 + 1)
    assert store.holdings(every(cluster)) == (stored(cluster, "m", again, T0 + 1),)


REPORTS = st.tuples(
    st.sampled_from(["m1", "m2", "m3"]),
    st.sampled_from(["p", "q"]),
    st.sampled_from(["", "c"]),
    st.sampled_from(["", "t1", "t2"]),  # namespace, which a later report may change
    st.integers(0, 6),  # start, in half lifetimes of a report
    st.none() | st.integers(0, 5),  # end, in half lifetimes after the start
)
QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "machines": st.lists(st.sampled_from(["m1", "m2", "other"]), max_size=2).map(tuple),
        "kind": st.sampled_from([HolderKind.POD, HolderKind.JOB]),
        "ids": st.sampled_from([("p",), ("p", "q"), ("x",)]),
        "groups": st.sampled_from([("t1",), ("h2",)]),
        "namespace": st.sampled_from(["", "t1", "t2"]),
        "user": st.sampled_from(["t1", "t2"]),
        "start": INSTANTS,
        "end": INSTANTS,
    },
)
HALF = HOLDING_TTL_NS // 2


def reported(machine: str, name: str, container: str, text: str, since: int, lasted: int | None) -> tuple[str, Holding]:
    kind = HolderKind.POD if name == "p" else HolderKind.JOB
    owners = (Owner(kind=HET_JOB, name=text.replace("t", "h")),) if text else ()
    holder = Holder(kind=kind, id=name, namespace=text, user=text, array_job=text, owners=owners)
    begun = T0 + since * HALF
    until = None if lasted is None else begun + lasted * HALF
    return machine, pod(name, holder=holder, container=container, since=begun, until=until)


@settings(max_examples=20, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(reports=st.lists(REPORTS, max_size=12), changes=QUERIES, limit=st.integers(1, 3))
def test_pages_equal_the_store_in_memory(
    embedded: ClickHouseStore, reports: list[tuple[str, str, str, str, int, int | None]], changes: dict[str, object],
    limit: int,
) -> None:  # fmt: skip
    cluster, memory = f"pages-{next(_numbers)}", MemoryStore()
    for number, report in enumerate(reports):
        machine, holding = reported(*report)
        at = max(holding.since, holding.until or 0) + number
        for each in (embedded, memory):
            put(each, cluster, machine, holding, at=at)
    query = every(cluster, **changes)
    expected = memory.holdings(query)
    assert embedded.holdings(query) == expected
    found: list[StoredHolding] = []
    while page := embedded.holdings(msgspec.structs.replace(query, limit=limit, after=place_of(found))):
        assert len(page) <= limit
        found += page
    assert tuple(found) == expected


def place_of(found: list[StoredHolding]) -> tuple[str, str, str, str, str, str, int] | None:
    return holding_place(found[-1]) if found else None


def test_holding_of_every_cluster_is_found_by_its_id(store: ClickHouseStore, cluster: str) -> None:
    name = f"pod-of-{cluster}"
    for place in (f"{cluster}-b", f"{cluster}-a"):
        put(store, place, "m", pod(name), at=T0)
    found = store.holdings(HoldingQuery(ids=(name,), start=T0, end=T0 + 1))
    assert [one.cluster for one in found] == [f"{cluster}-a", f"{cluster}-b"]


def test_holding_without_repetition_leaves_the_present(store: ClickHouseStore, cluster: str) -> None:
    put(store, cluster, "m", pod("p"), at=T0)
    last = T0 + HOLDING_TTL_NS
    assert len(store.holdings(every(cluster, start=last))) == 1
    assert store.holdings(every(cluster, start=last + 1)) == ()
    assert len(store.holdings(every(cluster, start=T0 + 1, end=T0 + 2))) == 1


def test_view_for_users_has_all_fields_and_the_known_end(store: ClickHouseStore, cluster: str) -> None:
    holder = Holder(
        kind=HolderKind.POD,
        id="p",
        owners=(Owner(kind="ReplicaSet", name="r"), Owner(kind="Deployment", name="d")),
        labels={"team": "a"},
        queue="q",
    )
    now = time.time_ns()
    held = pod("p", holder=holder, container="main", replicas=2, claim="ns/c", steps=("0", "batch"))
    put(store, cluster, "m", held, at=now)
    put(store, cluster, "m", msgspec.structs.replace(held, container="lost"), at=now - HOLDING_TTL_NS - NANOS)
    query = (
        "SELECT container, owner_kinds, owner_names, labels['team'], queue, replicas, claim, steps, "
        f"toUnixTimestamp64Nano(until) FROM fleet_holders WHERE cluster = '{cluster}' ORDER BY container"
    )
    fields = (["ReplicaSet", "Deployment"], ["r", "d"], "a", "q", 2, "ns/c", ["0", "batch"])
    ended = now - HOLDING_TTL_NS - NANOS
    assert store.select(query).rows == [("lost", *fields, ended), ("main", *fields, None)]
    present = f"SELECT container FROM fleet_holders WHERE cluster = '{cluster}' AND until IS NULL"
    assert store.select(present).rows == [("main",)]
