"""Who writes, and what is remembered of each: bounded, whatever they name.

What is scarce, shared out: nobody gets more than another who wants more, and nothing is left that somebody wants.

Who holds a device, as the labels of its series say: told when it changes. Pure.

A scrape can come in parts. So a holder that a scrape does not name has let go of the device at that scrape, once the
next one begins. A series that ends says nothing of its holder: the exporter may be down.
"""

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.hub.imports.partial_rows import Rows
from gpufleet.hub.imports.remote_write import is_wanted
from gpufleet.model.errors import WireLimitError
from gpufleet.model.holding import Holder, Holding, Share, Verdict
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.ports.clock import Clock


def fair_share(wants: Iterable[int], room: int) -> int:
    """Return the most that each gets, so that all together get `room` at most; `room` where all get what they want."""
    left, in_order = room, sorted(wants)
    for number, want in enumerate(in_order):
        share = left // (len(in_order) - number)
        if want > share:
            return share
        left -= want
    return room


METHOD = "exporter_labels"
"""How these holdings were established."""

Place = tuple[Machine, str]
"""A machine, and the key of a view."""

Found = Mapping[tuple[str, int], frozenset[Holder]]
"""Key of a view and an instant (nanoseconds since 1970) to the holders that series of it name."""


class Held(msgspec.Struct, frozen=True):
    """Who holds one view.

    Attributes:
        at: the newest instant at which it was told of; 0 where only the store remembers it.
        seen: holders that were named then.
        since: holder to when it was first named, of those that have not let go.
        together: holder to how many were named in the last whole scrape that named it.
    """

    at: int = 0
    seen: frozenset[Holder] = frozenset()
    since: Mapping[Holder, int] = {}
    together: Mapping[Holder, int] = {}


class Holders:
    """What one writer's series say."""

    def __init__(self) -> None:
        self._held: dict[Place, Held] = {}

    def __len__(self) -> int:
        """Return how many views are remembered."""
        return len(self._held)

    def remember(self, machine: Machine, holdings: Iterable[Holding]) -> None:
        """Take what an earlier process has stored of a machine."""
        for one in holdings:
            if METHOD in one.methods and one.until is None:
                before = self._held.get((machine, one.view), Held())
                since = {**before.since, one.holder: one.since}
                self._held[machine, one.view] = msgspec.structs.replace(before, since=since)

    def changes(self, machine: Machine, found: Found) -> tuple[tuple[Holding, ...], dict[Place, Held]]:
        """Return what changes by what was found of a machine, and what is to be kept once that is durable."""
        new: dict[Place, Held] = {}
        told: dict[tuple[str, Holder, int], Holding] = {}
        for (view, at), holders in sorted(found.items(), key=lambda one: one[0]):
            place = machine, view
            before = new.get(place) or self._held.get(place, Held())
            if at < before.at:
                continue  # of a time that is known already
            after = _after(before, at, holders)
            for holder, since in before.since.items() - after.since.items():
                sharers = after.together.get(holder, len(before.since))
                told[view, holder, since] = _holding(view, holder, since, before.at, sharers)
            if after.since != before.since:
                for holder, since in after.since.items():
                    told[view, holder, since] = _holding(view, holder, since, None, len(after.since))
            new[place] = after
        return tuple(told.values()), new

    def keep(self, held: Mapping[Place, Held]) -> None:
        """Remember what `changes` returned."""
        self._held.update(held)

    def forget_before(self, at: int) -> None:
        """Forget views that nothing was said of since then; who held them last stays as it is."""
        self._held = {place: held for place, held in self._held.items() if held.at >= at or not held.at}


def _after(before: Held, at: int, holders: frozenset[Holder]) -> Held:
    """Return who holds a view after a part of a scrape."""
    if at == before.at:
        since, seen, together = dict(before.since), before.seen | holders, before.together
    else:
        # The scrape before is complete: whoever it does not name had let go of the view by then.
        gone = before.since.keys() - before.seen if before.at else set()
        since = {holder: begun for holder, begun in before.since.items() if holder not in gone}
        seen = holders
        together = {one: count for one, count in before.together.items() if one in before.since}
        together |= dict.fromkeys(before.seen, len(before.seen))
    for holder in sorted(holders, key=lambda one: one.id):
        since.setdefault(holder, at)
    return Held(at, seen, since, together)


def _holding(view: str, holder: Holder, since: int, until: int | None, sharers: int) -> Holding:
    share = Share.TIMESLICE if sharers > 1 else Share.EXCLUSIVE
    return Holding(
        view=view,
        holder=holder,
        share=Share.MIG if view.startswith(f"{ViewKind.MIG}/") else share,
        since=since,
        until=until,
        methods=(METHOD,),
        verdict=Verdict.OBSERVED_ONLY,
    )


WRITERS_KEPT = 64
"""Writers of one cluster; each keeps its newest rows in memory. What one cluster names leaves room for the others."""

SERIES_KEPT = 500_000
"""Series that all writers together are remembered by: about 1.5 GB. Beyond it clusters, and each one's writers, have
fair shares; what a writer sends beyond its own is taken, and read anew each time, which costs processor time."""

SUBJECTS_KEPT = 250_000
"""What one cluster's writers may tell of at once: devices in each of their lanes, and who holds them. About 1 GB."""

ROWS_KEPT_SECONDS = 900
"""A subject that nobody wrote of for so long is forgotten; and so is a silent writer, once another one needs room."""

HOLDERS_KEPT_SECONDS = 86_400
"""A view that nobody wrote of for so long has nobody known to hold it when somebody does."""

TIDY_SECONDS = 60
"""Between looks at what of a writer's memory is old."""


