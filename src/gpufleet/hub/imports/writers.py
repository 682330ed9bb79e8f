"""State of the writers of imports, bounded in memory: decoder, newest rows and device holders of each.

A scrape can arrive in parts. So a holder that is missing from a scrape has released the device as of that scrape, but
only once the next scrape begins. The end of a series does not release its holder, because the exporter may be down. The
holding is then not repeated, and ends at its last report (`fleet.attribution.reported`).
"""

import asyncio
import secrets
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.hub.imports.remote_write import is_known_metric
from gpufleet.hub.imports.row_cache import CURRENT_SECONDS, RowCache
from gpufleet.hub.imports.state_events import ImportedStates
from gpufleet.model.errors import WireLimitError
from gpufleet.model.holdings import REPEAT_SECONDS, Holder, Holding, HoldingVerdict, Share
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.ports.clock import Clock


def fair_share(demands: Iterable[int], capacity: int) -> int:
    """Return the max-min fair limit for each demand; `capacity` if all demands fit together."""
    left, in_order = capacity, sorted(demands)
    for number, demand in enumerate(in_order):
        share = left // (len(in_order) - number)
        if demand > share:
            return share
        left -= demand
    return capacity


METHOD = "exporter_labels"
"""Method of these holdings."""

Place = tuple[Machine, str]
"""A machine, and the key of a view."""

ObservedHolders = Mapping[tuple[str, int], frozenset[Holder]]
"""Holders named by series, by key of the view and instant (nanoseconds since 1970)."""


class ViewHolders(msgspec.Struct, frozen=True):
    """Holders of one view.

    Attributes:
        at: newest instant with a report; 0 if the state was loaded from the store.
        last_seen: time of the newest request with the view, by the hub's clock.
        reported_at: time at which all of the current holdings were last reported, by the hub's clock; 0 if loaded.
        seen: holders named at that instant.
        since: start of each current holder.
        together: number of holders named in the last complete scrape that named the holder, by holder.
    """

    at: int = 0
    last_seen: int = 0
    reported_at: int = 0
    seen: frozenset[Holder] = frozenset()
    since: Mapping[Holder, int] = {}
    together: Mapping[Holder, int] = {}


class HolderTracker:
    """Tracker of the holdings reported by one writer. Pure."""

    def __init__(self) -> None:
        self._held: dict[Place, ViewHolders] = {}

    def __len__(self) -> int:
        """Return the number of tracked views."""
        return len(self._held)

    def remember(self, machine: Machine, holdings: Iterable[Holding], now: int) -> None:
        """Add the present holdings of a machine from the store; `now` is the hub's clock."""
        for one in holdings:
            if METHOD in one.methods:
                before = self._held.get((machine, one.view), ViewHolders(last_seen=now))
                since = {**before.since, one.holder: one.since}
                self._held[machine, one.view] = msgspec.structs.replace(before, since=since)

    def changes(
        self, machine: Machine, found: ObservedHolders, now: int
    ) -> tuple[tuple[Holding, ...], dict[Place, ViewHolders]]:
        """Return the holdings of a machine to report, and the state to `keep` once they are durable.

        These are the changed holdings, and each current one again after `REPEAT_SECONDS`.

        Args:
            machine: the machine.
            found: holders of its views.
            now: nanoseconds since 1970 by the hub's clock.
        """
        new: dict[Place, ViewHolders] = {}
        changed: dict[tuple[str, Holder, int], Holding] = {}
        for (view, at), holders in sorted(found.items(), key=lambda one: one[0]):
            place = machine, view
            before = new.get(place) or self._held.get(place, ViewHolders())
            if at < before.at:
                continue  # older than the current state
            after = msgspec.structs.replace(_holders_after(before, at, holders), last_seen=now)
            for holder, since in before.since.items() - after.since.items():
                sharers = after.together.get(holder, len(before.since))
                changed[view, holder, since] = _holding(view, holder, since, before.at, sharers)
            if after.since != before.since or now - before.reported_at >= REPEAT_SECONDS * NANOS:
                for holder, since in after.since.items():
                    changed[view, holder, since] = _holding(view, holder, since, None, len(after.since))
                after = msgspec.structs.replace(after, reported_at=now)
            new[place] = after
        return tuple(changed.values()), new

    def keep(self, held: Mapping[Place, ViewHolders]) -> None:
        """Apply the state returned by `changes`."""
        self._held.update(held)

    def drop(self, machine: Machine) -> None:
        """Drop the views of a machine, without an end of their holdings."""
        self._held = {place: held for place, held in self._held.items() if place[0] != machine}

    def drop_before(self, at: int) -> None:
        """Drop views without requests since an instant by the hub's clock. Their holdings end at their last report."""
        self._held = {place: held for place, held in self._held.items() if held.last_seen >= at}


