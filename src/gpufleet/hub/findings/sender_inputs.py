"""Readings of senders: their clocks, their backlog and their lost batches."""

from collections.abc import Mapping

import numpy as np

from gpufleet.fleet.facts.senders import (
    DroppedBatches,
    SenderKey,
    SenderReading,
    missing_batches,
    oldest_queued_seconds,
)
from gpufleet.fleet.rules.logic import Column
from gpufleet.hub.findings.instant import HubInstant
from gpufleet.hub.findings.reports import NO_SENDER, MachineColumns, SenderColumns
from gpufleet.hub.flush.normalise import FUTURE_TOLERANCE_SECONDS
from gpufleet.hub.liveness.limits import DEFAULT_INTERVAL_SECONDS
from gpufleet.hub.liveness.senders import Senders
from gpufleet.model.stored.readings import NewestColumns
from gpufleet.model.time import NANOS, to_ns

CONFLICT_NS = 24 * 3600 * NANOS
"""Age at which an epoch conflict no longer counts."""


def dropped_totals(senders: Senders, cluster: str) -> dict[SenderKey, tuple[str, int]]:
    """Return epoch and total of dropped batches of the senders of a cluster that report it."""
    return {
        (cluster, name): (known.newest.epoch, heartbeat.dropped_total)
        for name, known in senders.of(cluster)
        if (heartbeat := known.newest.own_heartbeat) is not None and heartbeat.dropped_total is not None
    }


def start_dropped(senders: Senders) -> DroppedBatches:
    """Return the memory of dropped batches with the totals that an earlier process received."""
    totals = [dropped_totals(senders, cluster).items() for cluster in senders.clusters]
    return DroppedBatches((who, epoch, total) for own in totals for who, (epoch, total) in own)


def sender_readings(
    cluster: str,
    senders: SenderColumns,
    delays: Column,
    dropped: Mapping[SenderKey, int],
    backfilled: Mapping[SenderKey, float],
    instant: HubInstant,
    uptime_seconds: float,
) -> list[SenderReading]:
    """Return a reading for each sender of a cluster.

    Values that a sender reports about itself are unknown once it is stale. The hub always knows its missing batches and
    conflicts.

    Args:
        cluster: its id.
        senders: its senders.
        delays: result of `data_delays`.
        dropped: batches dropped in the last hour, without zeros.
        backfilled: length of late intervals that are not judged.
        instant: state of the hub.
        uptime_seconds: time since the hub's start.
    """
    found = []
    rows = zip(
        *(senders.names, senders.tracked, senders.is_current.tolist(), senders.unseen.tolist()),
        *(senders.ahead.tolist(), senders.interval.tolist(), delays.tolist()),
        strict=True,
    )
    for name, tracked, is_current, unseen, ahead, interval, delay in rows:
        who, heartbeat = (cluster, name), tracked.newest.own_heartbeat
        missing = missing_batches(instant.missing.get(who, 0), heartbeat)
        conflict = _conflicting(who, instant)
        reports_drops = heartbeat is not None and heartbeat.dropped_total is not None
        if not is_current:
            found.append(
                SenderReading(
                    missing_batches=missing,
                    backfilled_seconds=backfilled.get(who, 0.0),
                    shared_epoch_batches=conflict,
                    uptime_seconds=uptime_seconds,
                )
            )
            continue
        found.append(
            SenderReading(
                clock_ahead_seconds=None if np.isnan(ahead) else ahead,
                interval_seconds=DEFAULT_INTERVAL_SECONDS if np.isnan(interval) else interval,
                data_delay_seconds=delay,
                missing_batches=missing,
                dropped_batches=dropped.get(who, 0 if reports_drops else None),
                oldest_queued_seconds=oldest_queued_seconds(heartbeat, tracked.newest.sent_at, unseen),
                backfilled_seconds=backfilled.get(who, 0.0),
                shared_epoch_batches=conflict,
                uptime_seconds=uptime_seconds,
            )
        )
    return found


def _conflicting(who: SenderKey, instant: HubInstant) -> int:
    conflict = instant.conflicts.get(who)
    if conflict is None or instant.liveness.now - to_ns(conflict.last_at) >= CONFLICT_NS:
        return 0
    return conflict.batches


def data_delays(newest: NewestColumns, machines: MachineColumns, senders: SenderColumns) -> Column:
    """Return the delay of the newest values of each sender in seconds, by a correct clock; NaN without values.

    It is the time from measurement to receipt, plus the seconds that the sender's clock is ahead. An unknown offset
    counts as 0. The delay is unknown if the clock is so far ahead that values are not stored.
    """
    place_of = {one.id: place for place, one in enumerate(machines.records)}
    places = np.array([place_of.get(name, -1) for name in newest.machines], np.int64)
    sender = np.where(places < 0, NO_SENDER, np.append(machines.sender, NO_SENDER)[places])[newest.machine]
    order = np.lexsort((newest.measured_at, newest.received_at))
    order = order[sender[order] != NO_SENDER]
    newest_row = np.full(len(senders.names), -1, np.int64)
    newest_row[sender[order]] = order  # of several rows of a sender the last one stays
    if not len(newest):
        return np.full(len(senders.names), np.nan)
    delay = (np.asarray(newest.received_at) - np.asarray(newest.measured_at))[newest_row] / NANOS
    is_unknown = (newest_row < 0) | (senders.ahead > FUTURE_TOLERANCE_SECONDS)
    return np.where(is_unknown, np.nan, delay + np.nan_to_num(senders.ahead))
