"""Verdicts of a cluster over time: first and last time of each status, and changes. Pure.

- An unknown status is recorded, but ends no known one: that continues if the next known status is the same.
- Times never decrease: if the hub's clock was set back, the last recorded time counts.
- Items that the contract or the tier no longer has are dropped.
"""

import msgspec

from gpufleet.fleet.contract.check import ItemStatus
from gpufleet.fleet.contract.verdict import (
    ClusterVerdict,
)
from gpufleet.model.contract import ClusterVisibility, Tier


class StatusSpan(msgspec.Struct, frozen=True, array_like=True):
    """First and last time of a status, nanoseconds since 1970."""

    first: int
    last: int


class TrackedItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Status of an item over time.

    Attributes:
        item: id.
        status: newest status.
        known: newest status other than unknown; None if there was none.
        since: begin of `known`, nanoseconds since 1970; 0 without one.
        seen: first and last time of each status.
    """

    item: str
    status: ItemStatus
    known: ItemStatus | None = None
    since: int = 0
    seen: dict[ItemStatus, StatusSpan] = {}


class ClusterHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verdicts of a cluster over time, for storage. Start with an empty one.

    Attributes:
        at: time of the newest verdict, nanoseconds since 1970; 0 before the first.
        visibility: newest visibility other than unknown; None if there was none.
        since: begin of that visibility.
        tier: tier of the newest verdict; None if it was not known.
        items: items of the newest verdict, in its order.
    """

    at: int = 0
    visibility: ClusterVisibility | None = None
    since: int = 0
    tier: Tier | None = None
    items: tuple[TrackedItem, ...] = ()

    def find(self, item: str) -> TrackedItem | None:
        """Return the history of an item, or None."""
        return next((one for one in self.items if one.item == item), None)


class ItemChange(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a known status of an item.

    Attributes:
        item: id; empty for the visibility of the cluster.
        at: nanoseconds since 1970.
        before, after: status, or visibility.
    """

    item: str
    at: int
    before: str
    after: str


def update_history(history: ClusterHistory, verdict: ClusterVerdict) -> tuple[ClusterHistory, tuple[ItemChange, ...]]:
    """Return the history with a verdict, and the changes of known status, in the order of the items."""
    at = max(verdict.at, history.at)
    known = {one.item: one for one in history.items}
    changes: list[ItemChange] = []
    items = [_update(known.get(one.item), one.item, one.status, at, changes) for one in verdict.items]
    visibility, since = history.visibility, history.since
    if verdict.visibility is not ClusterVisibility.UNKNOWN and verdict.visibility is not visibility:
        if visibility is not None:
            changes.append(ItemChange(item="", at=at, before=visibility, after=verdict.visibility))
        visibility, since = verdict.visibility, at
    return ClusterHistory(
        at=at, visibility=visibility, since=since, tier=verdict.judged_tier, items=tuple(items)
    ), tuple(changes)


def _update(
    tracked: TrackedItem | None, item: str, status: ItemStatus, at: int, changes: list[ItemChange]
) -> TrackedItem:
    seen = {} if tracked is None else dict(tracked.seen)
    first = seen[status].first if status in seen else at
    seen[status] = StatusSpan(first, at)
    known, since = (None, 0) if tracked is None else (tracked.known, tracked.since)
    if status is not ItemStatus.UNKNOWN and status is not known:
        if known is not None:
            changes.append(ItemChange(item=item, at=at, before=known, after=status))
        known, since = status, at
    return TrackedItem(item=item, status=status, known=known, since=since, seen=seen)