def _holders_after(before: ViewHolders, at: int, holders: frozenset[Holder]) -> ViewHolders:
    """Return the holders of a view after a part of a scrape."""
    if at == before.at:
        since, seen, together = dict(before.since), before.seen | holders, before.together
    else:
        # The previous scrape is complete: holders that it does not name had released the view by then.
        gone = before.since.keys() - before.seen if before.at else set()
        since = {holder: begun for holder, begun in before.since.items() if holder not in gone}
        seen = holders
        together = {one: count for one, count in before.together.items() if one in before.since}
        together |= dict.fromkeys(before.seen, len(before.seen))
    for holder in sorted(holders, key=lambda one: one.id):
        since.setdefault(holder, at)
    return msgspec.structs.replace(before, at=at, seen=seen, since=since, together=together)


def _holding(view: str, holder: Holder, since: int, until: int | None, sharers: int) -> Holding:
    share = Share.TIMESLICE if sharers > 1 else Share.EXCLUSIVE
    return Holding(
        view=view,
        holder=holder,
        share=Share.MIG if view.startswith(f"{ViewKind.MIG}/") else share,
        since=since,
        until=until,
        methods=(METHOD,),
        verdict=HoldingVerdict.OBSERVED_ONLY,
    )


MAX_WRITERS = 64
"""Maximum number of writers of one cluster, because each keeps its newest rows in memory."""

MAX_SERIES = 500_000
"""Maximum number of cached series of all writers, about 1.5 GB.

Beyond it, the clusters get fair shares, and so do the writers of each cluster. Series beyond a writer's share are
accepted, but decoded again each time, which costs processor time.
"""

MAX_SUBJECTS = 250_000
"""Maximum number of subjects of one cluster's writers: devices in each of their lanes, and held views. About 1 GB."""

ROWS_KEPT_SECONDS = CURRENT_SECONDS
"""A subject without new rows for this long is dropped: texts of points need the static values that are current."""

INACTIVE_SECONDS = 900
"""A writer without requests for this long is dropped once another one needs room."""

TIDY_SECONDS = 60
"""Interval between cleanups of a writer's memory."""


class ImportWriter:
    """State of one writer since the start.

    Attributes:
        cluster, name: its cluster, and its name as a sender.
        lock: held while a request is processed.
        decoder: of its remote-write requests, with the series cache.
        rows: its newest rows.
        states: its newest states of GPUs.
        holders: its newest reported holders.
        loaded: machines whose newest rows were loaded from the store, to the id of the machine with that name, None if
            there was none yet.
        excess: number of machines of its newest request that exceeded a limit.
        epoch, seq: of the newest batch.
        last_seen: time of its newest request, in seconds of the monotonic clock.
    """

    def __init__(self, cluster: str, name: str, merge_window_ns: int) -> None:
        self.cluster, self.name = cluster, name
        self.lock = asyncio.Lock()
        self.decoder = WriteDecoder(is_wanted=is_known_metric)
        self.rows = RowCache(merge_window_ns)
        self.states = ImportedStates()
        self.holders = HolderTracker()
        self.loaded: dict[Machine, str | None] = {}
        self.excess = 0
        self.epoch, self.seq = secrets.token_hex(16), 0
        self.last_seen = 0.0
        self._tidy_at = 0.0

    @property
    def subjects(self) -> int:
        """Number of subjects and held views."""
        return len(self.rows) + len(self.holders)

    def batch(self, reports: Sequence[MachineReport], now: int, heartbeat: Heartbeat | None = None) -> Batch:
        """Return the next batch."""
        return Batch(
            cluster=self.cluster,
            sender=self.name,
            epoch=self.epoch,
            seq=self.seq + 1,
            sent_at=now,
            heartbeat=heartbeat,
            reports=tuple(reports),
        )

    def drop(self, machine: Machine) -> None:
        """Drop everything that is known of a machine."""
        self.rows.drop(machine)
        self.states.drop(machine)
        self.holders.drop(machine)
        self.loaded.pop(machine, None)

    def expire(self, clock: Clock) -> None:
        """Drop old state, at most once in `TIDY_SECONDS` because this scans everything."""
        if clock.monotonic() < self._tidy_at:
            return
        self._tidy_at = clock.monotonic() + TIDY_SECONDS
        self.rows.drop_before(clock.monotonic() - ROWS_KEPT_SECONDS)
        self.holders.drop_before(clock.now_ns() - HOLDING_TTL_NS)
        machines = self.rows.machines
        self.loaded = {machine: id_ for machine, id_ in self.loaded.items() if machine in machines}
        self.states.drop_except(self.rows, machines)


