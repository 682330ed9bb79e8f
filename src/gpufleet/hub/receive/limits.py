"""Limits on the memory of request bodies in flight and on the senders and epochs of each cluster.

Senders and epochs are kept permanently, in memory and in the registry, so no token may create an unlimited number.
"""

from gpufleet.model.stored.ledger import SequenceKey


class ByteBudget:
    """Memory budget of all requests together. Use it from the event loop.

    Attributes:
        held: bytes reserved now.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, count: int) -> bool:
        """Reserve `count` more bytes; return False and reserve nothing if that would exceed the limit."""
        if self.held + count > self._limit:
            return False
        self.held += count
        return True

    def release(self, count: int) -> None:
        """Release reserved bytes."""
        self.held -= count


EPOCHS_PER_SENDER = 4
"""Epochs per allowed sender of a cluster, on average. A wiped spool, a full disk or a copied image starts an epoch."""


class SenderQuota:
    """Known senders and epochs by cluster, and the limit on their number."""

    def __init__(self, max_senders: int) -> None:
        """Set the number of senders that one cluster may have."""
        self._max_senders = max_senders
        self._senders: dict[str, dict[str, tuple[str, ...]]] = {}  # epochs of each sender, in order of arrival
        self._epochs: dict[str, int] = {}

    def add(self, key: SequenceKey) -> None:
        """Count a new sequence run."""
        senders = self._senders.setdefault(key.cluster, {})
        senders[key.sender] = (*senders.get(key.sender, ()), key.epoch)
        self._epochs[key.cluster] = self._epochs.get(key.cluster, 0) + 1

    def epochs(self, cluster: str, sender: str) -> tuple[str, ...]:
        """Return the epochs of a sender, in the order in which they were added."""
        return self._senders.get(cluster, {}).get(sender, ())

    def refusal(self, key: SequenceKey, coming: int) -> tuple[str, str]:
        """Return the offending field and a message if a new run exceeds a limit, else two empty strings.

        Args:
            key: of the new run.
            coming: runs of the cluster that are about to be added; each may be of a new sender.
        """
        senders = self._senders.get(key.cluster, {})
        if key.sender not in senders and len(senders) + coming >= self._max_senders:
            detail = f"cluster {key.cluster!r} has {len(senders)} of at most {self._max_senders} senders"
            return "sender", f"{detail} (ingest.max_senders)"
        epochs = self._epochs.get(key.cluster, 0)
        limit = EPOCHS_PER_SENDER * self._max_senders
        if epochs + coming >= limit:
            detail = f"the senders of cluster {key.cluster!r} have {epochs} of at most {limit} epochs"
            return "epoch", f"{detail} ({EPOCHS_PER_SENDER} times ingest.max_senders)"
        return "", ""
