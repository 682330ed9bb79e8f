"""Order of a sender's reports: by sequence number, independent of clocks and order of arrival."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.receive.ledger import MAX_GAPS, STEP_NS, ReportOrder

NOW = 10**18
SECOND = 10**9


@given(st.permutations(range(1, 31)), st.lists(st.integers(-(10**6), 10**6), min_size=30, max_size=30))
def test_report_order_follows_sequence_numbers(arrivals: list[int], clock: list[int]) -> None:
    """The hub's clock jumps by up to days, and the hub restarts between any two reports."""
    order = ReportOrder()
    places: dict[int, int] = {}
    for number, seconds in zip(arrivals, clock, strict=True):
        places[number] = order.place(number, NOW + seconds * SECOND)
        order = ReportOrder(order.gaps, order.top)
    in_order = [places[number] for number in sorted(places)]
    assert all(before < after for before, after in pairwise(in_order))


def test_new_report_is_placed_at_its_receive_time() -> None:
    order = ReportOrder()
    assert [order.place(number, NOW + number * SECOND) for number in (1, 2, 3)] == [NOW + n * SECOND for n in (1, 2, 3)]


def test_backlog_is_placed_below_the_end_of_its_gap() -> None:
    order = ReportOrder()
    order.place(1, NOW)
    order.place(100, NOW + SECOND)
    order.place(200, NOW + 2 * SECOND)
    assert order.place(99, NOW + 50 * SECOND) == NOW + SECOND - STEP_NS
    assert order.place(150, None) == NOW + 2 * SECOND - 50 * STEP_NS


def test_place_of_the_highest_sequence_number_is_an_instant() -> None:
    order = ReportOrder()
    order.place(1, NOW)
    assert order.place(2**63 - 1, NOW) < 2**63 - 1
    assert order.place(2**62, NOW) >= 1


def test_batch_of_an_expired_gap_is_the_oldest() -> None:
    order = ReportOrder()
    for number in range(2, 2 * MAX_GAPS + 12, 2):
        order.place(number, NOW + number * SECOND)
    assert len(order.gaps) == MAX_GAPS
    assert order.place(1, NOW) < order.place(3, NOW) < NOW
