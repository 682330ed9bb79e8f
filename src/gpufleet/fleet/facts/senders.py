"""Facts about senders. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.rules.facts import FactTable
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.finding import RuleScope
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS

HOUR_SECONDS = 3600.0

SenderKey = tuple[str, str]
"""Cluster and sender."""


class SenderReading(msgspec.Struct, frozen=True):
    """State of a sender at an instant. Fields are inputs of the rules; None for an unknown number."""

    clock_ahead_seconds: float | None = None
    interval_seconds: float | None = None
    data_delay_seconds: float | None = None
    missing_batches: int | None = None
    dropped_batches: int | None = None
    oldest_queued_seconds: float | None = None
    shared_epoch_batches: int | None = None
    backfilled_seconds: float | None = None
    uptime_seconds: float | None = None


def sender_table(
    keys: Sequence[str],
    readings: Sequence[SenderReading],
    *,
    clusters: Column | Sequence[int],
    machines: Column | Sequence[int],
    retired: Column | Sequence[bool],
) -> FactTable:
    """Return the facts about senders.

    Args:
        keys: their keys.
        readings: one per sender.
        clusters, machines: rows of their parents.
        retired: whether nothing is expected of a sender.
    """
    fields = SenderReading.__struct_fields__
    return FactTable(
        RuleScope.SENDER,
        keys,
        {name: [getattr(one, name) for one in readings] for name in fields},
        parents={RuleScope.CLUSTER: clusters, RuleScope.MACHINE: machines},
        retired=retired,
    )


def oldest_queued_seconds(heartbeat: Heartbeat | None, sent_at: int, unseen_seconds: float) -> float | None:
    """Return the age of a sender's oldest queued batch, 0 without a backlog; None if the sender does not report it.

    Args:
        heartbeat: its newest one.
        sent_at: time of its newest report, by its own clock.
        unseen_seconds: time since that report.
    """
    if heartbeat is None or (heartbeat.queue_records != 0 and heartbeat.oldest_unsent is None):
        return None
    if not heartbeat.oldest_unsent:
        return 0.0
    return max(0, sent_at - heartbeat.oldest_unsent) / NANOS + unseen_seconds


def missing_batches(missing: int, heartbeat: Heartbeat | None) -> int | None:
    """Return the missing batches that the sender reports neither as queued nor as dropped under its present epoch.

    None if batches are missing and the sender cannot open its spool, in which they may be queued.
    """
    if not missing or heartbeat is None:
        return missing
    if heartbeat.queue_records is None or heartbeat.dropped_total is None:
        return None
    return max(0, missing - heartbeat.queue_records - heartbeat.dropped_total)


class DroppedBatches:
    """Batches that senders dropped in the last hour, from the totals in their heartbeats."""

    def __init__(self, known: Iterable[tuple[SenderKey, str, int]] = ()) -> None:
        """Take the totals before the start: (sender, epoch, total)."""
        self._totals = {who: (epoch, total) for who, epoch, total in known}
        self._increases: dict[SenderKey, deque[tuple[float, int]]] = {}

    def add(self, second: float, totals: Mapping[SenderKey, tuple[str, int]]) -> dict[SenderKey, int]:
        """Take the epoch and total of every sender; return the increase in the last hour of those that dropped batches.

        A total starts at 0 with a new spool. A higher total under another epoch continues the known one: batches that a
        sender keeps in memory have an epoch of their own. What an unknown sender dropped before is not counted.

        Args:
            second: second of a monotonic clock.
            totals: of all senders with a heartbeat.
        """
        for who, (epoch, total) in totals.items():
            known = self._totals.get(who)
            if known is None or known == (epoch, total):
                continue
            has_new_spool = epoch != known[0] and total < known[1]
            increase = total if has_new_spool else total - known[1]
            if increase > 0:
                self._increases.setdefault(who, deque()).append((second, increase))
        self._totals.update(totals)
        found = {}
        for who, increases in list(self._increases.items()):
            while increases and increases[0][0] <= second - HOUR_SECONDS:
                increases.popleft()
            if increases:
                found[who] = sum(count for _, count in increases)
            else:
                del self._increases[who]
        return found
