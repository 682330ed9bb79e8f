"""When a GPU was in which machine, out of who told of it until when."""

from collections.abc import Mapping

import pytest

from gpufleet.fleet.usage.residence import (
    MAX_CLOCK_SKEW_NS,
    UNBOUNDED,
    Residence,
    bounded_residences,
    last_reported,
    possibly_moved,
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


def stays(slots: list[StoredSlot], told: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], tuple[int, int]]:
    return {place: (stay.begin, stay.end) for place, stay in bounded_residences(slots, told).items()}


def test_what_stays_where_it_is_is_not_bounded() -> None:
    assert stays([slot("a", X, 1), slot("b", Y, 2)], {("a", X): 9 * HOUR, ("b", Y): 9 * HOUR}) == {}


def test_a_gpu_that_moved_was_in_one_machine_at_a_time() -> None:
    told = {("a", X): 2 * HOUR, ("b", X): 9 * HOUR, ("c", X): 12 * HOUR}
    found = stays([slot("b", X, 3 * HOUR), slot("a", X, HOUR), slot("c", X, 10 * HOUR)], told)
    assert found == {
        ("a", X): (0, 3 * HOUR),
        ("b", X): (3 * HOUR, 10 * HOUR),
        ("c", X): (10 * HOUR, UNBOUNDED),
    }


@pytest.mark.parametrize("both", [1, 5 * HOUR])
def test_a_gpu_of_which_two_machines_tell_at_once_has_not_moved(both: int) -> None:
    told = {("a", X): 3 * HOUR + MAX_CLOCK_SKEW_NS + both, ("b", X): 9 * HOUR}
    assert stays([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], told) == {}


def test_gpu_moved_back_keeps_the_interval_elsewhere() -> None:
    told = {("a", X): 20 * HOUR, ("b", X): 5 * HOUR}
    assert stays([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], told) == {("b", X): (3 * HOUR, 5 * HOUR)}


def test_a_gpu_that_moved_back_from_the_second_of_two_machines() -> None:
    told = {("a", X): 20 * HOUR, ("b", X): 5 * HOUR, ("c", X): 9 * HOUR}
    found = stays([slot("a", X, HOUR), slot("b", X, 3 * HOUR), slot("c", X, 6 * HOUR)], told)
    assert found == {("b", X): (3 * HOUR, 5 * HOUR), ("c", X): (6 * HOUR, 9 * HOUR)}


def test_gpu_reported_by_two_machines_stays_with_both() -> None:
    told = {("a", X): 9 * HOUR, ("b", X): 9 * HOUR - MAX_CLOCK_SKEW_NS}
    assert stays([slot("a", X, HOUR), slot("b", X, 3 * HOUR)], told) == {}


def test_what_came_into_its_slot_is_there_since_then() -> None:
    told = {("a", X): 2 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR}
    found = stays([slot("a", X, HOUR), slot("a", Y, 4 * HOUR), slot("b", X, 6 * HOUR)], told)
    assert found == {("a", X): (0, 4 * HOUR), ("a", Y): (4 * HOUR, UNBOUNDED), ("b", X): (6 * HOUR, UNBOUNDED)}


def test_a_slot_that_it_had_left_before_says_nothing() -> None:
    """X was put into another slot of its machine, Y into its first one; then X moved."""
    slots = [
        slot("a", X, HOUR),
        slot("a", X, 2 * HOUR, "0000:02:00.0"),
        slot("a", Y, 3 * HOUR),
        slot("b", X, 8 * HOUR),
    ]
    found = stays(slots, {("a", X): 7 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR})
    assert found == {("a", X): (0, 8 * HOUR), ("b", X): (8 * HOUR, UNBOUNDED)}


def test_a_swap_of_two_machines() -> None:
    slots = [slot("a", X, HOUR), slot("b", Y, HOUR), slot("a", Y, 5 * HOUR), slot("b", X, 5 * HOUR)]
    told = {("a", X): 4 * HOUR, ("b", Y): 4 * HOUR, ("a", Y): 9 * HOUR, ("b", X): 9 * HOUR}
    assert stays(slots, told) == {
        ("a", X): (0, 5 * HOUR),
        ("b", Y): (0, 5 * HOUR),
        ("a", Y): (5 * HOUR, UNBOUNDED),
        ("b", X): (5 * HOUR, UNBOUNDED),
    }


def test_only_what_a_host_said_a_value_of_counts() -> None:
    def sample(side: Side, at: int, value: Value | Absent) -> StoredSample:
        view = View(kind=ViewKind.GPU, side=side, uuid="GPU-x", pci_address="0000:01:00.0")
        said = Sample(view=view, reader="nvml", lane=Lane.FAST, measured_at=at, values={"gpu_power_watts": value})
        return StoredSample(sample=said, received_at=at)

    lost = Absent(Reason.GPU_LOST, "")
    stored = {
        "host": [sample(Side.HOST, 5, 1.0), sample(Side.HOST, 9, lost)],
        "guest": [sample(Side.GUEST, 7, 1.0)],
        "silent": [sample(Side.HOST, 7, lost)],
    }
    assert last_reported(stored) == {("host", X): 5}


def test_only_machines_that_share_a_gpu_are_asked_about() -> None:
    assert possibly_moved([("a", X), ("b", Y), ("c", X)]) == ["a", "c"]
    assert possibly_moved([("a", X), ("b", Y), ("a", "gpu/GPU-z")]) == []


@pytest.mark.parametrize(
    ("span", "there"), [((0, 9), (3, 6)), ((4, 5), (4, 5)), ((0, 2), (2, 2)), ((7, 9), (7, 7)), ((5, 9), (5, 6))]
)
def test_a_stay_within_a_span(span: tuple[int, int], there: tuple[int, int]) -> None:
    assert Residence(3, 6).within(*span) == there
