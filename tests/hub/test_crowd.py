from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.limits import EPOCHS_A_SENDER, Crowd
from gpufleet.model.stored.ledger import Held, SequenceKey


def key(sender: str, epoch: str = "e", cluster: str = "c") -> SequenceKey:
    return SequenceKey(cluster, sender, epoch)


def test_a_cluster_has_so_many_senders_and_others_do_not_feel_it() -> None:
    crowd = Crowd(2)
    for name in ("a", "b"):
        assert crowd.refusal(key(name), 0) == ("", "")
        crowd.add(key(name))
    field, words = crowd.refusal(key("c"), 0)
    assert field == "sender"
    assert "'c' has 2 senders of the 2 that it may have" in words
    assert crowd.refusal(key("a", "another"), 0) == ("", "")
    assert crowd.refusal(key("c", cluster="other"), 0) == ("", "")


def test_its_senders_have_so_many_epochs_together() -> None:
    crowd = Crowd(2)
    for number in range(2 * EPOCHS_A_SENDER):
        assert crowd.refusal(key("a", str(number)), 0) == ("", "")
        crowd.add(key("a", str(number)))
    assert crowd.refusal(key("a", "one more"), 0)[0] == "epoch"
    assert crowd.refusal(key("a", "other", "other"), 0) == ("", "")


def test_what_is_on_its_way_counts() -> None:
    crowd = Crowd(2)
    assert crowd.refusal(key("a"), 1) == ("", "")
    assert crowd.refusal(key("a"), 2)[0] == "sender"


def test_a_ledger_counts_what_it_was_given() -> None:
    ledger = Ledger({key("a"): Held(ranges=((1, 2),)), key("b"): Held(ranges=((1, 1),))}, max_senders=2)
    assert ledger.refusal(key("c"), 0)[0] == "sender"
    ledger.replace(key("a"), ledger.run(key("a")))  # known: no new one
    assert ledger.refusal(key("a", "new"), 0) == ("", "")
