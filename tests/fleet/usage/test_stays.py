"""Stays of a GPU in machines, derived from the times at which they began to report it."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS, UNBOUNDED, Interval
from gpufleet.fleet.usage.stays import Reported, bounded_stays, clipped, is_left, never_reported, with_indexed
from gpufleet.fleet.usage.units import Place
from gpufleet.model.api.inventory import RETURN_GAP_NS, StoredSlot
from gpufleet.model.time import NANOS
from tests.support.profiles import examples

HOUR = 3600 * NANOS
SLOTS = ("0000:01:00.0", "0000:02:00.0")
X, Y = "gpu/GPU-x", "gpu/GPU-y"


def slot(machine: str, view: str, *begun: int, address: str = "0000:01:00.0") -> StoredSlot:
    return StoredSlot(
        cluster="c",
        machine=machine,
        view=view,
        address=address,
        first=begun[0],
        newest=begun[-1],
        last_seen=0,
        begun=begun,
    )


def stays(
    slots: list[StoredSlot], reported: Mapping[Place, int], was_reported: Reported = never_reported
) -> dict[Place, list[Interval]]:
    return {place: list(own) for place, own in bounded_stays(slots, reported, was_reported).items()}


def intervals(slots: list[StoredSlot], reported: Mapping[Place, int]) -> dict[Place, Interval]:
    """Return the stays of GPUs that were in each machine once."""
    found = stays(slots, reported)
    assert all(len(own) == 1 for own in found.values())
    return {place: own[0] for place, own in found.items()}


def test_stay_of_a_gpu_that_never_moved_is_unbounded() -> None:
    assert intervals([slot("a", X, 1), slot("b", Y, 2)], {("a", X): 9 * HOUR, ("b", Y): 9 * HOUR}) == {}


def test_index_counts_until_the_first_name() -> None:
    """The index was reported up to 9 h; the named GPUs came at 9 h, one of them left for another machine."""
    listed, other = ("a", "gpu/instance/0"), ("b", "gpu/instance/0")
    named = {("a", X): 9 * HOUR, ("a", Y): 10 * HOUR, ("b", Y): 5 * HOUR}
    before = {("a", Y): ((10 * HOUR, 12 * HOUR),)}
    found = with_indexed(before, [listed, other], named, lambda place, start, end: place == listed and end < 9 * HOUR)
    assert found == {
        listed: ((0, 9 * HOUR),),
        ("a", X): ((9 * HOUR, UNBOUNDED),),
        ("a", Y): ((10 * HOUR, 12 * HOUR),),
    }
    assert with_indexed({}, [listed], {}, lambda *_: True) == {}


def test_moved_gpu_is_in_one_machine_at_a_time() -> None:
    reported = {("a", X): 2 * HOUR, ("b", X): 9 * HOUR, ("c", X): 12 * HOUR}
    found = intervals([slot("b", X, 3 * HOUR), slot("a", X, HOUR), slot("c", X, 10 * HOUR)], reported)
    assert found == {
        ("a", X): (0, 3 * HOUR),
        ("b", X): (3 * HOUR, 10 * HOUR),
        ("c", X): (10 * HOUR, UNBOUNDED),
    }


@pytest.mark.parametrize("both", [1, 5 * HOUR])
def test_gpu_reported_by_two_machines_at_once_has_not_moved(both: int) -> None:
    """It counts for the second machine since that reports it, and not before."""
    reported = {("a", X): 3 * HOUR + MAX_CLOCK_SKEW_NS + both, ("b", X): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported)
    assert found == {("a", X): (0, UNBOUNDED), ("b", X): (3 * HOUR, UNBOUNDED)}


def test_gpu_moved_back_keeps_the_interval_elsewhere() -> None:
    reported = {("a", X): 20 * HOUR, ("b", X): 5 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported)
    assert found == {("a", X): (0, UNBOUNDED), ("b", X): (3 * HOUR, 5 * HOUR)}


def test_gpu_that_moved_back_from_two_machines() -> None:
    reported = {("a", X): 20 * HOUR, ("b", X): 5 * HOUR, ("c", X): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR), slot("c", X, 6 * HOUR)], reported)
    assert found == {("a", X): (0, UNBOUNDED), ("b", X): (3 * HOUR, 5 * HOUR), ("c", X): (6 * HOUR, 9 * HOUR)}


def test_gpu_reported_by_two_machines_stays_with_both() -> None:
    reported = {("a", X): 9 * HOUR, ("b", X): 9 * HOUR - MAX_CLOCK_SKEW_NS}
    found = intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported)
    assert found == {("a", X): (0, UNBOUNDED), ("b", X): (3 * HOUR, UNBOUNDED)}


def test_gpu_ends_the_stay_of_its_predecessor_in_the_slot() -> None:
    reported = {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR), slot("b", X, 6 * HOUR)], reported)
    assert found == {("a", X): (0, 4 * HOUR), ("a", Y): (4 * HOUR, UNBOUNDED), ("b", X): (6 * HOUR, UNBOUNDED)}


def test_replacement_in_an_earlier_slot_does_not_end_stay() -> None:
    """X moves to another slot, Y takes its first slot, and later X moves to another machine."""
    slots = [
        slot("a", X, HOUR),
        slot("a", X, 2 * HOUR, address="0000:02:00.0"),
        slot("a", Y, 3 * HOUR),
        slot("b", X, 8 * HOUR),
    ]
    found = intervals(slots, {("a", X): 7 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR})
    assert found == {("a", X): (0, 8 * HOUR), ("a", Y): (3 * HOUR, UNBOUNDED), ("b", X): (8 * HOUR, UNBOUNDED)}


def test_replaced_gpu_is_in_its_slot_until_the_next_one() -> None:
    reported = {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR)], reported)
    assert found == {("a", X): (0, 4 * HOUR), ("a", Y): (4 * HOUR, UNBOUNDED)}
    both = intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR)], {**reported, ("a", X): 9 * HOUR})
    assert both == {("a", Y): (4 * HOUR, UNBOUNDED)}


def added(
    at: int, was_reported: Reported = never_reported, unread: tuple[int, str] | None = None
) -> dict[Place, list[Interval]]:
    """Return the stays of a GPU that a machine first reported after another one, in an empty slot.

    A slot is `unread` from a time on: its GPU was reported by the address only.
    """
    slots = [slot("a", X, HOUR), slot("a", Y, at, address=SLOTS[1])]
    if unread is not None:
        slots.append(slot("a", f"gpu/pci/{unread[1]}", unread[0], address=unread[1]))
    reported = {("a", X): 9 * HOUR, ("a", Y): 9 * HOUR}
    return {place: list(own) for place, own in bounded_stays(slots, reported, was_reported).items()}


def test_gpu_added_in_an_empty_slot_is_there_since_its_first_report() -> None:
    assert added(4 * HOUR) == {("a", Y): [(4 * HOUR, UNBOUNDED)]}


def test_gpu_reported_soon_after_the_first_one_was_always_there() -> None:
    assert added(HOUR + RETURN_GAP_NS) == {}


@pytest.mark.parametrize(
    ("since", "address", "begun"),
    [
        (HOUR, SLOTS[1], 0),
        (3 * HOUR, SLOTS[1], 3 * HOUR),
        (6 * HOUR, SLOTS[1], 4 * HOUR),  # it was read, and then lost
        (HOUR, SLOTS[0], 4 * HOUR),
    ],
)
def test_gpu_is_there_since_the_first_report_of_its_slot_without_uuid(since: int, address: str, begun: int) -> None:
    found = added(4 * HOUR, unread=(since, address))
    assert found == ({("a", Y): [(begun, UNBOUNDED)]} if begun else {})


def test_gpu_that_came_to_a_slot_of_a_lost_one_was_not_there_before() -> None:
    slots = [
        slot("a", X, HOUR),
        slot("a", Y, 4 * HOUR, address=SLOTS[1]),
        slot("a", Y, 6 * HOUR, address="0000:03:00.0"),
    ]
    slots.append(slot("a", "gpu/pci/0000:03:00.0", 2 * HOUR, address="0000:03:00.0"))
    assert stays(slots, {("a", X): 9 * HOUR, ("a", Y): 9 * HOUR}) == {("a", Y): [(4 * HOUR, UNBOUNDED)]}


def test_gpu_reported_before_its_slot_was_known_was_always_there() -> None:
    queried = []

    def was_reported(place: Place, start: int, end: int) -> bool:
        queried.append((place, start, end))
        return True

    assert added(4 * HOUR, was_reported) == {}
    assert queried == [(("a", Y), 0, 4 * HOUR - RETURN_GAP_NS)]


def test_gpu_replaced_from_another_slot_ends_there() -> None:
    slots = [slot("a", X, HOUR), slot("a", Y, HOUR, address="0000:02:00.0"), slot("a", Y, 4 * HOUR)]
    assert intervals(slots, {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR}) == {("a", X): (0, 4 * HOUR)}


def test_gpus_swapped_between_two_machines() -> None:
    slots = [slot("a", X, HOUR), slot("b", Y, HOUR), slot("a", Y, 5 * HOUR), slot("b", X, 5 * HOUR)]
    reported = {("a", X): 4 * HOUR, ("b", Y): 4 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR}
    assert intervals(slots, reported) == {
        ("a", X): (0, 5 * HOUR),
        ("b", Y): (0, 5 * HOUR),
        ("a", Y): (5 * HOUR, UNBOUNDED),
        ("b", X): (5 * HOUR, UNBOUNDED),
    }


def test_gpu_that_returns_changes_nothing_of_the_past() -> None:
    slots, reported = [slot("a", X, HOUR), slot("b", X, 3 * HOUR)], {("a", X): 2 * HOUR, ("b", X): 19 * HOUR}
    before = stays(slots, reported)
    after = stays([slot("a", X, HOUR, 20 * HOUR), slots[1]], {**reported, ("a", X): 21 * HOUR})
    assert before == {("a", X): [(0, 3 * HOUR)], ("b", X): [(3 * HOUR, UNBOUNDED)]}
    assert after == {("a", X): [(0, 3 * HOUR), (20 * HOUR, UNBOUNDED)], ("b", X): [(3 * HOUR, 20 * HOUR)]}
    assert [is_left(after[place]) for place in (("a", X), ("b", X))] == [False, True]


def test_gpu_that_returns_to_its_slot_was_not_there_in_between() -> None:
    slots = [slot("a", X, HOUR, 9 * HOUR), slot("a", Y, 4 * HOUR)]
    found = stays(slots, {("a", X): 10 * HOUR, ("a", Y): 8 * HOUR})
    assert found == {("a", X): [(0, 4 * HOUR), (9 * HOUR, UNBOUNDED)], ("a", Y): [(4 * HOUR, 9 * HOUR)]}


def test_gpu_reported_with_other_texts_has_not_been_elsewhere() -> None:
    """Both machines report the GPU all the time, and the driver of the first one is updated at 20."""
    slots = [slot("a", X, HOUR, 20 * HOUR), slot("b", X, 3 * HOUR)]
    queried = []

    def was_reported(place: Place, start: int, end: int) -> bool:
        queried.append((place, start, end))
        return True

    found = stays(slots, {("a", X): 30 * HOUR, ("b", X): 30 * HOUR}, was_reported)
    assert found == {("a", X): [(0, 20 * HOUR), (20 * HOUR, UNBOUNDED)], ("b", X): [(3 * HOUR, UNBOUNDED)]}
    assert queried == [(("a", X), 3 * HOUR + MAX_CLOCK_SKEW_NS, 20 * HOUR - RETURN_GAP_NS)]


def test_rows_of_late_reports_are_no_moves() -> None:
    """Both machines report the GPU all the time. After an outage, each of their late reports has a row."""
    late = [20 * HOUR + minutes * 60 * NANOS for minutes in range(0, 50, 5)]
    slots = [slot("a", X, HOUR, *late[::2]), slot("b", X, 3 * HOUR, *late[1::2])]
    found = stays(slots, {("a", X): 30 * HOUR, ("b", X): 30 * HOUR}, lambda _, start, end: start < end)
    assert found == {
        ("a", X): [(0, late[0]), (late[0], UNBOUNDED)],
        ("b", X): [(3 * HOUR, late[0]), (late[1], UNBOUNDED)],
    }


@pytest.mark.parametrize(
    ("span", "parts"),
    [((0, 9), [(1, 3), (5, 9)]), ((2, 6), [(2, 3), (5, 6)]), ((3, 5), [(3, 3)]), ((7, 9), [(7, 9)])],
)
def test_stays_within_a_span(span: Interval, parts: list[Interval]) -> None:
    assert clipped([(1, 3), (5, UNBOUNDED)], *span) == parts


STEP = 20 * 60 * NANOS


class Machines:
    """Two GPUs in two slots each of two machines, which report every 20 minutes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.at = 0
        self.begun: dict[tuple[str, str, str], list[int]] = {}
        self.last: dict[Place, int] = {}
        self.address: dict[Place, str] = {}
        self.places = [(machine, address) for machine in "ab" for address in SLOTS]
        self.now = dict(zip((X, Y), self.random.sample(self.places, 2), strict=True))

    def move(self) -> None:
        """Move a GPU, or take it out."""
        moved = self.random.choice([X, Y])
        self.now.pop(moved, None)
        if self.random.random() < 0.8:
            self.now[moved] = self.random.choice([one for one in self.places if one not in self.now.values()])

    def report(self) -> dict[str, str]:
        """Let the machines report; return the machine of each GPU."""
        self.at += STEP
        for view, (machine, address) in self.now.items():
            place = machine, view
            if self.address.get(place) != address or self.at - self.last[place] > RETURN_GAP_NS:
                self.begun.setdefault((machine, view, address), []).append(self.at)
            self.address[place], self.last[place] = address, self.at
        return {view: machine for view, (machine, _) in self.now.items()}

    def judged(self) -> dict[Place, list[Interval]]:
        slots = [slot(one, view, *times, address=address) for (one, view, address), times in self.begun.items()]
        found = stays(slots, self.last)
        return {place: found.get(place, [(0, UNBOUNDED)]) for place in self.last}


@settings(max_examples=examples(200, 5000), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_moves_never_change_where_gpus_have_been(seed: int) -> None:
    machines = Machines(seed)
    truth: dict[int, dict[str, str]] = {}
    judged: dict[int, dict[Place, list[Interval]]] = {}
    for _ in range(14):
        reported = machines.report()
        truth[machines.at], judged[machines.at] = reported, machines.judged()
        if machines.random.random() < 0.5:
            machines.move()
    final = judged[machines.at]
    for at, of_view in truth.items():
        assert {(machine, view) for view, machine in of_view.items()} <= _at(final, at), at
        assert all(machine == of_view[view] for machine, view in _at(final, at) if view in of_view), at
        for until, found in judged.items():
            assert at > until or _at(found, at) == _at(final, at), (at, until)


def _at(found: Mapping[Place, list[Interval]], at: int) -> set[Place]:
    """Return where GPUs were at an instant."""
    return {place for place, own in found.items() if any(start <= at < end for start, end in own)}
