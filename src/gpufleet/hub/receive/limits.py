"""A bound on the memory that bodies on their way may take, all requests together.

How many senders and epochs each cluster has, and how many it may have.

Every one is kept for good, in memory and in the registry: no token may make them without end.
"""

from gpufleet.model.stored.ledger import SequenceKey


class Pressure:
    """Counts bytes that are held, and refuses beyond a limit. Lives on the event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, count: int) -> bool:
        """Hold `count` bytes more; returns False, holding nothing, when that would pass the limit."""
        if self.held + count > self._limit:
            return False
        self.held += count
        return True

    def give_back(self, count: int) -> None:
        """Let go of bytes that were held."""
        self.held -= count


EPOCHS_A_SENDER = 4
"""On average, over the senders that a cluster may have: a wiped spool, a full disk, a copied image each begin one."""


class Crowd:
    """Senders and epochs that are known, by cluster."""

    def __init__(self, max_senders: int) -> None:
        """Take how many senders one cluster may have."""
        self._max_senders = max_senders
        self._senders: dict[str, dict[str, tuple[str, ...]]] = {}  # epochs of each, as they came
        self._epochs: dict[str, int] = {}

    def add(self, key: SequenceKey) -> None:
        """Count a run of numbers that is new."""
        senders = self._senders.setdefault(key.cluster, {})
        senders[key.sender] = (*senders.get(key.sender, ()), key.epoch)
        self._epochs[key.cluster] = self._epochs.get(key.cluster, 0) + 1

    def epochs(self, cluster: str, sender: str) -> tuple[str, ...]:
        """Return the epochs of a sender, in the order in which they were added."""
        return self._senders.get(cluster, {}).get(sender, ())

    def refusal(self, key: SequenceKey, coming: int) -> tuple[str, str]:
        """Return the field and the words for which a run that is new cannot be taken; both empty where it can.

        `coming` runs of the cluster are on their way to be added; each may be another sender.
        """
        senders = self._senders.get(key.cluster, {})
        if key.sender not in senders and len(senders) + coming >= self._max_senders:
            words = f"cluster {key.cluster!r} has {len(senders)} senders of the {self._max_senders} that it may have"
            return "sender", f"{words} (ingest.max_senders)"
        epochs = self._epochs.get(key.cluster, 0)
        most = EPOCHS_A_SENDER * self._max_senders
        if epochs + coming >= most:
            words = f"the senders of cluster {key.cluster!r} have begun {epochs} epochs of the {most} that they may"
            return "epoch", f"{words} ({EPOCHS_A_SENDER} times ingest.max_senders)"
        return "", ""
