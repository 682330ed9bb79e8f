"""Duration of reported holdings: ended, repeated, and lost."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.attribution.reported import (
    HOLDING_TTL_NS,
    NOT_CERTAIN,
    current_holdings,
    current_states,
    is_certain,
    known_until,
    may_label,
    may_overlap,
    unresolved_counts,
    unresolved_names,
    unresolved_total,
)
from gpufleet.model.holdings import (
    REPEAT_SECONDS,
    DeviceState,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    UnresolvedCount,
)
from gpufleet.model.stored.holdings import StoredHolderStates, StoredHolding
from gpufleet.model.time import LATEST, NANOS

T0 = 1_700_000_000 * NANOS


def reported(since: int, until: int | None, at: int, verdict: HoldingVerdict = HoldingVerdict.AGREED) -> StoredHolding:
    holding = Holding(
        view="gpu/GPU-1",
        holder=Holder(kind=HolderKind.POD, id="p"),
        since=since,
        until=until,
        methods=("kubelet",),
        verdict=verdict,
    )
    return StoredHolding(cluster="c", machine="m", holding=holding, reported_at=at)


INSTANTS = st.integers(T0, T0 + 3 * HOLDING_TTL_NS) | st.sampled_from(
    [T0, T0 + HOLDING_TTL_NS - 1, T0 + HOLDING_TTL_NS, T0 + HOLDING_TTL_NS + 1]
)
STORED = st.builds(reported, since=INSTANTS, until=st.none() | INSTANTS, at=INSTANTS)


def test_holding_lasts_while_it_is_repeated() -> None:
    assert HOLDING_TTL_NS > 3 * REPEAT_SECONDS * NANOS
    one = reported(T0, None, T0 + 7)
    assert known_until(one, T0 + 7 + HOLDING_TTL_NS) is None
    assert known_until(one, T0 + 8 + HOLDING_TTL_NS) == T0 + 7


@given(stored=STORED, now=INSTANTS)
def test_reported_end_counts_at_any_time(stored: StoredHolding, now: int) -> None:
    if stored.holding.until is not None:
        assert known_until(stored, now) == stored.holding.until


@given(stored=STORED, first=INSTANTS, second=INSTANTS)
def test_lost_holding_stays_ended(stored: StoredHolding, first: int, second: int) -> None:
    before, after = (known_until(stored, now) for now in sorted((first, second)))
    assert before is None or before == after


@given(stored=STORED, now=INSTANTS, repeated=INSTANTS)
def test_later_report_never_shortens_a_holding(stored: StoredHolding, now: int, repeated: int) -> None:
    again = msgspec.structs.replace(stored, reported_at=max(stored.reported_at, repeated))
    assert (known_until(again, now) or LATEST) >= (known_until(stored, now) or LATEST)


@given(stored=STORED, now=INSTANTS)
def test_lost_holding_ends_within_its_reports(stored: StoredHolding, now: int) -> None:
    until = known_until(stored, now)
    if stored.holding.until is None and until is not None:
        assert stored.holding.since <= until <= max(stored.holding.since, now)


@given(many=st.lists(STORED, max_size=5), now=INSTANTS)
def test_present_holdings_have_no_end(many: list[StoredHolding], now: int) -> None:
    expected = tuple(one.holding for one in many if known_until(one, now) is None)
    assert current_holdings(many, now) == expected


@given(stored=STORED, start=INSTANTS, end=INSTANTS, later=st.integers(0, 3 * HOLDING_TTL_NS))
def test_query_of_an_interval_includes_every_holding_in_it(
    stored: StoredHolding, start: int, end: int, later: int
) -> None:
    until = known_until(stored, start + later) or LATEST
    if stored.holding.since < end and until > start:
        assert may_overlap(stored, start, end)


@given(stored=STORED, start=INSTANTS, end=INSTANTS)
def test_interval_excludes_holdings_that_ended_or_were_lost_before(stored: StoredHolding, start: int, end: int) -> None:
    last = known_until(stored, LATEST)
    assert last is not None
    if stored.holding.since >= end or last + HOLDING_TTL_NS < start:
        assert not may_overlap(stored, start, end)


@pytest.mark.parametrize("verdict", list(HoldingVerdict))
def test_contradicted_and_unconfirmed_holdings_are_not_certain(verdict: HoldingVerdict) -> None:
    certain = {HoldingVerdict.AGREED, HoldingVerdict.DECLARED_ONLY, HoldingVerdict.OBSERVED_ONLY}
    assert is_certain(reported(T0, None, T0, verdict).holding) is (verdict in certain)
    assert certain.isdisjoint(NOT_CERTAIN)


def test_reading_names_only_a_certain_holder_of_its_own_time() -> None:
    ended, unknown = reported(T0 + 5, T0 + 9, T0), reported(T0, None, T0, HoldingVerdict.UNKNOWN)
    instants = (T0 + 4, T0 + 5, T0 + 8, T0 + 9)

    assert [may_label(ended.holding, at) for at in instants] == [False, True, True, False]
    assert not any(may_label(unknown.holding, at) for at in instants)


def states(
    at: int, *found: HolderState, sender: str = "agent", sent_at: int | None = None, names: int = 0
) -> StoredHolderStates:
    """Return a report of the states of GPU-0, GPU-1, ..."""
    return StoredHolderStates(
        sender=sender,
        reported_at=at,
        sent_at=at if sent_at is None else sent_at,
        devices=tuple(DeviceState(view=f"gpu/GPU-{number}", state=one) for number, one in enumerate(found)),
        unresolved=(
            UnresolvedCount(source="kubelet", names=names, examples=tuple(f"{sender}{n}" for n in range(names))),
        ),
    )


def present(now: int, *reports: StoredHolderStates) -> dict[str, str]:
    return {view: one.state.value for view, one in current_states(reports, now).items()}


@pytest.mark.parametrize(
    ("reported_at", "sent_at", "is_present"),
    [
        (T0, T0, True),
        (T0 - HOLDING_TTL_NS, T0 - HOLDING_TTL_NS, True),
        (T0 - HOLDING_TTL_NS - 1, T0, False),
        (T0, T0 - HOLDING_TTL_NS - 1, False),  # received late, from a backlog
        (T0 + HOLDING_TTL_NS + 1, T0, False),  # the hub's clock has moved back
    ],
)
def test_state_is_known_while_it_is_repeated(reported_at: int, sent_at: int, is_present: bool) -> None:
    one = states(reported_at, HolderState.FREE, sent_at=sent_at, names=3)
    assert present(T0, one) == ({"gpu/GPU-0": "free"} if is_present else {})
    assert unresolved_counts([one], T0) == ({"kubelet": 3} if is_present else {})


@given(st.permutations([HolderState.FREE, HolderState.HELD, HolderState.UNKNOWN]), st.integers(1, 3))
def test_least_certain_state_of_several_senders_counts(order: list[HolderState], count: int) -> None:
    reports = [states(T0, one, sender=str(number), names=number) for number, one in enumerate(order[:count])]
    ranked = [HolderState.UNKNOWN, HolderState.HELD, HolderState.FREE]
    assert present(T0, *reports) == {"gpu/GPU-0": min(order[:count], key=ranked.index).value}
    assert unresolved_counts(reports, T0) == {"kubelet": count - 1}
    names = tuple(f"{sender}{number}" for sender in range(count) for number in range(sender))
    assert unresolved_names(reports, T0) == ({"kubelet": names} if names else {})


@pytest.mark.parametrize(
    ("counts", "total"),
    [
        ({}, None),
        ({"kubelet": 0, "slurm": 0}, 0),
        ({"kubelet": None}, None),
        ({"kubelet": None, "processes": 0}, None),
        ({"kubelet": None, "slurm": 2}, 2),
    ],
)
def test_total_is_unknown_if_a_source_may_have_the_first_name(counts: dict[str, int | None], total: int | None) -> None:
    unresolved = tuple(UnresolvedCount(source=source, names=names) for source, names in counts.items())
    one = msgspec.structs.replace(states(T0), unresolved=unresolved)
    assert unresolved_counts([one], T0) == counts
    assert unresolved_total(unresolved_counts([one], T0)) == total


def test_number_of_a_sender_counts_if_the_source_fails_for_another() -> None:
    failed = msgspec.structs.replace(states(T0), unresolved=(UnresolvedCount(source="kubelet", names=None),))
    for reports in ((failed, states(T0, names=1)), (states(T0, names=1), failed)):
        assert unresolved_counts(reports, T0) == {"kubelet": 1}


def test_device_that_a_report_lacks_has_the_state_of_the_others() -> None:
    both = states(T0, HolderState.FREE, HolderState.FREE), states(T0, HolderState.HELD, sender="b")
    assert present(T0, *both) == {"gpu/GPU-0": "held", "gpu/GPU-1": "free"}
