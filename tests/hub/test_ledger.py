"""What is held, counted as it comes, against counting all of it."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.hub.ledger import Ledger, key_of
from gpufleet.hub.run import Run
from gpufleet.model.ledger import Held, SequenceKey
from tests.hub.liveness.test_tally import Spoke, batch_of

WORDS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["s", "t"]), st.sampled_from("ef"), st.integers(1, 12))
)
SILENT = Spoke(
    ago=0, since_start=True, ahead=0.0, interval=None, unsent_ago=None, queued=0, dropped=0, answered_ago=None,
    conflict=False, machine_behind=0, retired=False, cloned=False,
)  # fmt: skip


@given(WORDS, st.booleans())
def test_what_is_missing_is_counted_as_batches_come(words: list[tuple[str, str, str, int]], again: bool) -> None:
    ledger = Ledger({SequenceKey("a", "s", "e"): Held(ranges=((2, 3), (20, 20)))})
    for cluster, sender, epoch, seq in words:
        batch = batch_of(sender, SILENT, 1)
        batch.cluster, batch.epoch, batch.seq = cluster, epoch, seq
        ledger.hold(key_of(batch), batch, 7, 1)
    if again:
        ledger.replace(SequenceKey("a", "s", "e"), Run(Held(ranges=((3, 3),))))
    runs = list(ledger.runs())
    assert ledger.missing == sum(numbers.missing for _, numbers in runs)
    for cluster in "ab":
        own = sum(numbers.missing for key, numbers in runs if key.cluster == cluster)
        assert ledger.missing_by_cluster().get(cluster, 0) == own
        for sender in ("s", "t", "u"):
            of_sender = {key.epoch: numbers for key, numbers in runs if (key.cluster, key.sender) == (cluster, sender)}
            assert dict(ledger.runs_of(cluster, sender)) == of_sender
