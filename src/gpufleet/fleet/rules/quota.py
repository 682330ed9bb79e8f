"""Quota of tracked findings by cluster. Pure."""

from collections import Counter
from collections.abc import Iterable

from gpufleet.model.finding import RuleScope
from gpufleet.model.stored.findings import cluster_of

ALWAYS_TRACKED = frozenset({RuleScope.HUB, RuleScope.CLUSTER, RuleScope.SENDER})
"""Scopes without a quota.

The number of their subjects has other limits: operators register clusters, and `ingest.max_senders` limits the senders
of each cluster.
"""


class FindingQuota:
    """Number of tracked findings of each cluster, and the room for more.

    Half of the maximum is divided equally between the clusters. Each cluster can always use its share. The other half
    is common: a cluster can use it beyond its share while there is room. No cluster can use the share of another one.
    """

    def __init__(self, maximum: int) -> None:
        """Take the maximum number of findings of all scopes with a quota."""
        self._maximum = maximum
        self._counts: Counter[str | None] = Counter()
        self.divide(())

    def divide(self, clusters: Iterable[str]) -> None:
        """Divide the maximum between these clusters and those with tracked findings.

        If the number of clusters grows, the total can exceed the maximum until findings close.
        """
        number = max(1, len({*clusters, *self._counts}))
        self._share = self._maximum // (2 * number)
        self._common = self._maximum - self._share * number
        self._common_used = sum(max(0, count - self._share) for count in self._counts.values())

    def add(self, scope: RuleScope, subject: str) -> bool:
        """Count a new finding about a subject, given by its key; return False if there is no room for it."""
        if scope in ALWAYS_TRACKED:
            return True
        cluster = cluster_of(subject)
        is_common = self._counts[cluster] >= self._share
        if is_common and self._common_used >= self._common:
            return False
        self._counts[cluster] += 1
        self._common_used += is_common
        return True

    def restore(self, scope: RuleScope, subject: str) -> None:
        """Count a finding that an earlier process tracked. Call `divide` afterwards."""
        if scope not in ALWAYS_TRACKED:
            self._counts[cluster_of(subject)] += 1

    def remove(self, scope: RuleScope, subject: str) -> None:
        """Remove a counted finding."""
        if scope in ALWAYS_TRACKED:
            return
        cluster = cluster_of(subject)
        self._common_used -= self._counts[cluster] > self._share
        self._counts[cluster] -= 1
        if not self._counts[cluster]:
            del self._counts[cluster]
