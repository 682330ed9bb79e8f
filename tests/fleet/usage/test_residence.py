"""Residence of a GPU in a machine, derived from the machines' last reports of it."""

from collections.abc import Mapping

import pytest

from gpufleet.fleet.usage.residence import (
    MAX_CLOCK_SKEW_NS,
    UNBOUNDED,
    Residence,
    bounded_residences,
    last_reported,
    possibly_moved,
    succession,
)
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.inventory import StoredSlot
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.stored.samples import StoredSample
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind

HOUR = 3600 * NANOS
X, Y = "gpu/GPU-x", "gpu/GPU-y"


def slot(machine: str, view: str, first: int, address: str = "0000:01:00.0", newest: int = 0) -> StoredSlot:
    return StoredSlot(
        cluster="c", machine=machine, view=view, address=address, first=first, newest=newest or first, last_seen=0
    )


def intervals(
    slots: list[StoredSlot], reported: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], tuple[int, int]]:
    return {place: (stay.begin, stay.end) for place, stay in bounded_residences(slots, reported).items()}


def test_residence_of_a_gpu_that_never_moved_is_unbounded() -> None:
    assert intervals([slot("a", X, 1), slot("b", Y, 2)], {("a", X): 9 * HOUR, ("b", Y): 9 * HOUR}) == {}


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
    reported = {("a", X): 3 * HOUR + MAX_CLOCK_SKEW_NS + both, ("b", X): 9 * HOUR}
    assert intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported) == {}


def test_gpu_moved_back_keeps_the_interval_elsewhere() -> None:
    reported = {("a", X): 20 * HOUR, ("b", X): 5 * HOUR}
    assert intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported) == {("b", X): (3 * HOUR, 5 * HOUR)}


def test_gpu_that_moved_back_from_two_machines() -> None:
    reported = {("a", X): 20 * HOUR, ("b", X): 5 * HOUR, ("c", X): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR), slot("c", X, 6 * HOUR)], reported)
    assert found == {("b", X): (3 * HOUR, 5 * HOUR), ("c", X): (6 * HOUR, 9 * HOUR)}


def test_gpu_reported_by_two_machines_stays_with_both() -> None:
    reported = {("a", X): 9 * HOUR, ("b", X): 9 * HOUR - MAX_CLOCK_SKEW_NS}
    assert intervals([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], reported) == {}


def test_gpu_ends_the_residence_of_its_predecessor_in_the_slot() -> None:
    reported = {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR), slot("b", X, 6 * HOUR)], reported)
    assert found == {("a", X): (0, 4 * HOUR), ("a", Y): (4 * HOUR, UNBOUNDED), ("b", X): (6 * HOUR, UNBOUNDED)}


def test_replacement_in_an_earlier_slot_does_not_end_residence() -> None:
    """X moves to another slot, Y takes its first slot, and later X moves to another machine."""
    slots = [
        slot("a", X, HOUR),
        slot("a", X, 2 * HOUR, "0000:02:00.0"),
        slot("a", Y, 3 * HOUR),
        slot("b", X, 8 * HOUR),
    ]
    found = intervals(slots, {("a", X): 7 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR})
    assert found == {("a", X): (0, 8 * HOUR), ("b", X): (8 * HOUR, UNBOUNDED)}


def test_replaced_gpu_is_in_its_slot_until_the_next_one() -> None:
    reported = {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR}
    found = intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR)], reported)
    assert found == {("a", X): (0, 4 * HOUR), ("a", Y): (4 * HOUR, UNBOUNDED)}
    assert intervals([slot("a", X, HOUR), slot("a", Y, 4 * HOUR)], {**reported, ("a", X): 9 * HOUR}) == {}


def test_gpu_replaced_from_another_slot_ends_there() -> None:
    slots = [slot("a", X, HOUR), slot("a", Y, HOUR, "0000:02:00.0"), slot("a", Y, 4 * HOUR)]
    assert intervals(slots, {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR}) == {("a", X): (0, 4 * HOUR)}


@pytest.mark.parametrize(
    ("reported", "intervals"),
    [
        ({}, {}),
        ({"a": (2, 5)}, {"a": [(0, UNBOUNDED)]}),
        ({"a": (2, 5), "b": (7, 9)}, {"a": [(0, 7)], "b": [(7, UNBOUNDED)]}),
        ({"a": (2, 8), "b": (7, 9)}, {"a": [(0, 7)], "b": [(7, UNBOUNDED)]}),
        ({"a": (2, 20), "b": (7, 9)}, {"a": [(0, 7), (9, UNBOUNDED)], "b": [(7, 9)]}),
    ],
)
def test_one_guest_at_a_time_stands_for_a_virtual_machine(
    reported: dict[str, tuple[int, int]], intervals: dict[str, list[tuple[int, int]]]
) -> None:
    assert succession(reported) == intervals


def test_gpus_swapped_between_two_machines() -> None:
    slots = [slot("a", X, HOUR), slot("b", Y, HOUR), slot("a", Y, 5 * HOUR), slot("b", X, 5 * HOUR)]
    reported = {("a", X): 4 * HOUR, ("b", Y): 4 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR}
    assert intervals(slots, reported) == {
        ("a", X): (0, 5 * HOUR),
        ("b", Y): (0, 5 * HOUR),
        ("a", Y): (5 * HOUR, UNBOUNDED),
        ("b", X): (5 * HOUR, UNBOUNDED),
    }


def test_only_host_readings_with_a_value_count_as_reported() -> None:
    def sample(side: Side, at: int, value: Value | Absent) -> StoredSample:
        view = View(kind=ViewKind.GPU, side=side, uuid="GPU-x", pci_address="0000:01:00.0")
        reading = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values={"gpu_power_watts": value})
        return StoredSample(sample=reading, received_at=at)

    lost = Absent(Reason.GPU_LOST, "")
    stored = {
        "host": [sample(Side.HOST, 5, 1.0), sample(Side.HOST, 9, lost)],
        "guest": [sample(Side.GUEST, 7, 1.0)],
        "no-value": [sample(Side.HOST, 7, lost)],
    }
    assert last_reported(stored) == {("host", X): 5}
    assert last_reported(stored, Side.GUEST) == {("guest", X): 7}


def test_only_machines_that_share_a_gpu_may_have_moved_it() -> None:
    assert possibly_moved([("a", X), ("b", Y), ("c", X)]) == ["a", "c"]
    assert possibly_moved([("a", X), ("b", Y), ("a", "gpu/GPU-z")]) == []


@pytest.mark.parametrize(
    ("span", "there"), [((0, 9), (3, 6)), ((4, 5), (4, 5)), ((0, 2), (2, 2)), ((7, 9), (7, 7)), ((5, 9), (5, 6))]
)
def test_residence_within_a_span(span: tuple[int, int], there: tuple[int, int]) -> None:
    assert Residence(3, 6).within(*span) == there
