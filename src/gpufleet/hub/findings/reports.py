"""Reports of senders and machines at an instant, in columns: the time without a report, and its limits."""

from collections.abc import Sequence

import msgspec
import numpy as np

from gpufleet.fleet.facts.clusters import NearestReport
from gpufleet.fleet.rules.logic import Column
from gpufleet.hub.liveness.limits import DEFAULT_INTERVAL_SECONDS
from gpufleet.hub.liveness.senders import TrackedSender, answered_at
from gpufleet.hub.liveness.states import CLOCK_STEP_NS, LivenessSnapshot
from gpufleet.hub.query.records import machine_freshness
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.liveness import State
from gpufleet.model.time import NANOS, to_ns

NO_SENDER = -1
NO_MACHINE = -1


class SenderColumns(msgspec.Struct, frozen=True):
    """Senders of a cluster, in the order of their rows.

    Attributes:
        names: their names.
        tracked: their newest reports.
        places: row by name.
        unseen: ingest seconds since their newest report; NaN for a target that never answered.
        late, stale: limits of that time.
        interval: declared interval in seconds, NaN if none was declared.
        ahead: seconds that its clock is ahead of the hub's; NaN if the hub creates its batches.
        received_at: receipt of the newest report, nanoseconds since 1970.
        is_plain: see `ReportRows`.
    """

    names: list[str]
    tracked: list[TrackedSender]
    places: dict[str, int]
    unseen: Column
    late: Column
    stale: Column
    interval: Column
    ahead: Column
    received_at: Column
    is_plain: Column

    @property
    def is_current(self) -> Column:
        """Whether each newest report still describes the present: the sender is live or late."""
        return self.unseen < self.stale


def sender_columns(instant: LivenessSnapshot, cluster: str) -> SenderColumns:
    """Return the senders of a cluster."""
    known = instant.senders.of(cluster)
    rows = instant.senders.report_rows(cluster)[: len(known)]  # a sender may have been added in between
    tracked = [one for _, one in known]
    late, now = np.ascontiguousarray(rows["late"]), instant.second
    # As in `sender_freshness`: without a report since the start, and not yet late, a sender keeps its state.
    is_verified = rows["since_start"] | (now >= late)
    unseen = np.maximum(np.where(is_verified, now, 0.0) - rows["reported_at"], 0.0)
    is_plain = np.ascontiguousarray(rows["is_plain"])
    for place in np.flatnonzero(~is_plain):
        if answered_at(tracked[place].newest) == 0:
            unseen[place] = np.nan
    return SenderColumns(
        names=[name for name, _ in known],
        tracked=tracked,
        places={name: place for place, (name, _) in enumerate(known)},
        unseen=unseen,
        late=late,
        stale=np.ascontiguousarray(rows["stale"]),
        interval=np.array([_interval(one) for one in tracked], np.float64),
        ahead=np.ascontiguousarray(rows["ahead"]),
        received_at=np.ascontiguousarray(rows["received_at"]),
        is_plain=is_plain,
    )


def _interval(known: TrackedSender) -> float:
    heartbeat = known.newest.heartbeat
    return np.nan if heartbeat is None else heartbeat.interval_seconds


def nearest_report(senders: SenderColumns, retired: Column) -> NearestReport | None:
    """Return the most recent report of senders that are not retired; None if none ever reported."""
    unseen = np.where(retired, np.nan, senders.unseen)
    if np.isnan(unseen).all():
        return None
    place = int(np.nanargmin(unseen))
    return NearestReport(
        unseen_seconds=float(unseen[place]),
        interval_seconds=float(np.nan_to_num(senders.interval[place], nan=DEFAULT_INTERVAL_SECONDS)),
        late_after_seconds=float(senders.late[place]),
        stale_after_seconds=float(senders.stale[place]),
    )


