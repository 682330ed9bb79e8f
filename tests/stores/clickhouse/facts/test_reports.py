"""GPU UUIDs that several machines report, and counts of events."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.reading import Sample
from gpufleet.model.stored.readings import EventCount, ViewColumns
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.facts.reports import (
    MAX_DUPLICATES_PER_MACHINE,
    MAX_EVENT_COUNTS_PER_MACHINE,
    MAX_EVENT_TIMES,
)
from tests.fakes.store import MemoryStore
from tests.support.accepted import accept
from tests.support.passes import gpu
from tests.support.profiles import examples

T0 = 1_800_000_000 * NANOS
"""Later than the reports of other tests in the same store."""

VIEWS = (
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1"),
    View(kind=ViewKind.GPU, side=Side.GUEST, uuid="GPU-1", pci_address="0000:1b:00.0"),
    View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-2"),
    View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address="0000:1b:00.0"),
    View(kind=ViewKind.GPU, side=Side.HOST, instance="netdata/gpu0"),
    View(kind=ViewKind.MIG, side=Side.HOST, uuid="MIG-1"),
)

_numbers = itertools.count(1)


def report(
    store: ClickHouseStore | MemoryStore, cluster: str, machine: str, *views: View, at: int, received_at: int = 0
) -> None:
    some = [
        Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values={"gpu_power_watts": 1.0})
        for view in views
    ]
    number = next(_numbers)
    accepted = accept(cluster, machine, some, reported_at=at, received_at=received_at or at + 7, seq=number)
    store.write([accepted], f"reports-{number}")


def rows(found: ViewColumns, *clusters: str) -> list[tuple[str, str, str, int]]:
    every = zip(found.cluster, found.machine, found.view, found.received_at, strict=True)
    return [row for row in every if row[0] in clusters]


def test_uuid_of_two_machines_is_a_duplicate(store: ClickHouseStore, cluster: str) -> None:
    """Machines of two clusters count, and other kinds of views do not."""
    other = f"{cluster}-other"
    report(store, cluster, "m-a", *VIEWS[1:], at=T0)
    report(store, other, "m-b", VIEWS[0], *VIEWS[3:], at=T0 + 1)
    assert rows(store.duplicate_views(T0), cluster, other) == [
        (cluster, "m-a", "gpu/GPU-1", T0 + 7),
        (other, "m-b", "gpu/GPU-1", T0 + 8),
    ]
    assert rows(store.duplicate_views(T0 + 1), cluster, other) == []


def test_backlog_of_a_moved_gpu_is_no_duplicate(store: ClickHouseStore, cluster: str) -> None:
    """A report counts at its place in the order of reports, not when it arrived."""
    report(store, cluster, "m-b", VIEWS[2], at=T0 + 50)
    report(store, cluster, "m-a", VIEWS[2], at=T0 + 10, received_at=T0 + 60)
    assert rows(store.duplicate_views(T0 + 40), cluster) == []
    assert [row[1] for row in rows(store.duplicate_views(T0), cluster)] == ["m-a", "m-b"]


def test_invented_uuids_do_not_hide_other_duplicates(embedded: ClickHouseStore, cluster: str) -> None:
    invented = [
        View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-0{n:03}") for n in range(MAX_DUPLICATES_PER_MACHINE + 9)
    ]
    for machine in ("m-a", "m-b"):
        report(embedded, cluster, machine, *invented, VIEWS[2], at=T0)
    for machine in ("m-c", "m-d"):
        report(embedded, cluster, machine, VIEWS[2], at=T0)
    found = rows(embedded.duplicate_views(T0), cluster)
    assert len(found) == 2 * MAX_DUPLICATES_PER_MACHINE + 2
    assert [row[1] for row in found if row[2] == "gpu/GPU-2"] == ["m-c", "m-d"]


_views = st.tuples(
    st.sampled_from(("m-a", "m-b", "m-c")), st.lists(st.sampled_from(VIEWS), max_size=3, unique=True), st.integers(0, 5)
)


@pytest.mark.costly
@settings(max_examples=examples(8, 80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_views, max_size=6))
def test_duplicates_equal_those_of_the_memory_store(
    store: ClickHouseStore, reports: list[tuple[str, list[View], int]]
) -> None:
    cluster, memory = f"duplicates-{next(_numbers)}", MemoryStore()
    for machine, views, second in reports:
        # Reports of other examples have the same UUIDs.
        own = [View(kind=one.kind, side=one.side, uuid=one.uuid and f"{one.uuid}-{cluster}",
                    pci_address=one.pci_address, instance=one.instance) for one in views]  # fmt: skip
        for one in (store, memory):
            report(one, cluster, machine, *own, at=T0 + second * NANOS)
    for second in range(6):
        since = T0 + second * NANOS
        assert rows(store.duplicate_views(since), cluster) == rows(memory.duplicate_views(since), cluster)


def event(second: int, kind: str = "xid", code: int = 79, device: int | None = 0, **attributes: str) -> Event:
    view = None if device is None else gpu(device)
    return Event(view=view, kind=kind, code=code, at=T0 + second * NANOS, attributes=attributes)


def put(store: ClickHouseStore | MemoryStore, cluster: str, machine: str, *events: Event) -> None:
    number = next(_numbers)
    part = MachinePart(machine=0, events=list(events))
    store.write([accept(cluster, machine, part=part, seq=number)], f"{cluster}-{number}")


def test_events_are_counted_by_view_kind_and_code(store: ClickHouseStore, cluster: str) -> None:
    """An event that was written twice counts once."""
    memory = MemoryStore()
    for one in (store, memory):
        put(
            one, cluster, "m-a", event(1), event(3), event(3, name="another"), event(2, code=31), event(9, kind="other")
        )
        put(one, cluster, "m-a", event(3), event(5, kind="driver_reloaded", code=0, device=None))
        put(one, cluster, "m-b", event(1, device=1), event(0))
        put(one, "another", "m-a", event(1))
    kinds, since = {"xid", "driver_reloaded"}, T0 + NANOS
    found = store.event_counts(cluster, kinds, since)
    first = gpu(0).key
    assert found == (
        EventCount("m-a", "", "driver_reloaded", 0, (T0 + 5 * NANOS,), 1),
        EventCount("m-a", first, "xid", 31, (T0 + 2 * NANOS,), 1),
        EventCount("m-a", first, "xid", 79, (T0 + NANOS, T0 + 3 * NANOS, T0 + 3 * NANOS), 3),
        EventCount("m-b", gpu(1).key, "xid", 79, (T0 + NANOS,), 1),
    )
    assert memory.event_counts(cluster, kinds, since) == found
    assert store.event_counts(cluster, (), since) == ()


def test_only_the_newest_times_of_many_events_are_listed(store: ClickHouseStore, cluster: str) -> None:
    put(store, cluster, "m-a", *(event(second) for second in range(MAX_EVENT_TIMES + 10)))
    (found,) = store.event_counts(cluster, ["xid"], 0)
    assert found.count == MAX_EVENT_TIMES + 10
    assert found.at == tuple(T0 + second * NANOS for second in range(10, MAX_EVENT_TIMES + 10))


def test_invented_codes_do_not_hide_events_of_others(embedded: ClickHouseStore, cluster: str) -> None:
    put(embedded, cluster, "m-a", *(event(100, code=code) for code in range(MAX_EVENT_COUNTS_PER_MACHINE + 5)))
    put(embedded, cluster, "m-b", event(1))
    found = embedded.event_counts(cluster, ["xid"], 0)
    assert [one.machine for one in found] == ["m-a"] * MAX_EVENT_COUNTS_PER_MACHINE + ["m-b"]
