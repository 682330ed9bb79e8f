"""Holdings: the pods, jobs, VMs and allocations that have a device."""

import enum
from typing import Annotated

import msgspec


class HolderKind(enum.StrEnum):
    """Kind of a holder."""

    POD = "pod"
    JOB = "job"
    VM = "vm"
    ALLOCATION = "allocation"


class Share(enum.StrEnum):
    """Sharing mode of a device."""

    EXCLUSIVE = "exclusive"
    TIMESLICE = "timeslice"
    MPS = "mps"
    MIG = "mig"


class HoldingVerdict(enum.StrEnum):
    """Agreement between the evidence for a holding."""

    AGREED = "agreed"
    DECLARED_ONLY = "declared_only"
    OBSERVED_ONLY = "observed_only"
    CONFLICT = "conflict"
    NONE = "none"


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod, job, VM or allocation.

    Attributes:
        kind: kind of holder.
        id: its identity (pod UID, job id, VM UUID, allocation id).
        name: for display.
        namespace: Kubernetes namespace, or empty.
    """

    kind: HolderKind
    id: str
    name: str = ""
    namespace: str = ""


class Holding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Interval in which a holder has a view, with its evidence.

    Attributes:
        view: key of the view.
        holder: holder of the view.
        parent: holder of the holder (pod -> VM -> allocation is a chain).
        share: sharing mode.
        since, until: nanoseconds since 1970; `until` is None while the holding lasts.
        methods: sources of the evidence.
        verdict: agreement between the evidence.
    """

    view: str
    holder: Holder
    parent: Holder | None = None
    share: Share = Share.EXCLUSIVE
    since: int
    until: int | None = None
    methods: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)]
    verdict: HoldingVerdict
