"""Guests that stand for an allocated virtual machine, from the reports in a store."""

import datetime as dt
from collections.abc import Collection, Sequence

import pytest

from gpufleet.fleet.attribution.guests import MachineSamples
from gpufleet.fleet.usage.residence import UNBOUNDED, Interval
from gpufleet.hub.query.guest_turns import CHUNK_STEPS, MAX_CHUNKS, MAX_QUERIES, MAX_RUNS, STEP_NS, GuestTurns
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.stored.samples import StoredSample, StoredSeries
from gpufleet.model.time import NANOS, to_datetime
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore

HOUR = 3600 * NANOS
START = 500_000 * HOUR
NOW = START + 10 * HOUR
VM = "11111111-2222-3333-4444-555555555555"
ALLOCATION = Allocation(
    id="a",
    generation=1,
    spec=AllocationSpec(kind=AllocationKind.GPU_SLICE, target=Target(cluster="c", vm_uuid=VM)),
    created_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
)


class Reports(MemoryStore):
    """Store with the times of guests' reports, in one resolution.

    Attributes:
        reported: guest to the intervals in which it was reported every minute.
        queries: number of queries for series.
    """

    def __init__(self, reported: dict[str, list[Interval]], width: int = STEP_NS) -> None:
        super().__init__()
        self.reported, self.width, self.queries = reported, width, 0

    def slots(
        self, cluster: str, machines: Sequence[str], *, view: str | None = None, address: str | None = None
    ) -> tuple[StoredSlot, ...]:
        return tuple(
            StoredSlot(
                cluster=cluster,
                machine=id_,
                view="v",
                address="a",
                first=first,
                newest=first,
                last_seen=0,
                begun=(first,),
            )
            for id_ in machines
            for first, _ in self.reported[id_][:1]
        )

    def series(
        self,
        cluster: str,
        machine: str,
        metrics: Sequence[str],
        start: int,
        end: int,
        step: int,
        provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
        views: Collection[str] | None = None,
        xids_since: int = 0,
    ) -> StoredSeries:
        self.queries += 1
        assert (end - start) // step <= CHUNK_STEPS
        assert step == STEP_NS
        points: list[tuple[int, Value]] = []
        for first, last in self.reported[machine]:
            at = max(first - first % self.width, start)
            points += [(at, "ok") for at in range(at, min(last, end), self.width)]
        resolution = Resolution.HOUR if self.width == HOUR else Resolution.MINUTE
        return StoredSeries(points={(None, "guest_state"): points}, resolution=resolution)


def turns(store: Reports, now: int = NOW) -> tuple[dict[str, tuple[Interval, ...]], tuple[Interval, ...]]:
    """Return turns and ambiguous intervals, in minutes after the start."""
    samples = []
    for id_, intervals in store.reported.items():
        last = intervals[-1][1]
        evidence = Machine(name="vm", kind=MachineKind.GUEST, system_uuid=VM, hypervisor=id_)
        record = MachineRecord(
            id=id_, cluster="c", machine=evidence, sender=id_, first_seen=to_datetime(now), last_seen=to_datetime(last)
        )
        own = Sample(view=None, reader="guests", lane=Lane.FAST, measured_at=last, values={"guest_state": "ok"})
        samples.append(MachineSamples(machine=record, stored=[StoredSample(sample=own, received_at=last)], readers=()))
    found = GuestTurns(store=store, clock=FakeClock(now), stale_after_seconds=120.0).of(ALLOCATION, samples)

    def minutes(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
        return tuple(
            (max(0, a - START) // STEP_NS, -1 if b == UNBOUNDED else (b - START) // STEP_NS) for a, b in intervals
        )

    return {id_: minutes(own) for id_, own in found.turns.items()}, minutes(found.ambiguous)


def at(*minutes: int) -> list[Interval]:
    return [(START + a * STEP_NS, START + b * STEP_NS) for a, b in zip(minutes[::2], minutes[1::2], strict=True)]


def test_guests_that_do_not_overlap_need_no_series() -> None:
    store = Reports({"a": at(0, 60), "b": at(70, 90)})
    assert turns(store) == ({"a": ((0, 70),), "b": ((70, -1),)}, ())
    assert turns(Reports({"a": at(0, 60)})) == ({"a": ((0, -1),)}, ())
    assert store.queries == 0


@pytest.mark.parametrize("width", [STEP_NS, HOUR], ids=["minutes", "hours"])
def test_return_is_no_clone(width: int) -> None:
    returned = Reports({"a": at(0, 60, 300, 400), "b": at(60, 299)}, width)
    assert turns(returned) == ({"a": ((0, 60), (300, -1)), "b": ((60, 300),)}, ())
    cloned = Reports({"a": at(0, 400), "b": at(60, 299)}, width)
    assert turns(cloned) == ({"a": ((0, 60), (299, -1))}, ((60, 299),))


def test_two_live_guests_are_ambiguous_until_one_ends() -> None:
    live = Reports({"a": at(0, 600), "b": at(595, 600)})
    assert turns(live) == ({"a": ((0, 595),)}, ((595, -1),))


@pytest.mark.parametrize("others", [1, 40])
def test_past_does_not_depend_on_the_number_of_hosts(others: int) -> None:
    migrated = {f"g{number:02}": at(130 + number * 10, 140 + number * 10) for number in range(others)}
    store = Reports({"a": at(0, 60, 90, 130), "b": at(60, 89), **migrated})
    found, ambiguous = turns(store)
    assert (found["a"], found["b"], ambiguous) == (((0, 60), (90, 130)), ((60, 90),), ())


def test_short_stay_at_another_host_is_no_clone() -> None:
    store = Reports({"a": at(0, 9, 24, 33), "b": at(12, 21)})
    assert turns(store) == ({"a": ((0, 12), (24, -1)), "b": ((12, 24),)}, ())


def test_many_changes_are_ambiguous_from_the_limit_on() -> None:
    stays = [(number * 60, number * 60 + 20, number * 60 + 60) for number in range(MAX_RUNS + 2)]
    here = [edge for start, end, _ in stays for edge in (start, end)]
    away = [edge for _, start, end in stays for edge in (start, end)]
    found, ambiguous = turns(Reports({"a": at(*here), "b": at(*away)}), NOW + 300 * HOUR)
    assert [found[id_][:2] for id_ in "ab"] == [((0, 20), (60, 80)), ((20, 60), (80, 120))]
    assert ambiguous == ((stays[MAX_RUNS - 1][1], here[-1]),)


def test_guests_beyond_the_limit_of_queries_are_ambiguous() -> None:
    years = 3 * 365 * 24 * 60
    many = {f"g{number:02}": at(number * 1000, number * 1000 + 500, years, years + 1) for number in range(30)}
    store = Reports(many, HOUR)
    turns(store, START + (years + 100) * STEP_NS)
    assert 0 < store.queries <= MAX_QUERIES


def test_queries_of_a_long_overlap_are_bounded() -> None:
    years = 3 * 365 * 24 * 60
    store = Reports({"a": at(0, 1, years - 1, years), "b": at(2, 3, years, years + 1)}, HOUR)
    turns(store, START + (years + 100) * STEP_NS)
    assert store.queries <= 2 * (MAX_CHUNKS + 1)
