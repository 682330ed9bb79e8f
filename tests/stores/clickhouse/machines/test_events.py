"""Event queries: by machine, view, time and kind, page by page."""

import msgspec
import pytest

from gpufleet.model.event import Event
from gpufleet.model.stored.samples import EventQuery, EventSpan
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import MachinePart
from gpufleet.stores.clickhouse import ClickHouseStore
from tests.support.accepted import accept
from tests.support.passes import gpu

T0 = 1_700_000_000 * NANOS


def event(second: int, kind: str = "xid", code: int = 79, device: int | None = 0, **attributes: str) -> Event:
    view = None if device is None else gpu(device)
    return Event(view=view, kind=kind, code=code, at=T0 + second * NANOS, attributes=attributes)


def put(store: ClickHouseStore, cluster: str, machine: str, *events: Event, seq: int = 1) -> None:
    part = MachinePart(machine=0, events=list(events))
    store.write([accept(cluster, machine, part=part, seq=seq)], f"{cluster}-{machine}-{seq}")


def span(cluster: str, **changes: object) -> EventSpan:
    whole = EventSpan(cluster=cluster, start=T0 - NANOS, end=T0 + 1000 * NANOS)
    return msgspec.structs.replace(whole, **changes)


def found_events(store: ClickHouseStore, *spans: EventSpan, **more: object) -> list[tuple[str, str | None, int]]:
    query = EventQuery(spans=spans, limit=100)
    found = store.events(msgspec.structs.replace(query, **more))
    return [(one.machine, one.view, (one.at - T0) // NANOS) for one in found]


def test_event_written_twice_is_returned_once(store: ClickHouseStore, cluster: str) -> None:
    one = event(5, name="fell", sources="kmsg,nvml")
    put(store, cluster, "m", one)
    put(store, cluster, "m", one, seq=2)
    (found,) = store.events(EventQuery(spans=(span(cluster),), limit=10))
    assert (found.cluster, found.machine, found.view) == (cluster, "m", gpu(0).key)
    assert (found.kind, found.code, found.at, found.attributes) == (one.kind, 79, one.at, one.attributes)
    assert found.received_at > 0


def test_events_by_machine_view_time_and_kind(store: ClickHouseStore, cluster: str) -> None:
    put(store, cluster, "a", event(1), event(2, device=1), event(3, "driver_reloaded", 0, None))
    put(store, cluster, "b", event(4))
    first, second = gpu(0).key, gpu(1).key
    assert found_events(store, span(cluster)) == [("b", first, 4), ("a", None, 3), ("a", second, 2), ("a", first, 1)]
    assert found_events(store, span(cluster, machine="b")) == [("b", first, 4)]
    assert found_events(store, span(cluster, machine="a", views=frozenset({second}))) == [("a", second, 2)]
    assert found_events(store, span(cluster, views=frozenset())) == []
    assert found_events(store, span(cluster, start=T0 + 2 * NANOS, end=T0 + 4 * NANOS)) == [
        ("a", None, 3),
        ("a", second, 2),
    ]
    of_two = (span(cluster, machine="a", end=T0 + 2 * NANOS), span(cluster, machine="b"))
    assert found_events(store, *of_two) == [("b", first, 4), ("a", first, 1)]
    assert found_events(store, span(cluster), view="") == [("a", None, 3)]
    assert found_events(store, span(cluster), view=first) == [("b", first, 4), ("a", first, 1)]
    assert found_events(store, span(cluster), kinds=("driver_reloaded", "none")) == [("a", None, 3)]
    assert found_events(store) == []


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pages_return_events_of_one_instant_once(store: ClickHouseStore, cluster: str, size: int) -> None:
    put(store, cluster, "m", *(event(number // 3, code=number) for number in range(10)))
    codes: list[int] = []
    before = None
    while page := store.events(EventQuery(spans=(span(cluster),), before=before, limit=size)):
        codes += [one.code for one in page]
        before = (page[-1].at, page[-1].id)
    assert sorted(codes) == list(range(10))
    assert [code // 3 for code in codes] == sorted((code // 3 for code in codes), reverse=True)


def test_event_filters_are_not_sql(store: ClickHouseStore, cluster: str) -> None:
    put(store, cluster, "m", event(1))
    assert found_events(store, span("x' OR 1=1 --"), kinds=("') OR (1=1",), view="' OR '") == []
