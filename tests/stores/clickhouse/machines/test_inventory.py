"""GPU slots and their changes, compared with the in-memory store, which evaluates all reports."""

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.model.absence import Absent
from gpufleet.model.api.inventory import ChangeKind, ChangeQuery, GpuPool, StoredChange
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import UnstorableError
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept
from tests.support.profiles import examples

T0 = 1_700_000_000 * NANOS


def gpu(name: str, side: Side = Side.HOST) -> View:
    return View(kind=ViewKind.GPU, side=side, uuid=name)


def gpu_batch(
    cluster: str,
    machine: str,
    name: str,
    slot: str,
    second: int,
    side: Side = Side.HOST,
    texts: Mapping[str, Value] = {},
) -> AcceptedBatch:
    at = T0 + second * NANOS
    values: dict[str, Value | Absent] = {"gpu_pci_address": slot, "gpu_power_watts": float(second), **texts}
    sample = Sample(view=gpu(name, side), reader="nvml", lane=Lane.STATIC, measured_at=at, values=values)
    return accept(cluster, machine, [sample], received_at=at + 1, reported_at=at, seq=second + 1)


def query(cluster: str, **more: object) -> ChangeQuery:
    return ChangeQuery(cluster=cluster, start=T0 - NANOS, end=T0 + 100_000 * NANOS, limit=1_000, **more)  # type: ignore[arg-type]


def comparable(changes: tuple[StoredChange, ...]) -> list[tuple[object, ...]]:
    return sorted((one.at, one.kind, one.machine, one.address, one.view, one.before) for one in changes)


numbers = itertools.count(1)
moves = st.lists(
    st.tuples(
        st.sampled_from(["m-a", "m-b"]),
        st.sampled_from("XYZ"),
        st.sampled_from(["s1", "s2"]),
        st.sampled_from([9, 900]),
    ),
    max_size=12,
)