class ImportWriters:
    """State of all writers. Use it from the event loop."""

    def __init__(self, clock: Clock, *, max_series: int = MAX_SERIES, max_subjects: int = MAX_SUBJECTS) -> None:
        self._clock = clock
        self._max_series, self._max_subjects = max_series, max_subjects
        self._known: dict[str, dict[str, ImportWriter]] = {}  # by cluster and name
        self._is_scarce = False  # whether there are more series than `max_series`

    def of(self, cluster: str, name: str, merge_window_ns: int) -> ImportWriter:
        """Return a writer and mark it as seen now. Raises WireLimitError if its cluster has too many."""
        of_cluster = self._known.setdefault(cluster, {})
        known = of_cluster.get(name)
        if known is None:
            self._evict_writer(of_cluster)
            known = of_cluster[name] = ImportWriter(cluster, name, merge_window_ns)
        known.last_seen = self._clock.monotonic()
        return known

    def bound_series(self) -> None:
        """Assign fair shares of the series cache, so that a large writer does not reduce a neighbour's share."""
        every = [one for of_cluster in self._known.values() for one in of_cluster.values()]
        if not self._is_scarce and sum(one.decoder.known.kept for one in every) <= self._max_series:
            return
        demands: dict[str, dict[str, int]] = {}
        for one in every:
            demands.setdefault(one.cluster, {})[one.name] = self._demand(one)
        totals = [sum(of_writers.values()) for of_writers in demands.values()]
        self._is_scarce = sum(totals) > self._max_series
        cluster_share = fair_share(totals, self._max_series)
        for cluster, of_writers in demands.items():
            writer_share = fair_share(of_writers.values(), cluster_share)
            for name in of_writers:
                one = self._known[cluster][name]
                one.decoder.known.allow(0 if self._is_inactive(one) else writer_share)
                if not one.lock.locked():  # a thread may be decoding with it, and trims it at the next start
                    one.decoder.known.trim()

    def _demand(self, writer: ImportWriter) -> int:
        """Return the number of series that a writer would cache: the whole cache if some were not cached."""
        if self._is_inactive(writer):
            return 0
        known = writer.decoder.known
        return self._max_series if known.missed else min(known.kept, self._max_series)

    def expire(self, cluster: str) -> None:
        """Drop old state of a cluster's writers, including inactive ones, which do not do so themselves."""
        for one in self._known[cluster].values():
            if not one.lock.locked():  # a thread may be merging rows with it
                one.expire(self._clock)

    def check_subjects(self, writer: ImportWriter, more: int) -> None:
        """Check that `more` new subjects fit the cluster's limit. Raises WireLimitError."""
        if more and self._subjects(writer.cluster) + more > self._max_subjects:
            of_cluster = self._known[writer.cluster]
            for name in [one.name for one in of_cluster.values() if self._is_inactive(one)]:
                del of_cluster[name]
        if more and self._subjects(writer.cluster) + more > self._max_subjects:
            writer.decoder.known.clear()
            detail = f"the writers of cluster {writer.cluster!r} have reached {self._max_subjects} devices"
            raise WireLimitError("devices", f"{detail}, counted in each lane: use agents instead")

    def _evict_writer(self, writers: dict[str, ImportWriter]) -> None:
        """Drop a cluster's least recently seen writer if it has too many. Raises WireLimitError if all are active."""
        if len(writers) < MAX_WRITERS:
            return
        longest = min(writers.values(), key=lambda one: one.last_seen)
        if not self._is_inactive(longest):
            detail = f"cluster {longest.cluster!r} already has {MAX_WRITERS} writers: use fewer names"
            raise WireLimitError("sender", detail)
        del writers[longest.name]

    def _is_inactive(self, writer: ImportWriter) -> bool:
        return not writer.lock.locked() and self._clock.monotonic() - writer.last_seen >= INACTIVE_SECONDS

    def _subjects(self, cluster: str) -> int:
        return sum(one.subjects for one in self._known[cluster].values())
