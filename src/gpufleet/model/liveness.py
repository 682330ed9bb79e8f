"""How recently something was heard of, and how complete and believable what it told is."""

import datetime as dt
import enum

import msgspec


class State(enum.StrEnum):
    """How long something has been silent, measured while its hub could hear. `docs/freshness.md` has the limits."""

    NEVER_SEEN = "never_seen"  # expected, and nothing ever came of it
    LIVE = "live"
    LATE = "late"
    STALE = "stale"
    LOST = "lost"  # counted in no current total; what it told last is shown with its age
    RETIRED = "retired"  # an operator said that it is gone; it is expected no more


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sender, machine, view or cluster.

    Attributes:
        state: by its silence.
        silent_seconds: since its newest word was made, as far as the hub could hear; None where it never spoke.
        unverified: it has not spoken since the hub started, and had no time to yet: the state is the one from before.
        partial: what is missing of it, in words; nothing where nothing is known to be missing.
        suspect: why what it tells may not be what it seems, in words.
    """

    state: State
    silent_seconds: float | None
    unverified: bool = False
    partial: tuple[str, ...] = ()
    suspect: tuple[str, ...] = ()


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """How many GPUs there should be, by everyone who can tell; None where one cannot.

    Attributes:
        registration: as the cluster was registered, all classes together.
        pci: NVIDIA's display and 3D controllers on the buses of the machines, whoever has them bound.
        nvml: GPUs that the machines' drivers told of last.
        kubernetes: what the cluster's nodes have of the resource of whole GPUs, as Kubernetes says.
    """

    registration: int | None = None
    pci: int | None = None
    nvml: int | None = None
    kubernetes: int | None = None

    def best(self, shares: int = 0) -> tuple[int, str] | None:
        """The number to hold totals against, and who says it: the registration, else the largest of the others.

        Of those that say the same, the first of bus, driver and Kubernetes. `shares` of what Kubernetes says can be no
        GPUs of their own.
        """
        if self.registration is not None:
            return self.registration, "registration"
        whole = None if self.kubernetes is None else self.kubernetes - shares
        told = [(self.pci, "pci"), (self.nvml, "nvml"), (whole, "kubernetes")]
        return max(((count, name) for count, name in told if count is not None), key=lambda one: one[0], default=None)


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """How fresh and complete a cluster is.

    Attributes:
        liveness: of the cluster: it has the state of its sender that was heard last.
        heard_at: when that was, by the hub's clock; None where nobody ever spoke.
        senders, machines: how many there are in each state; states that nobody is in are left out.
        complete_up_to: up to when everything that was measured is here, but for `missing_batches`: the earliest of its
            senders', by their clocks; None where nobody can say.
        not_waited_for: senders that are lost, retired or never said when: `complete_up_to` leaves them out.
        missing_batches: lost or still on the way, over all senders.
        dropped_batches: what senders say that they gave up.
        queued_batches: what senders say that waits at them.
        clock_ahead_seconds: of the sender whose clock is furthest off; negative where it is behind; None without any.
    """

    liveness: Liveness
    heard_at: dt.datetime | None
    senders: dict[State, int]
    machines: dict[State, int]
    complete_up_to: dt.datetime | None
    not_waited_for: int
    missing_batches: int
    dropped_batches: int
    queued_batches: int
    clock_ahead_seconds: float | None
