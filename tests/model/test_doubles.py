"""GPUs known only by their place in a list: shown where nothing better is, and never twice."""

from gpufleet.model.absence import Reason
from gpufleet.model.doubles import Shown, left_out

LISTED = [Shown("n0", unnamed=True), Shown("n1", unnamed=True)]


def bus(*why: Reason) -> list[Shown]:
    return [Shown(f"b{number}", unnamed=False, why=one) for number, one in enumerate(why)]


def test_another_reader_wins() -> None:
    assert left_out([*LISTED, Shown("real", unnamed=False)]) == {"n0", "n1"}


def test_alone_they_are_shown() -> None:
    assert left_out(LISTED) == frozenset()


def test_the_bus_shows_the_same_ones() -> None:
    assert left_out([*LISTED, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY, Reason.BOUND_TO_VFIO)]) == {"b0", "b1"}


def test_the_bus_shows_another_number() -> None:
    assert left_out([*LISTED, *bus(Reason.NO_LIBRARY, Reason.NO_LIBRARY, Reason.NO_LIBRARY)]) == {"n0", "n1"}


def test_gpus_that_the_driver_does_not_hold_are_others() -> None:
    assert left_out([*LISTED, *bus(Reason.BOUND_TO_VFIO, Reason.NO_DRIVER)]) == frozenset()


def test_without_them_nothing_changes() -> None:
    assert left_out([Shown("real", unnamed=False), *bus(Reason.NO_LIBRARY)]) == frozenset()
