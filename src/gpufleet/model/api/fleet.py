"""The whole fleet in one answer."""

import datetime as dt

import msgspec

from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.liveness import State


class HubHearing(msgspec.Struct, frozen=True, kw_only=True):
    """How well the hub itself hears: what it could not hear, it does not hold against anybody.

    Attributes:
        listening_seconds: since it started, time in which it could hear.
        deaf_seconds: since it started, time in which it stood still or turned batches away.
        deaf: it turned batches away just now, and took none since.
        flush_lag_seconds: age of the oldest acknowledged batch that the store does not have.
        clock_behind_seconds: how far the hub's clock is behind the clocks of its senders (median; negative where it is
            ahead); None with fewer than three senders.
    """

    listening_seconds: float
    deaf_seconds: float
    deaf: bool
    flush_lag_seconds: float
    clock_behind_seconds: float | None


class FleetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/fleet`. Closed clusters are counted as retired, and in no total.

    Attributes:
        at: when it was made, by the hub's clock.
        hub: how well it hears.
        states: how many clusters there are in each state.
        senders, machines: how many there are in each state, over all clusters.
        gpus_reporting: over the clusters that are not lost, as their `coverage` has it.
        gpus_expected: over all clusters of which anybody can say.
        not_counted: clusters of which nobody can say how many GPUs there should be.
        complete_up_to: up to when everything that was measured anywhere is here, but for what is missing; the earliest
            of the clusters'.
        missing_batches: lost or still on the way.
        clusters: each of them, by id.
        words: "312 of 320 GPUs report; 2 of 3 clusters are live".
    """

    at: dt.datetime
    hub: HubHearing
    states: dict[State, int]
    senders: dict[State, int]
    machines: dict[State, int]
    gpus_reporting: int
    gpus_expected: int
    not_counted: tuple[str, ...]
    complete_up_to: dt.datetime | None
    missing_batches: int
    clusters: tuple[ClusterRecord, ...]
    words: str
