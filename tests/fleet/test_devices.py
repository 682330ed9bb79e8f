"""GPUs known only by their place in a list: shown where nothing better is, and never twice."""

import pytest

from gpufleet.fleet.devices import GpuListing, duplicate_gpus
from gpufleet.model.absence import Reason

LISTED = [GpuListing("n0", unnamed=True), GpuListing("n1", unnamed=True)]


def bus(*why: Reason) -> list[GpuListing]:
    return [GpuListing(f"b{number}", unnamed=False, why=one) for number, one in enumerate(why)]


def test_another_reader_wins() -> None:
    assert duplicate_gpus([*LISTED, GpuListing("real", unnamed=False)]) == {"n0", "n1"}


def test_alone_they_are_shown() -> None:
    assert duplicate_gpus(LISTED) == frozenset()


@pytest.mark.parametrize("silent", [1, 2])
def test_alone_and_without_values_they_are_shown(silent: int) -> None:
    silent_ones = [GpuListing(one.key, unnamed=True, why=Reason.STALE) for one in LISTED[:silent]]
    assert duplicate_gpus([*silent_ones, *LISTED[silent:]]) == frozenset()


def test_without_values_they_stand_for_nothing() -> None:
    stale = [GpuListing(one.key, unnamed=True, why=Reason.STALE) for one in LISTED]
    assert duplicate_gpus([*stale, *bus(Reason.STALE, Reason.STALE)]) == {"n0", "n1"}


def test_one_of_them_without_values_is_still_the_same_one() -> None:
    one, other = LISTED
    silent = GpuListing(other.key, unnamed=True, why=Reason.STALE)
    assert duplicate_gpus([one, silent, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY)]) == {"b0", "b1"}


def test_the_bus_shows_the_same_ones() -> None:
    assert duplicate_gpus([*LISTED, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY, Reason.BOUND_TO_VFIO)]) == {"b0", "b1"}


def test_the_bus_shows_another_number() -> None:
    assert duplicate_gpus([*LISTED, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY, Reason.NO_LIBRARY)]) == {"n0", "n1"}


def test_gpus_that_the_driver_does_not_hold_are_others() -> None:
    assert duplicate_gpus([*LISTED, *bus(Reason.BOUND_TO_VFIO, Reason.NO_DRIVER)]) == frozenset()


def test_without_them_nothing_changes() -> None:
    assert duplicate_gpus([GpuListing("real", unnamed=False), *bus(Reason.NO_LIBRARY)]) == frozenset()
