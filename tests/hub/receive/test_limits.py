"""Limits on senders and epochs per cluster."""

from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.limits import EPOCHS_PER_SENDER, SenderQuota
from gpufleet.model.stored.ledger import SequenceKey, SequenceState


def key(sender: str, epoch: str = "e", cluster: str = "c") -> SequenceKey:
    return SequenceKey(cluster, sender, epoch)


def test_sender_quota_is_per_cluster() -> None:
    quota = SenderQuota(2)
    for name in ("a", "b"):
        assert quota.refusal(key(name), 0) == ("", "")
        quota.add(key(name))
    field, message = quota.refusal(key("c"), 0)
    assert field == "sender"
    assert "ingest.max_senders" in message
    assert quota.refusal(key("a", "another"), 0) == ("", "")
    assert quota.refusal(key("c", cluster="other"), 0) == ("", "")


def test_epoch_quota_is_shared_by_the_senders_of_a_cluster() -> None:
    quota = SenderQuota(2)
    for number in range(2 * EPOCHS_PER_SENDER):
        assert quota.refusal(key("a", str(number)), 0) == ("", "")
        quota.add(key("a", str(number)))
    assert quota.refusal(key("a", "one more"), 0)[0] == "epoch"
    assert quota.refusal(key("a", "other", "other"), 0) == ("", "")


def test_senders_in_flight_count_against_the_quota() -> None:
    quota = SenderQuota(2)
    assert quota.refusal(key("a"), 1) == ("", "")
    assert quota.refusal(key("a"), 2)[0] == "sender"


def test_loaded_sequences_count_against_the_quota() -> None:
    ledger = Ledger(
        {key("a"): SequenceState(ranges=((1, 2),)), key("b"): SequenceState(ranges=((1, 1),))}, max_senders=2
    )
    assert ledger.refusal(key("c"), 0)[0] == "sender"
    ledger.replace(key("a"), ledger.run(key("a")))  # a known sender
    assert ledger.refusal(key("a", "new"), 0) == ("", "")
