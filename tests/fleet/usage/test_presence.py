"""Presence of GPUs: divisions into vGPUs, GPUs of guests, and stays, compared with a second-by-second count."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.usage.presence import present_intervals, reported_spans
from gpufleet.fleet.usage.residence import MAX_CLOCK_SKEW_NS, UNBOUNDED, Interval
from gpufleet.fleet.usage.units import Place
from gpufleet.model.view import Side, View, ViewKind

SECONDS = 12
HOST_GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
GUEST_GPU = View(kind=ViewKind.GPU, side=Side.GUEST, uuid="GPU-2")
VGPUS = [View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=f"v{n}", parent=HOST_GPU.key) for n in range(2)]
VIEWS: dict[Place, View] = {
    ("host", HOST_GPU.key): HOST_GPU,
    **{("host", view.key): view for view in VGPUS},
    ("guest", GUEST_GPU.key): GUEST_GPU,
}
WHOLE, FIRST, SECOND, INSIDE = VIEWS


def test_recent_report_has_no_end() -> None:
    first = {WHOLE: 1, INSIDE: 2}
    last = {WHOLE: 9 * MAX_CLOCK_SKEW_NS, INSIDE: 9 * MAX_CLOCK_SKEW_NS - 1}
    assert reported_spans(first, last, 10 * MAX_CLOCK_SKEW_NS) == {WHOLE: (1, UNBOUNDED), INSIDE: (2, last[INSIDE])}


def test_divided_gpu_counts_before_and_after_its_vgpus() -> None:
    spans = {WHOLE: (0, 100), FIRST: (20, 50), SECOND: (40, 70)}
    views = {place: VIEWS[place] for place in spans}
    found = present_intervals(views, spans, {}, {}, {})
    assert found == {WHOLE: [(0, 20), (70, 100)], FIRST: [(20, 50)], SECOND: [(40, 70)]}


def test_guest_counts_until_its_host_reports_gpus() -> None:
    spans = {WHOLE: (20, UNBOUNDED), INSIDE: (0, 50)}
    views = {place: VIEWS[place] for place in spans}
    assert present_intervals(views, spans, {}, {"guest": "host"}, {})[INSIDE] == [(0, 20)]
    assert present_intervals(views, spans, {}, {"guest": "other"}, {})[INSIDE] == [(0, 50)]
    assert present_intervals(views, spans, {}, {}, {"guest": [(10, 30)]})[INSIDE] == [(0, 10), (30, 50)]


INTERVALS = st.tuples(st.integers(0, SECONDS), st.integers(0, SECONDS)).map(lambda one: (min(one), max(one)))


@given(
    st.fixed_dictionaries(dict.fromkeys(VIEWS, INTERVALS)),
    st.lists(INTERVALS, max_size=2),
    st.lists(INTERVALS, max_size=2),
    st.booleans(),
)
def test_device_is_present_in_each_second_of_its_own(
    spans: dict[Place, Interval], stays: list[Interval], hosted: list[Interval], has_host: bool
) -> None:
    def within(intervals: list[Interval], second: int) -> bool:
        return any(start <= second < end for start, end in intervals)

    of_guest = {"guest": hosted} if hosted else {}
    found = present_intervals(
        VIEWS, spans, {WHOLE: stays} if stays else {}, {"guest": "host"} if has_host else {}, of_guest
    )
    of_host = [spans[place] for place in (WHOLE, FIRST, SECOND)]
    by_host = [(min(start for start, _ in of_host), max(end for _, end in of_host))] if has_host else []
    for second in range(SECONDS):
        split = within([spans[FIRST], spans[SECOND]], second)
        expected = {
            WHOLE: within([spans[WHOLE]], second) and not split and (not stays or within(stays, second)),
            FIRST: within([spans[FIRST]], second),
            SECOND: within([spans[SECOND]], second),
            INSIDE: within([spans[INSIDE]], second) and not within([*by_host, *hosted], second),
        }
        assert {place: within(own, second) for place, own in found.items()} == expected


@given(st.fixed_dictionaries({place: st.integers(0, SECONDS) for place in VIEWS}), st.integers(0, SECONDS))
def test_later_reports_leave_earlier_presence(first: dict[Place, int], now: int) -> None:
    """Devices that appear later change nothing before."""

    def until(end: int) -> dict[Place, list[Interval]]:
        known = {place: (at, end) for place, at in first.items() if at <= end}
        views = {place: VIEWS[place] for place in known}
        return present_intervals(views, known, {}, {"guest": "host"}, {})

    def before(found: dict[Place, list[Interval]]) -> dict[Place, list[Interval]]:
        clipped = {place: [(a, min(b, now)) for a, b in own if a < min(b, now)] for place, own in found.items()}
        return {place: own for place, own in clipped.items() if own}

    assert before(until(now)) == before(until(SECONDS))
