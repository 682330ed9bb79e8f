"""Who holds a device."""

import enum
from typing import Annotated

import msgspec


class HolderKind(enum.StrEnum):
    """What holds the device."""

    POD = "pod"
    JOB = "job"
    VM = "vm"
    ALLOCATION = "allocation"


class Share(enum.StrEnum):
    """How the device is shared."""

    EXCLUSIVE = "exclusive"
    TIMESLICE = "timeslice"
    MPS = "mps"
    MIG = "mig"


class Verdict(enum.StrEnum):
    """What the evidence for a holding amounts to."""

    AGREED = "agreed"
    DECLARED_ONLY = "declared_only"
    OBSERVED_ONLY = "observed_only"
    CONFLICT = "conflict"
    NONE = "none"


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod, job, VM or allocation.

    Attributes:
        kind: what it is.
        id: its identity (pod UID, job id, VM UUID, allocation id).
        name: for display.
        namespace: where it lives, if it lives in one.
    """

    kind: HolderKind
    id: str
    name: str = ""
    namespace: str = ""


class Holding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a holder has a view, since when, and how we know.

    Attributes:
        view: key of the view.
        holder: who has it.
        parent: who holds the holder (pod -> VM -> allocation is a chain).
        share: how it is shared.
        since, until: nanoseconds since 1970; `until` is None while it lasts.
        methods: how it was established.
        verdict: what the evidence amounts to.
    """

    view: str
    holder: Holder
    parent: Holder | None = None
    share: Share = Share.EXCLUSIVE
    since: int
    until: int | None = None
    methods: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)]
    verdict: Verdict
