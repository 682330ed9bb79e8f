"""GPUs known only by their place in a list: shown where nothing better is, and never twice."""

import pytest

from gpufleet.fleet.devices import Shown, left_out
from gpufleet.model.absence import Reason

LISTED = [Shown("n0", unnamed=True), Shown("n1", unnamed=True)]


def bus(*why: Reason) -> list[Shown]:
    return [Shown(f"b{number}", unnamed=False, why=one) for number, one in enumerate(why)]


def test_another_reader_wins() -> None:
    assert left_out([*LISTED, Shown("real", unnamed=False)]) == {"n0", "n1"}


def test_alone_they_are_shown() -> None:
    assert left_out(LISTED) == frozenset()


@pytest.mark.parametrize("silent", [1, 2])
def test_alone_and_without_values_they_are_shown(silent: int) -> None:
    silent_ones = [Shown(one.key, unnamed=True, why=Reason.STALE) for one in LISTED[:silent]]
    assert left_out([*silent_ones, *LISTED[silent:]]) == frozenset()


def test_without_values_they_stand_for_nothing() -> None:
    stale = [Shown(one.key, unnamed=True, why=Reason.STALE) for one in LISTED]
    assert left_out([*stale, *bus(Reason.STALE, Reason.STALE)]) == {"n0", "n1"}


def test_one_of_them_without_values_is_still_the_same_one() -> None:
    one, other = LISTED
    silent = Shown(other.key, unnamed=True, why=Reason.STALE)
    assert left_out([one, silent, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY)]) == {"b0", "b1"}


def test_the_bus_shows_the_same_ones() -> None:
    assert left_out([*LISTED, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY, Reason.BOUND_TO_VFIO)]) == {"b0", "b1"}


def test_the_bus_shows_another_number() -> None:
    assert left_out([*LISTED, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY, Reason.NO_LIBRARY)]) == {"n0", "n1"}


def test_gpus_that_the_driver_does_not_hold_are_others() -> None:
    assert left_out([*LISTED, *bus(Reason.BOUND_TO_VFIO, Reason.NO_DRIVER)]) == frozenset()


def test_without_them_nothing_changes() -> None:
    assert left_out([Shown("real", unnamed=False), *bus(Reason.NO_LIBRARY)]) == frozenset()
