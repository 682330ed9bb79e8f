"""Reasons of absence and their order."""

import pytest

from gpufleet.model.absence import Absent, Reason, worst_absence


@pytest.mark.parametrize(
    ("reasons", "worst"),
    [
        ((Reason.NOT_SUPPORTED, Reason.GPU_LOST), Reason.GPU_LOST),
        ((Reason.DRIVER_ERROR, Reason.RESET_REQUIRED, Reason.NOT_SUPPORTED), Reason.RESET_REQUIRED),
        ((Reason.NOT_SUPPORTED, Reason.NOT_IN_DRIVER), Reason.NOT_IN_DRIVER),
        ((Reason.NO_DATA, Reason.TIMEOUT), Reason.TIMEOUT),
        ((Reason.NOT_SUPPORTED, Reason.UNKNOWN), Reason.UNKNOWN),
        ((Reason.NOT_SUPPORTED,), Reason.NOT_SUPPORTED),
    ],
)
def test_worst_reason_wins_in_any_order(reasons: tuple[Reason, ...], worst: Reason) -> None:
    absences = [Absent(reason) for reason in reasons]
    assert worst_absence(absences).reason is worst
    assert worst_absence(reversed(absences)).reason is worst


def test_first_of_equal_reasons_has_the_detail() -> None:
    first, second = Absent(Reason.TIMEOUT, "a"), Absent(Reason.TIMEOUT, "b")
    assert worst_absence([Absent(Reason.NO_DATA), first, second]) == first
