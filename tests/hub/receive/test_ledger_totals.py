"""Ledger totals: incremental counters equal a full count."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.receive.ledger import Ledger, SequenceRun, key_of
from gpufleet.hub.receive.sequences import Intervals, is_within, missing_of
from gpufleet.model.stored.ledger import SequenceKey, SequenceState
from tests.hub.liveness.test_tally import SenderCase, batch_of

REPORTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["s", "t"]), st.sampled_from("ef"), st.integers(1, 12))
)
NO_HEARTBEAT = SenderCase(
    ago=0, since_start=True, ahead=0.0, interval=None, unsent_ago=None, queued=0, dropped=0, answered_ago=None,
    conflict=False, machine_behind=0, retired=False, cloned=False,
)  # fmt: skip


def missing(key: SequenceKey, runs: Mapping[SequenceKey, Intervals]) -> set[int]:
    """Return the numbers of a run that neither its cluster nor another cluster received in that epoch."""
    same = [numbers for one, numbers in runs.items() if (one.sender, one.epoch) == (key.sender, key.epoch)]
    return {one for one in range(1, runs[key].highest + 1) if not any(one in numbers for numbers in same)}


@given(REPORTS, st.booleans())
def test_missing_counters_equal_a_full_count(reports: list[tuple[str, str, str, int]], again: bool) -> None:
    ledger = Ledger({SequenceKey("a", "s", "e"): SequenceState(ranges=((2, 3), (20, 20)))})
    for cluster, sender, epoch, seq in reports:
        batch = batch_of(sender, NO_HEARTBEAT, 1)
        batch.cluster, batch.epoch, batch.seq = cluster, epoch, seq
        ledger.hold(key_of(batch), batch, 7, 1)
    if again:
        ledger.replace(SequenceKey("a", "s", "e"), SequenceRun(SequenceState(ranges=((3, 3),))))
    runs = list(ledger.runs())
    lacking = {key: len(missing(key, dict(runs))) for key, _ in runs}
    assert ledger.missing == sum(lacking.values())
    for cluster in "ab":
        own = sum(number for key, number in lacking.items() if key.cluster == cluster)
        assert ledger.missing_by_cluster().get(cluster, 0) == own
        for sender in ("s", "t", "u"):
            own = sum(number for key, number in lacking.items() if (key.cluster, key.sender) == (cluster, sender))
            assert ledger.missing_by_sender().get((cluster, sender), 0) == own
            of_sender = {key.epoch: numbers for key, numbers in runs if (key.cluster, key.sender) == (cluster, sender)}
            assert {epoch: held for epoch, held, _ in ledger.runs_of(cluster, sender)} == of_sender
            for epoch, _, known in ledger.runs_of(cluster, sender):
                gone = missing(SequenceKey(cluster, sender, epoch), dict(runs))
                assert {one for first, last in known.gaps(99) for one in range(first, last + 1)} == gone


@given(REPORTS)
def test_restored_ledger_has_the_same_totals(reports: list[tuple[str, str, str, int]]) -> None:
    ledger = Ledger({})
    for cluster, sender, epoch, seq in reports:
        batch = batch_of(sender, NO_HEARTBEAT, 1)
        batch.cluster, batch.epoch, batch.seq = cluster, epoch, seq
        ledger.hold(key_of(batch), batch, 7, 1)
    restored = Ledger({key: ledger.run(key).held for key, _ in ledger.runs()})
    assert restored.missing_by_sender() == ledger.missing_by_sender()
    assert +Counter(restored.missing_by_cluster()) == +Counter(ledger.missing_by_cluster())
    assert dict(restored.runs()).keys() == dict(ledger.runs()).keys()
    for cluster, sender, epoch, seq in reports:
        assert restored.holds(SequenceKey(cluster, sender, epoch), seq)


@given(st.sets(st.integers(1, 30)), st.integers(0, 31))
def test_merged_ranges_have_the_numbers_of_their_set(numbers: set[int], number: int) -> None:
    ranges = Intervals((one, one) for one in numbers).ranges
    assert is_within(ranges, number) == (number in numbers)
    assert missing_of(ranges) == len(set(range(1, max(numbers, default=0) + 1)) - numbers)


def test_moved_spool_lacks_only_batches_no_cluster_received() -> None:
    old, new = SequenceKey("old", "node", "e"), SequenceKey("new", "node", "e")
    held = {new: SequenceState(ranges=((31, 35),)), old: SequenceState(ranges=((1, 9), (11, 28)))}
    ledger = Ledger(held)
    assert ledger.missing_by_cluster() == {"old": 1, "new": 3}  # 10; 10, 29 and 30
    batch = batch_of("node", NO_HEARTBEAT, 1)
    batch.cluster, batch.epoch, batch.seq = "new", "e", 30
    ledger.hold(key_of(batch), batch, 7, 1)
    batch.cluster, batch.seq = "old", 10  # from a relay's backlog
    ledger.hold(key_of(batch), batch, 7, 1)
    assert +Counter(ledger.missing_by_cluster()) == {"new": 1}
    ((_, numbers, known),) = ledger.runs_of("new", "node")
    assert (len(numbers), known.gaps(9)) == (6, ((29, 29),))