@pytest.mark.costly
@settings(max_examples=examples(8, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves)
def test_changes_and_slots_match_the_memory_store(
    store: ClickHouseStore, moves: list[tuple[str, str, str, int]]
) -> None:
    number = next(numbers)
    cluster, memory = f"moves-{number}", MemoryStore()
    second = 0
    for machine, name, slot, pause in moves:
        second += pause
        batch = gpu_batch(cluster, machine, f"GPU-{number}-{name}", slot, second)
        for one in (store, memory):
            one.write([batch], f"{cluster}-{second}")
    assert comparable(store.changes(query(cluster))) == comparable(memory.changes(query(cluster)))
    for machine in ("m-a", "m-b"):
        machines = [machine, "unknown"]
        assert store.slots(cluster, machines) == memory.slots(cluster, machines)
        for key, at in itertools.product([None, gpu(f"GPU-{number}-X").key], [None, "s1"]):
            slots = store.slots(cluster, machines, view=key, address=at)
            assert slots == memory.slots(cluster, machines, view=key, address=at)


@pytest.mark.costly
@settings(max_examples=examples(8, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves.flatmap(lambda some: st.tuples(st.just(some), st.permutations(range(len(some))))))
def test_first_report_in_a_slot_is_known_in_any_order(
    store: ClickHouseStore, history: tuple[list[tuple[str, str, str, int]], list[int]]
) -> None:
    moves, order = history
    number = next(numbers)
    cluster = f"late-{number}"
    seconds = list(itertools.accumulate(pause for *_, pause in moves))
    first: dict[tuple[str, str, str], int] = {}
    for (machine, name, slot, _), second in zip(moves, seconds, strict=True):
        first.setdefault((machine, gpu(f"GPU-{number}-{name}").key, slot), T0 + second * NANOS)
    for place in order:
        machine, name, slot, _ = moves[place]
        batch = gpu_batch(cluster, machine, f"GPU-{number}-{name}", slot, seconds[place])
        store.write([batch], f"{cluster}-{place}")
    slots = store.slots(cluster, ["m-a", "m-b"])
    assert {(one.machine, one.view, one.address): one.first for one in slots} == first


@pytest.mark.parametrize("restarts", [False, True])
def test_move_within_an_outage_has_its_own_time(store: ClickHouseStore, cluster: str, restarts: bool) -> None:
    """An agent posts its newest batches first, newest to oldest, and older ones beside them, oldest to newest."""
    name, minutes = f"GPU-{cluster}", range(100, 180, 10)
    for machine, minute in [("m-a", 0), ("m-a", 90)]:
        store.write([gpu_batch(cluster, machine, name, "s1", minute * 60)], f"{cluster}-{minute}")
    old, live = [one for one in minutes if one < 150], [one for one in reversed(minutes) if one >= 150]
    for minute in [one for pair in itertools.zip_longest(live, old) for one in pair if one is not None]:
        if restarts:  # a failed write costs the store its memory of what it has written
            with pytest.raises(UnstorableError):
                store.write([gpu_batch(cluster, "m-c", name, "s1", minute, texts={"gpu_state": "none"})], cluster)
        machine = "m-a" if minute < 120 else "m-b"
        store.write([gpu_batch(cluster, machine, name, "s1", minute * 60)], f"{cluster}-{minute}")
    (move,) = store.changes(query(cluster))
    assert (move.machine, (move.at - T0) // (60 * NANOS)) == ("m-b", 120)
    (slot,) = store.slots(cluster, ["m-b"])
    assert (slot.first - T0) // (60 * NANOS) == 120
    texts = f"SELECT metric FROM fleet_texts WHERE cluster = '{cluster}' AND machine = 'm-b'"
    assert store.select(texts).rows == [("gpu_pci_address",)]


def test_pages_and_filters_of_changes(store: ClickHouseStore, cluster: str) -> None:
    for second, (machine, name, slot) in enumerate(
        [("m-a", "P", "s1"), ("m-a", "Q", "s1"), ("m-b", "P", "s1"), ("m-b", "P", "s2"), ("m-a", "P", "s1")]
    ):
        store.write([gpu_batch(cluster, machine, f"GPU-{cluster}-{name}", slot, second)], f"{cluster}-{second}")
    whole = store.changes(query(cluster))
    kinds = [(one.kind, one.machine, (one.at - T0) // NANOS) for one in whole]
    # The return of P to m-a is no change: its pause there was too short.
    assert sorted(kinds, key=lambda one: one[2]) == [
        (ChangeKind.REPLACED, "m-a", 1),
        (ChangeKind.MOVED, "m-b", 2),
        (ChangeKind.MOVED, "m-b", 3),
    ]
    assert [one.at for one in whole] == sorted((one.at for one in whole), reverse=True)
    paged: list[StoredChange] = []
    while found := store.changes(
        ChangeQuery(
            cluster=cluster,
            start=0,
            end=2**62,
            limit=1,
            before=(paged[-1].at, paged[-1].id) if paged else None,
        )
    ):
        paged += found
    assert tuple(paged) == whole
    assert {one.kind for one in store.changes(query(cluster, kind=ChangeKind.MOVED))} == {ChangeKind.MOVED}
    assert [one.machine for one in store.changes(query(cluster, machines=("m-a",)))] == ["m-a"]
    assert store.changes(query(cluster, machines=())) == ()
    assert store.changes(query("unknown")) == ()
    (newest,) = [one for one in store.slots(cluster, ["m-a"], view=whole[0].view) if one.last_seen]
    assert newest.last_seen == T0 + 4 * NANOS + 1


@pytest.mark.parametrize("restart", [False, True])
def test_return_after_a_pause_is_a_change(store: ClickHouseStore, cluster: str, restart: bool) -> None:
    """GPU P is in m-a at 0 and 1800 s, in m-b at 1801 s, and again in m-a at 3601 s, with the same texts."""
    name = f"GPU-{cluster}"
    for machine, second in (("m-a", 0), ("m-a", 1800), ("m-b", 1801), ("m-a", 3601), ("m-a", 3602)):
        if restart:  # a failed write costs the store its memory of what it has written
            with pytest.raises(UnstorableError):
                store.write([gpu_batch(cluster, machine, name, "s1", second, texts={"gpu_state": "none"})], cluster)
        store.write([gpu_batch(cluster, machine, name, "s1", second)], f"{cluster}-{second}")
    slots = {one.machine: one for one in store.slots(cluster, ["m-a", "m-b"])}
    begun = {machine: [(at - T0) // NANOS for at in one.begun] for machine, one in slots.items()}
    assert begun == {"m-a": [0, 3601], "m-b": [1801]}
    before = {
        machine: [(row.since - T0, max(row.before - T0, 0)) for row in one.rows] for machine, one in slots.items()
    }
    assert before == {"m-a": [(0, 0), (3601 * NANOS, 1800 * NANOS)], "m-b": [(1801 * NANOS, 0)]}
    assert [(one.machine, (one.at - T0) // NANOS) for one in store.changes(query(cluster))] == [
        ("m-a", 3601),
        ("m-b", 1801),
    ]


def test_gpu_seen_in_a_guest_did_not_move(store: ClickHouseStore, cluster: str) -> None:
    name = f"GPU-{cluster}"
    store.write([gpu_batch(cluster, "host", name, "s1", 0)], f"{cluster}-0")
    store.write([gpu_batch(cluster, "guest", name, "s9", 1, Side.GUEST)], f"{cluster}-1")
    assert store.changes(query(cluster)) == ()


def test_pools_count_present_gpus(store: ClickHouseStore, cluster: str) -> None:
    def put(machine: str, name: str, second: int, driver: str, vbios: str | None) -> None:
        texts: dict[str, Value] = {"gpu_name": "H200", **({"gpu_vbios_version": vbios} if vbios else {})}
        of_gpu = gpu_batch(cluster, machine, name, "s", second, texts=texts)
        at = T0 + second * NANOS
        of_machine = Sample(
            view=None, reader="nvml", lane=Lane.STATIC, measured_at=at, values={"nvidia_driver_version": driver}
        )
        store.write([of_gpu], f"{cluster}-{machine}-{name}-{second}")
        store.write(
            [accept(cluster, machine, [of_machine], received_at=at, reported_at=at, seq=second + 100)],
            f"{cluster}-{machine}-{name}-{second}-driver",
        )

    put("m-a", "GPU-1", 0, "570.1", "96.00")
    put("m-a", "GPU-2", 1, "580.1", "96.00")  # the driver was upgraded
    put("m-b", "GPU-3", 2, "580.1", "96.01")
    put("m-c", "GPU-4", 3, "580.1", None)
    put("m-d", "GPU-5", 4, "580.1", "96.00")
    put("m-d", "GPU-6", 4 + 3_000, "580.1", "96.00")  # GPU-5 is gone

    def pool(vbios: str | None, gpus: int, machines: int) -> GpuPool:
        return GpuPool(
            cluster=cluster, side="host", name="H200", driver="580.1", vbios=vbios, gpus=gpus, machines=machines
        )

    assert set(store.pools(cluster)) == {pool("96.00", 3, 2), pool("96.01", 1, 1), pool(None, 1, 1)}
    assert store.pools("unknown") == ()
    assert set(store.pools(cluster)) <= set(store.pools())


def test_machines_of_a_vgpu_in_one_write_stay_in_order(store: ClickHouseStore, cluster: str) -> None:
    """The second machine reports no utilisation: batches with other metrics are converted apart."""
    view = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid="1", instance="7", parent=gpu("GPU-1").key)

    def batch(second: int, machine: str) -> AcceptedBatch:
        values: dict[str, Value | Absent] = {"vgpu_vm_id": machine, "vgpu_vm_id_kind": "uuid"}
        if machine == "first":
            values["gpu_utilization_ratio"] = 0.5
        at = T0 + second * NANOS
        sample = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values=values)
        return accept(cluster, "m", [sample], received_at=at + 1, reported_at=at, seq=second + 1)

    live = [batch(second, "first") for second in range(0, 600, 10)]
    queued = [batch(second, "second" if 900 <= second < 1500 else "first") for second in range(600, 1800, 10)]
    store.write(live, f"{cluster}-live")
    store.write(queued, f"{cluster}-queued")
    store.write([batch(1800, "first")], f"{cluster}-after")
    texts = store.texts_of_views(cluster, "vgpu_vm_id", "first")
    holders = {at: max((one.at, one.text) for one in texts if one.at <= T0 + at * NANOS)[1] for at in (890, 900, 1800)}
    assert holders == {890: "first", 900: "second", 1800: "first"}
