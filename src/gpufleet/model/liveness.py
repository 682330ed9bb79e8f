"""Liveness: age, completeness and plausibility of reported data."""

import datetime as dt
import enum

import msgspec


class State(enum.StrEnum):
    """Liveness state, by the time without data while the hub was ingesting. `docs/freshness.md` has the limits."""

    NEVER_SEEN = "never_seen"  # expected, but never reported
    LIVE = "live"
    LATE = "late"
    STALE = "stale"
    LOST = "lost"  # excluded from current totals; its last data is shown with its age
    RETIRED = "retired"  # retired by an operator; no longer expected


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sender, machine, view or cluster.

    Attributes:
        state: by the time without data.
        unseen_seconds: time since the newest data was created, counting only time when the hub was ingesting; None if
            it never reported.
        unverified: no data since the hub started, and not overdue yet: the state is that before the start.
        partial: descriptions of known gaps in its data.
        suspect: reasons to doubt its data.
    """

    state: State
    unseen_seconds: float | None
    unverified: bool = False
    partial: tuple[str, ...] = ()
    suspect: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """Return whether the newest report still describes the present: the state is live or late."""
        return self.state in (State.LIVE, State.LATE)


class ExpectedGpus(msgspec.Struct, frozen=True, kw_only=True):
    """Expected number of GPUs by source; None if the source has no count.

    Attributes:
        registration: registered with the cluster, all classes together.
        pci: NVIDIA display and 3D controllers on the PCI buses of the machines, whichever driver is bound.
        nvml: GPUs that the machines' drivers reported last.
        kubernetes: capacity of the whole-GPU resource of the cluster's nodes in Kubernetes.
    """

    registration: int | None = None
    pci: int | None = None
    nvml: int | None = None
    kubernetes: int | None = None

    def best(self, shares: int = 0) -> tuple[int, str] | None:
        """Return the reference for totals and its source: the registration, else the largest of the other counts.

        On a tie, the first of PCI, NVML and Kubernetes. `shares` is the part of the Kubernetes count that cannot be
        whole GPUs.
        """
        if self.registration is not None:
            return self.registration, "registration"
        whole = None if self.kubernetes is None else self.kubernetes - shares
        counts = [(self.pci, "pci"), (self.nvml, "nvml"), (whole, "kubernetes")]
        return max(((count, name) for count, name in counts if count is not None), key=lambda one: one[0], default=None)


class ClusterFreshness(msgspec.Struct, frozen=True, kw_only=True):
    """Freshness and completeness of a cluster.

    Attributes:
        liveness: liveness of the cluster; its state is that of the sender seen last.
        last_seen_at: time of that by the hub's clock; None if no sender ever reported.
        senders, machines: number in each state; empty states are omitted.
        complete_up_to: instant up to which all measured data has arrived, except `missing_batches`: the earliest
            instant of its senders, by their clocks; None if unknown.
        not_waited_for: senders that are lost, retired or without such an instant; `complete_up_to` excludes them.
        missing_batches: batches of all senders that are lost or still in transit.
        dropped_batches: batches that senders report as dropped; None if none reports it: writers, polled targets and
            agents that cannot open their spool do not.
        queued_batches: batches that senders report as queued; None likewise.
        clock_ahead_seconds: offset of the sender clock that is furthest off, negative if it is behind; None if no
            sender's clock is known.
    """

    liveness: Liveness
    last_seen_at: dt.datetime | None
    senders: dict[State, int]
    machines: dict[State, int]
    complete_up_to: dt.datetime | None
    not_waited_for: int
    missing_batches: int
    dropped_batches: int | None
    queued_batches: int | None
    clock_ahead_seconds: float | None