class Writer:
    """One writer: what was seen of it since the start.

    Attributes:
        cluster, name: whose it is, and its name as a sender.
        lock: its requests are taken one after the other.
        decoder: of its requests, where those are of remote write.
        rows: its newest.
        holders: who holds what, as it said last.
        asked: machines whose newest rows the store was asked for.
        epoch, seq: of the newest batch.
        heard: when it wrote last, seconds of the monotonic clock.
    """

    def __init__(self, cluster: str, name: str, together_ns: int) -> None:
        self.cluster, self.name = cluster, name
        self.lock = asyncio.Lock()
        self.decoder = WriteDecoder(is_wanted=is_wanted)
        self.rows = Rows(together_ns)
        self.holders = Holders()
        self.asked: set[Machine] = set()
        self.epoch, self.seq = secrets.token_hex(16), 0
        self.heard = 0.0
        self._tidy_at = 0.0

    @property
    def subjects(self) -> int:
        """How much it tells of."""
        return len(self.rows) + len(self.holders)

    def batch(self, reports: Sequence[MachineReport], now: int, beat: Heartbeat | None = None) -> Batch:
        """Return the next batch."""
        return Batch(
            cluster=self.cluster,
            sender=self.name,
            epoch=self.epoch,
            seq=self.seq + 1,
            sent_at=now,
            heartbeat=beat,
            reports=tuple(reports),
        )

    def tidy(self, clock: Clock) -> None:
        """Forget what is old, now and then: that takes a look at everything."""
        if clock.monotonic() < self._tidy_at:
            return
        self._tidy_at = clock.monotonic() + TIDY_SECONDS
        self.rows.forget_before(clock.monotonic() - ROWS_KEPT_SECONDS)
        self.holders.forget_before(clock.now_ns() - HOLDERS_KEPT_SECONDS * NANOS)
        self.asked &= self.rows.machines


class Writers:
    """All of them. Lives on the event loop."""

    def __init__(self, clock: Clock, *, series_kept: int = SERIES_KEPT, subjects_kept: int = SUBJECTS_KEPT) -> None:
        self._clock = clock
        self._series_kept, self._subjects_kept = series_kept, subjects_kept
        self._known: dict[tuple[str, str], Writer] = {}
        self._is_scarce = False  # whether there are more series than there is room for

    def of(self, cluster: str, name: str, together_ns: int) -> Writer:
        """Return a writer, who is heard now. Raises WireLimitError if its cluster has too many."""
        known = self._known.get((cluster, name))
        if known is None:
            self._make_room(cluster)
            known = self._known[cluster, name] = Writer(cluster, name, together_ns)
        known.heard = self._clock.monotonic()
        return known

    def bound_series(self) -> None:
        """Share out the room for series. Who sends much costs itself, and not what a neighbour has a fair share of."""
        if not self._is_scarce and sum(one.decoder.known.kept for one in self._known.values()) <= self._series_kept:
            return
        wants: dict[str, dict[str, int]] = {}
        for (cluster, name), one in self._known.items():
            wants.setdefault(cluster, {})[name] = self._wants(one)
        of_clusters = [sum(mine.values()) for mine in wants.values()]
        self._is_scarce = sum(of_clusters) > self._series_kept
        share = fair_share(of_clusters, self._series_kept)
        for cluster, mine in wants.items():
            of_each = fair_share(mine.values(), share)
            for name in mine:
                one = self._known[cluster, name]
                one.decoder.known.allow(0 if self._is_gone(one) else of_each)
                if not one.lock.locked():  # else a thread may be reading with it; it does so itself when it begins
                    one.decoder.known.trim()

    def _wants(self, writer: Writer) -> int:
        """Return how many series a writer would have remembered: all there is room for, where some were not."""
        if self._is_gone(writer):
            return 0
        known = writer.decoder.known
        return self._series_kept if known.missed else min(known.kept, self._series_kept)

    def tidy(self, cluster: str) -> None:
        """Forget what is old of a cluster's writers: those that fell silent do not do it themselves."""
        for one in self._of_cluster(cluster):
            if not one.lock.locked():  # else a thread may be joining with what it told
                one.tidy(self._clock)

    def check_subjects(self, writer: Writer, more: int) -> None:
        """Refuse to remember more of a request's writer than there is room for. Raises WireLimitError."""
        if more and self._subjects(writer.cluster) + more > self._subjects_kept:
            for one in self._of_cluster(writer.cluster):
                if self._is_gone(one):
                    del self._known[one.cluster, one.name]
        if more and self._subjects(writer.cluster) + more > self._subjects_kept:
            writer.decoder.known.forget()
            words = f"the writers of cluster {writer.cluster!r} tell of {self._subjects_kept} devices already"
            raise WireLimitError("devices", f"{words}, each lane counted: let agents tell of them")

    def _make_room(self, cluster: str) -> None:
        """Forget the writer that is silent for longest where there are too many. Raises WireLimitError if none is."""
        mine = self._of_cluster(cluster)
        if len(mine) < WRITERS_KEPT:
            return
        longest = min(mine, key=lambda one: one.heard)
        if not self._is_gone(longest):
            raise WireLimitError("sender", f"cluster {cluster!r} has {WRITERS_KEPT} writers already: name fewer")
        del self._known[cluster, longest.name]

    def _is_gone(self, writer: Writer) -> bool:
        return not writer.lock.locked() and self._clock.monotonic() - writer.heard >= ROWS_KEPT_SECONDS

    def _subjects(self, cluster: str) -> int:
        return sum(one.subjects for one in self._of_cluster(cluster))

    def _of_cluster(self, cluster: str) -> Collection[Writer]:
        return [one for (whose, _), one in self._known.items() if whose == cluster]
