"""Tiers, waivers and verdicts of the adoption contract, as registrations and answers have them."""

import datetime as dt
import enum
from typing import Annotated

import msgspec

ItemId = Annotated[str, msgspec.Meta(pattern=r"^[a-z]{2,20}\.[a-z][a-z0-9_]{1,40}$")]


class Tier(enum.IntEnum):
    """Mode of collection of a cluster."""

    PULL = 0
    COLLECTOR = 1
    EXPORTERS = 2
    AGENT = 3
    HOSTS = 4


class ContractWaiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Permission of a cluster not to meet an item for a time.

    Attributes:
        item: id of the item.
        until: end; from then on the waiver does not count.
        reason: why it was granted, and by whom.
    """

    item: ItemId
    until: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class ClusterVisibility(enum.StrEnum):
    """Visibility of a cluster by the contract."""

    VISIBLE = "visible"
    PARTLY = "partly_visible"  # some machines or GPUs are not visible
    NOT_VISIBLE = "not_visible"  # the whole cluster: it does not meet an item about clusters, and no GPU reports
    UNKNOWN = "unknown"  # a MUST item is unknown and the others are met, or the number of GPUs that report is unknown


class ContractSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Newest verdict about a cluster by the adoption contract.

    Attributes:
        at: time of the verdict.
        visibility: the verdict.
        tier: tier by which it was judged; None if nothing is known about the cluster.
        reached_tier: highest tier that is reached, or None.
        percent: met MUST items in percent; None if none applies.
        not_visible: ids of the items by which GPUs are not visible.
        gpus_not_visible: known number of these GPUs.
        machines_without_count: number of machines with such GPUs of unknown number: they are in no count.
    """

    at: dt.datetime
    visibility: ClusterVisibility
    tier: Tier | None
    reached_tier: Tier | None
    percent: float | None
    not_visible: tuple[str, ...]
    gpus_not_visible: int
    machines_without_count: int