class MachineColumns(msgspec.Struct, frozen=True):
    """Machines of a cluster.

    Attributes:
        records: the machines, as the registry knows them.
        sender: row of the sender of each machine, `NO_SENDER` if it never reported.
        unseen: ingest seconds since its newest report, or since it is listed if it never reported; NaN if unknown.
        interval: declared interval of its sender in seconds.
        retired: whether it is no longer expected.
        is_current: whether its newest report describes the present: it is live or late, and not retired.
        is_late: whether it is late, stale or lost by the limits of its sender.
        ahead: seconds that the clock of its sender is ahead of the hub's; NaN if unknown or without a sender.
    """

    records: Sequence[MachineRecord]
    sender: Column
    unseen: Column
    interval: Column
    retired: Column
    is_current: Column
    is_late: Column
    ahead: Column

    def select(self, *, retired: bool) -> list[MachineRecord]:
        """Return the retired machines, or the others."""
        return [one for one, is_ in zip(self.records, self.retired.tolist(), strict=True) if is_ is retired]


def machine_columns(
    instant: LivenessSnapshot, records: Sequence[MachineRecord], senders: SenderColumns
) -> MachineColumns:
    """Return the machines of a cluster.

    Args:
        instant: liveness now.
        records: its machines.
        senders: its senders.
    """
    sender = np.array([senders.places.get(one.sender, NO_SENDER) for one in records], np.int64)
    follows = _follow_senders(records, senders, sender, instant.not_flushed)
    unseen, retired = np.full(len(records), np.nan), np.zeros(len(records), bool)
    unseen[follows] = senders.unseen[sender[follows]]
    for number in np.flatnonzero(~follows).tolist():
        one = records[number]
        liveness = instant.machine(machine_freshness(one))
        retired[number] = liveness.state is State.RETIRED
        if one.named_only:
            unseen[number] = instant.unseen_since(to_ns(one.first_seen))
        elif liveness.unseen_seconds is not None:
            unseen[number] = liveness.unseen_seconds
    interval = np.full(len(records), np.nan)
    interval[sender != NO_SENDER] = senders.interval[sender[sender != NO_SENDER]]
    return MachineColumns(
        records=records,
        sender=sender,
        unseen=unseen,
        interval=np.nan_to_num(interval, nan=DEFAULT_INTERVAL_SECONDS),
        retired=retired,
        is_current=(unseen < np.append(senders.stale, 0.0)[sender]) & ~retired,
        is_late=unseen >= np.append(senders.late, np.nan)[sender],
        ahead=np.append(senders.ahead, np.nan)[sender],
    )


def _follow_senders(
    records: Sequence[MachineRecord], senders: SenderColumns, sender: Column, not_flushed: float
) -> Column:
    """Return whether each machine has the state of its sender: its newest report is that of the sender.

    The report of a machine may be later by the delay of flushes.
    """
    follows: Column = sender != NO_SENDER
    follows = follows & np.array([one.retired_at is None and not one.named_only for one in records], bool)
    follows[follows] = senders.is_plain[sender[follows]]
    last_seen = np.array([to_ns(one.last_seen) for one in records], np.int64)
    lag = senders.received_at[sender[follows]] - last_seen[follows]
    follows[follows] = (lag >= -CLOCK_STEP_NS) & (lag <= not_flushed * NANOS)
    return follows


def retired_senders(senders: SenderColumns, machines: MachineColumns) -> Column:
    """Return whether all machines of each sender are retired. A machine that a sender only lists does not count."""
    counts = np.zeros((2, len(senders.names)), np.int64)
    is_own = machines.sender != NO_SENDER
    is_own &= np.array([not one.named_only for one in machines.records], bool)
    np.add.at(counts, (machines.retired[is_own].astype(np.int64), machines.sender[is_own]), 1)
    found: Column = (counts[1] > 0) & (counts[0] == 0)
    return found


def only_machines(senders: SenderColumns, machines: MachineColumns) -> Column:
    """Return the position of each sender's machine, `NO_MACHINE` if it has none or several."""
    found = np.full(len(senders.names), NO_MACHINE, np.int64)
    places = np.flatnonzero(machines.sender != NO_SENDER)
    of_sender = machines.sender[places]
    found[of_sender] = places
    found[np.bincount(of_sender, minlength=len(found)) > 1] = NO_MACHINE
    return found
