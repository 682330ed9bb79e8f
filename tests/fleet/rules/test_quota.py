"""Quota of tracked findings by cluster."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.rules.quota import FindingQuota
from gpufleet.model.finding import RuleScope
from tests.support.profiles import examples

CLUSTERS = ("a", "b", "c")
MAXIMUM = 60
SHARE = MAXIMUM // (2 * len(CLUSTERS))


def fill(quota: FindingQuota, cluster: str, count: int = 1000) -> int:
    """Add findings about GPUs of a cluster; return how many were added."""
    return sum(quota.add(RuleScope.DEVICE, f"{cluster}/m/{number}") for number in range(count))


def test_single_cluster_has_the_whole_maximum() -> None:
    quota = FindingQuota(MAXIMUM)
    quota.divide(["a"])
    assert fill(quota, "a") == MAXIMUM


def test_share_of_a_cluster_is_free_whatever_others_have() -> None:
    quota = FindingQuota(MAXIMUM)
    quota.divide(CLUSTERS)
    assert [fill(quota, one) for one in CLUSTERS] == [MAXIMUM // 2 + SHARE, SHARE, SHARE]


def test_removed_findings_are_replaced_by_those_of_any_cluster() -> None:
    quota = FindingQuota(MAXIMUM)
    quota.divide(CLUSTERS)
    first = fill(quota, "a")
    fill(quota, "b")
    for number in range(first):
        quota.remove(RuleScope.DEVICE, f"a/m/{number}")
    assert fill(quota, "b") == MAXIMUM // 2
    assert fill(quota, "a") == SHARE


@settings(max_examples=examples(60, 1000), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(CLUSTERS), st.booleans()), max_size=200))
def test_clusters_have_their_share_and_the_total_is_bounded(steps: list[tuple[str, bool]]) -> None:
    quota, held = FindingQuota(12), Counter(dict.fromkeys(CLUSTERS, 0))
    quota.divide(CLUSTERS)
    for cluster, is_added in steps:
        if is_added:
            admitted = quota.add(RuleScope.MACHINE, cluster)
            assert admitted or held[cluster] >= 12 // (2 * len(CLUSTERS))
            held[cluster] += admitted
        elif held[cluster]:
            quota.remove(RuleScope.MACHINE, cluster)
            held[cluster] -= 1
        assert held.total() <= 12
