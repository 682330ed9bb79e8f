"""Facts about clusters. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gpufleet.fleet.rules.facts import NO_ROW, FactTable
from gpufleet.fleet.rules.inputs import INPUTS
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.finding import RuleScope

HOUR_SECONDS = 3600.0

LOST_SECONDS = 3600.0
"""Time without a report from which on a cluster is lost and no longer late."""


class NearestReport(msgspec.Struct, frozen=True, kw_only=True):
    """The most recent report of a cluster's senders.

    Attributes:
        unseen_seconds: ingest time since then.
        interval_seconds: declared interval of its sender.
        late_after_seconds, stale_after_seconds: limits of that sender.
    """

    unseen_seconds: float
    interval_seconds: float
    late_after_seconds: float
    stale_after_seconds: float


class ClusterReading(msgspec.Struct, frozen=True, kw_only=True):
    """State of a cluster at an instant. None for an unknown number.

    Attributes:
        id: its id.
        retired: whether the hub no longer serves it.
        nearest: its most recent report; None if it never reported.
        newest_value_seconds, expected_gpus, reporting_gpus, zero_utilization_ratio, busy_before_ratio,
            uptime_seconds, allocated_devices, unattributed_devices, kubernetes_uids, machines_ratio: inputs of the
            rules.
    """

    id: str
    retired: bool
    nearest: NearestReport | None = None
    newest_value_seconds: float | None = None
    expected_gpus: int | None = None
    reporting_gpus: int | None = None
    zero_utilization_ratio: float | None = None
    busy_before_ratio: float | None = None
    uptime_seconds: float | None = None
    allocated_devices: int | None = None
    unattributed_devices: int | None = None
    kubernetes_uids: int | None = None
    machines_ratio: float | None = None


def cluster_table(readings: Sequence[ClusterReading]) -> FactTable:
    """Return the facts about clusters."""
    of_reports = ("unseen_seconds", "late_after_seconds", "stale_after_seconds")
    nearest = {
        name: [None if one.nearest is None else getattr(one.nearest, name) for one in readings] for name in of_reports
    }
    numbers = INPUTS[RuleScope.CLUSTER].keys() - nearest.keys()
    return FactTable(
        RuleScope.CLUSTER,
        [one.id for one in readings],
        {**nearest, **{name: [getattr(one, name) for one in readings] for name in numbers}},
        retired=[one.retired for one in readings],
    )


def count_late_clusters(readings: Sequence[ClusterReading]) -> dict[str, float]:
    """Return the hub's inputs `clusters` and `jointly_late_clusters`.

    The second is the size of the largest group of late or stale clusters whose last reports are at most two intervals
    of the first of them apart.
    """
    expected = [one.nearest for one in readings if not one.retired and one.nearest is not None]
    late = [one for one in expected if one.late_after_seconds <= one.unseen_seconds < LOST_SECONDS]
    unseen = np.sort(np.array([one.unseen_seconds for one in late]))
    spans = [one.unseen_seconds + 2 * one.interval_seconds for one in late]
    sizes = [
        int(np.searchsorted(unseen, until, "right") - np.searchsorted(unseen, one.unseen_seconds))
        for one, until in zip(late, spans, strict=True)
    ]
    return {"clusters": len(expected), "jointly_late_clusters": max(sizes, default=0)}


class UtilizationCounts(NamedTuple):
    """Numbers of GPUs by cluster: reporting ones, those with a utilisation, and those with a utilisation of 0."""

    reporting: Column
    known: Column
    zero: Column


def utilization_counts(devices: FactTable, machines: FactTable, clusters: int) -> UtilizationCounts:
    """Return the numbers of GPUs of each cluster.

    Args:
        devices: facts about the GPUs, with rows of `machines`.
        machines: facts about the machines, with rows of clusters.
        clusters: number of clusters.
    """
    utilization = devices.column("utilization_ratio")
    of_device, of_machine = devices.parent_rows(RuleScope.MACHINE), machines.parent_rows(RuleScope.CLUSTER)
    known = ~np.isnan(utilization) & ~devices.retired & (of_device != NO_ROW)
    rows = of_machine[of_device[known]]
    is_zero = utilization[known] == 0
    placed, has_cluster = rows != NO_ROW, of_machine != NO_ROW
    weights = np.nan_to_num(machines.column("reporting_gpus")[has_cluster])
    with_value = np.bincount(rows[placed], minlength=clusters)
    reporting = np.bincount(of_machine[has_cluster], weights=weights, minlength=clusters)
    return UtilizationCounts(
        np.maximum(reporting, with_value),  # a lost GPU does not report, but another reader can have its utilisation
        with_value,
        np.bincount(rows[placed & is_zero], minlength=clusters),
    )


class BusyShares:
    """Numbers of GPUs with a utilisation and of those in use, by cluster, in the last hour."""

    def __init__(self) -> None:
        self._past: dict[str, deque[tuple[float, int, int]]] = {}

    def before(self, second: float, clusters: Sequence[str], counts: UtilizationCounts) -> dict[str, float]:
        """Take the present numbers; return what share of the reporting GPUs was in use at one time before, at least.

        GPUs that had a utilisation then and have none now can be those that were in use: they do not count. A cluster
        without earlier numbers, or without a utilisation now, has no share.

        Args:
            second: second of a monotonic clock.
            clusters: ids of all clusters.
            counts: their present numbers.
        """
        past = {one: self._past.get(one, deque()) for one in clusters}
        found = {}
        for one, reporting, known, zero in zip(clusters, *map(np.ndarray.tolist, counts), strict=True):
            kept = past[one]
            while kept and kept[0][0] <= second - HOUR_SECONDS:
                kept.popleft()
            if kept and known:
                found[one] = max(max(0, was_busy - max(0, had - known)) for _, had, was_busy in kept) / reporting
            if known:
                kept.append((second, known, known - zero))
        self._past = past
        return found
