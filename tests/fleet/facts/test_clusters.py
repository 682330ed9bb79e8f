import numpy as np

from gpufleet.fleet.facts.clusters import (
    BusyShares,
    ClusterReading,
    NearestReport,
    UtilizationCounts,
    cluster_table,
    count_late_clusters,
    utilization_counts,
)
from gpufleet.fleet.rules.facts import NO_ROW, FactTable
from gpufleet.model.finding import RuleScope


def seen(name: str, unseen: float, *, retired: bool = False) -> ClusterReading:
    nearest = NearestReport(unseen_seconds=unseen, interval_seconds=30, late_after_seconds=75, stale_after_seconds=300)
    return ClusterReading(id=name, retired=retired, nearest=nearest)


def test_clusters_that_stopped_together_are_counted() -> None:
    readings = [
        *(seen("a", 100), seen("b", 130), seen("c", 160), seen("d", 161)),
        *(seen("e", 5000), seen("f", 5001), seen("g", 10), seen("h", 110, retired=True)),
        ClusterReading(id="never", retired=False),
    ]
    assert count_late_clusters(readings) == {"clusters": 7, "jointly_late_clusters": 3}  # a to c, or b to d
    assert count_late_clusters([]) == {"clusters": 0, "jointly_late_clusters": 0}


def test_cluster_without_reports_has_no_time() -> None:
    never = ClusterReading(id="never", retired=True, expected_gpus=8, busy_before_ratio=0.5)
    table = cluster_table([seen("a", 100), never])
    assert table.column("unseen_seconds")[0] == 100
    assert np.isnan(table.column("unseen_seconds")[1])
    assert table.column("stale_after_seconds")[0] == 300
    assert table.column("expected_gpus")[1] == 8
    assert table.column("busy_before_ratio")[1] == 0.5
    assert np.isnan(table.column("reporting_gpus")).all()
    assert table.retired.tolist() == [False, True]


def test_gpus_are_counted_by_utilisation() -> None:
    machines = FactTable(
        RuleScope.MACHINE,
        ("a/1", "b/1", "?"),
        {"reporting_gpus": [5, None, 1]},
        parents={RuleScope.CLUSTER: [0, 1, NO_ROW]},
    )
    devices = FactTable(
        RuleScope.DEVICE,
        [f"gpu-{number}" for number in range(7)],
        {"utilization_ratio": [0, 0.5, 0, None, 0, 1, 1]},
        parents={RuleScope.MACHINE: [0, 0, 0, 1, 2, NO_ROW, 0]},
        retired=[False] * 6 + [True],
    )
    assert [one.tolist() for one in utilization_counts(devices, machines, 2)] == [[5, 0], [3, 0], [2, 0]]


def busy_shares(*minutes: tuple[float, int, int, int]) -> list[float | None]:
    """Return the share of a cluster at each second with numbers of reporting GPUs, known ones and those in use."""
    shares = BusyShares()
    return [
        shares.before(second, ["a"], UtilizationCounts(*map(np.array, ([reporting], [known], [known - busy])))).get("a")
        for second, reporting, known, busy in minutes
    ]


def test_busy_share_is_the_largest_of_the_hour_before() -> None:
    counts = ((0, 10, 4), (60, 10, 9), (120, 10, 1), (3660, 0, 0), (3721, 10, 0), (7400, 10, 3), (7460, 10, 0))
    found = busy_shares(*((second, known, known, busy) for second, known, busy in counts))
    assert found == [None, 0.4, 0.9, None, None, None, 0.3]


def test_busy_gpus_that_stopped_reporting_do_not_count() -> None:
    found = busy_shares((0, 16, 16, 8), (60, 8, 8, 0), (120, 12, 12, 0), (180, 16, 16, 0))
    assert found == [None, 0, 4 / 12, 8 / 16]


def test_gpus_without_a_utilisation_were_not_in_use() -> None:
    """A job ends on two GPUs. The utilisation of the others is absent, as in MIG mode."""
    assert busy_shares((0, 20, 2, 2), (60, 20, 2, 0)) == [None, 0.1]
