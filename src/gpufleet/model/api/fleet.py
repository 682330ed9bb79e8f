"""Answer about the whole fleet."""

import datetime as dt

import msgspec

from gpufleet.model.api.findings import EvaluationRecord
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.finding import Severity
from gpufleet.model.liveness import State


class HubIngestState(msgspec.Struct, frozen=True, kw_only=True):
    """Ingest state of the hub. Time in which the hub did not ingest never counts as a sender's missed heartbeats.

    Attributes:
        ingesting_seconds: time since start in which the hub ingested.
        not_ingesting_seconds: time since start in which it was suspended or rejected batches.
        rejecting: the last batches were rejected and none was accepted since.
        flush_lag_seconds: age of the oldest acknowledged batch that the store does not have.
        clock_behind_seconds: how far the hub's clock is behind its senders' clocks (median; negative if ahead); None
            with fewer than three senders whose clock is known.
    """

    ingesting_seconds: float
    not_ingesting_seconds: float
    rejecting: bool
    flush_lag_seconds: float
    clock_behind_seconds: float | None


class FleetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/fleet`. Closed clusters count as retired, and in no total.

    Attributes:
        at: creation time of the answer, by the hub's clock.
        hub: ingest state of the hub.
        states: number of clusters in each state.
        senders, machines: number in each state, over all clusters.
        gpus_reporting: over the clusters that are not lost, as in their `coverage`.
        gpus_expected: over all clusters with an expected number.
        not_counted: clusters without an expected number of GPUs.
        complete_up_to: everything measured up to this time was received, except `missing_batches`; the earliest of the
            clusters' times.
        missing_batches: lost or still on the way.
        findings: number of open findings by severity, those of the hub included; None if the rules were not evaluated
            since the hub's start.
        evaluation: evaluation of the rules.
        clusters: every cluster, by id.
        summary: "312 of 320 GPUs report; 2 of 3 clusters are live".
    """

    at: dt.datetime
    hub: HubIngestState
    states: dict[State, int]
    senders: dict[State, int]
    machines: dict[State, int]
    gpus_reporting: int
    gpus_expected: int
    not_counted: tuple[str, ...]
    complete_up_to: dt.datetime | None
    missing_batches: int
    findings: dict[Severity, int] | None
    evaluation: EvaluationRecord
    clusters: tuple[ClusterRecord, ...]
    summary: str
