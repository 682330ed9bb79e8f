"""The newest word of every sender, and how long ago it was. In memory: what is asked of it does not wait for a disk.

The newest word of a sender. Pure.

The least of the newest numbers of a row, without keeping all of them. Pure.

Only what is less than everything after it can ever be the least of the newest: of 64 numbers in no order that is five.

The newest words of a cluster's senders as rows of numbers: what is counted of 125,000 is counted all at once.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gpufleet.hub.liveness.limits import limits_of
from gpufleet.hub.liveness.uptime import Listening, Past
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.ledger import Heard, SenderState
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import WireBatch

AHEAD_NS = 60 * NANOS
"""A word that was sent so long after it came is of a clock that is ahead: no later one can be told by it."""


def is_news(before: Heard | None, batch: WireBatch, *, known_epoch: bool) -> bool:
    """Tell whether a batch is newer than the newest word of its sender, or else backlog, which follows it.

    Within an epoch its numbers tell, not the clocks, which may be set back. An epoch that was never heard of is the
    newest. A sender may have two (its disk refuses for a while): between those, its own clock is all there is, and not
    that where the newest word is of a clock that was ahead: once it is right again, nothing would be news until then.
    A clock that is right shows no time long before that word came: what does is backlog, of a clock still ahead.
    """
    if before is None or not known_epoch:
        return True
    if before.epoch == batch.epoch:
        return batch.seq > before.seq
    was_ahead = before.sent_at - before.received_at > AHEAD_NS
    return batch.sent_at >= (before.received_at - AHEAD_NS if was_ahead else before.sent_at)


def heard(before: Heard | None, batch: WireBatch, *, received_at: int, reported_at: int = 0) -> Heard:
    """Return the newest word of a sender after one that is news; a heartbeat stays until the next one."""
    return Heard(
        epoch=batch.epoch,
        seq=batch.seq,
        sent_at=batch.sent_at,
        received_at=received_at,
        reported_at=reported_at,
        heartbeat=batch.heartbeat or (before.heartbeat if before else None),
    )


class Entry(NamedTuple):
    """One of the numbers, and its place in the row."""

    place: int
    number: int


Fastest = tuple[Entry, ...]
"""Those that may yet be the least, in their order; the last is the newest of all."""


def begun(number: int) -> Fastest:
    """Return a row of one."""
    return (Entry(0, number),)


def followed(row: Fastest, number: int, keep: int) -> Fastest:
    """Return the row with one more number, of the newest `keep`."""
    place = row[-1].place + 1
    return (*(one for one in row if one.number < number and one.place > place - keep), Entry(place, number))


def lowered(row: Fastest, number: int) -> Fastest:
    """Return the row with its newest number lowered to this one, if that is less."""
    newest = row[-1]
    if number >= newest.number:
        return row
    return (*(one for one in row[:-1] if one.number < number), Entry(newest.place, number))


def least(row: Fastest, of: int) -> int:
    """Return the least of the newest `of` numbers; of as many as are kept, at most."""
    first = row[-1].place - of
    return next(one.number for one in row if one.place > first)


Column = np.ndarray[Any, np.dtype[Any]]

_ROW = struct.Struct("<ddddqq??6x")

_TYPE = np.dtype(
    [
        ("spoke_at", "<f8"),  # the second of listening at which the word was made
        ("late", "<f8"),  # after how many seconds of silence it is so
        ("stale", "<f8"),
        ("ahead", "<f8"),  # seconds that the sender's clock is ahead
        ("received_at", "<i8"),  # nanoseconds since 1970
        ("sent_at", "<i8"),
        ("is_plain", "?"),  # but for its silence and its clock there is nothing to be said of it
        ("since_start", "?"),  # whether it has spoken since the start
        ("", "V6"),
    ]
)


class Words:
    """A row a sender, in the order in which they came. Written on the event loop, read from any thread."""

    def __init__(self) -> None:
        self._rows = bytearray()

    def put(
        self,
        place: int,
        *,
        spoke_at: float,
        late: float,
        stale: float,
        ahead: float,
        received_at: int,
        sent_at: int,
        is_plain: bool,
        since_start: bool,
    ) -> None:
        """Put a sender's row in its place; that of a new one is after all others."""
        if place * _ROW.size == len(self._rows):
            self._rows.extend(bytes(_ROW.size))
        _ROW.pack_into(
            self._rows, place * _ROW.size, spoke_at, late, stale, ahead, received_at, sent_at, is_plain, since_start
        )

    def rows(self) -> Column:
        """Return the rows as they are now, with the names of `_TYPE`."""
        # No other thread runs while a row is written, or all of them are copied: none is seen half written.
        return np.frombuffer(bytes(self._rows), _TYPE)


WORDS_COMPARED = 64
"""Words of which the fastest tells how long a relayed one was on its way."""

WORDS_OF_CLOCK = 8
"""The newest of them: the fastest tells how far its sender's clock is off."""

BURST_SECONDS = 5.0
"""Words that come within so long count as one, the fastest of them: backlog comes in bursts, and is slow."""

Who = tuple[str, str]
"""Cluster and sender."""

_NOBODY: Mapping[str, "Known"] = {}


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was made durable just now.

    Attributes:
        batch: which.
        received_at: nanoseconds since 1970 by the hub's clock, when the first relay had it, or the hub where none did.
        known_epoch: whether an earlier batch of its epoch is held.
        relayed: whether a relay brought it, where it may have waited for longer than was told.
        waited_ns: how long it waited at relays, as far as those told.
    """

    batch: WireBatch
    received_at: int
    known_epoch: bool
    relayed: bool = False
    waited_ns: int = 0


class SenderLife(msgspec.Struct, frozen=True, kw_only=True):
    """How recently a sender was heard of.

    Attributes:
        cluster, sender: which.
        heard: its newest word.
        silent_seconds: since that was made, as far as the hub could hear.
        unverified: it has not spoken since the hub started, and had no time to yet.
        clock_ahead_seconds: how far its clock is ahead of the hub's, less the time of the fastest of its newest words
            on the way; negative where it is behind.
        never: it is a target that was asked and never answered; its silence is since it was first asked.
    """

    cluster: str
    sender: str
    heard: Heard
    silent_seconds: float
    unverified: bool
    clock_ahead_seconds: float
    never: bool = False


class Known(msgspec.Struct, frozen=True):
    """What is kept of one; replaced as a whole, so that threads may read while the loop writes.

    Attributes:
        heard: its newest word.
        spoke_at: the second of listening at which it was made; negative for one from before the start.
        since_start: whether it has spoken since.
        differences: receipt less sending of the newest words, nanoseconds; one a burst, those that may be the least.
        burst_at: the second of listening at which the newest burst began.
        ahead: seconds that its clock is ahead of the hub's.
        beat_seq: number of the batch that its heartbeat came with, in the newest word's epoch; 0 if in another one.
        place: its row among the words of its cluster.
        plain: it speaks by itself, nothing waits at it, and it dropped nothing: but for its silence and its clock there
            is nothing to be said of it.
    """

    heard: Heard
    spoke_at: float
    since_start: bool
    differences: Fastest
    burst_at: float
    ahead: float
    beat_seq: int
    place: int
    plain: bool


class Senders:
    """Every sender. Written on the event loop, read from any thread."""

    def __init__(self, listening: Listening, states: Iterable[SenderState] = ()) -> None:
        """Take what is remembered of earlier processes."""
        self._listening = listening
        now, past = listening.seconds, listening.past
        self._known: dict[str, dict[str, Known]] = {}
        self._words: dict[str, Words] = {}
        for one in states:
            spoke_at = now - past.silence_since(answered_at(one.heard) or one.heard.received_at)
            difference = one.heard.received_at - one.heard.sent_at
            place = len(self._known.get(one.cluster, _NOBODY))
            known = _known(one.heard, spoke_at, False, begun(difference), now - BURST_SECONDS, 0, place)
            self._keep(one.cluster, one.sender, known)

    @property
    def now(self) -> float:
        """The second of listening; to be asked on the event loop."""
        return self._listening.seconds

    def note(self, word: Word) -> None:
        """Take in a batch."""
        batch = word.batch
        cluster = self._known.get(batch.cluster, _NOBODY)
        known = cluster.get(batch.sender)
        before = known.heard if known else None
        if not is_news(before, batch, known_epoch=word.known_epoch):
            if known is not None and _waited(known, word):
                self._keep(batch.cluster, batch.sender, _come(known))
            return
        now, difference = self.now, word.received_at - batch.sent_at
        if known is None or batch.sent_at < known.heard.sent_at:  # made later: its clock was set back
            differences, burst_at = begun(difference), now
        elif now - known.burst_at < BURST_SECONDS:
            differences, burst_at = lowered(known.differences, difference), known.burst_at
        else:
            differences, burst_at = followed(known.differences, difference, WORDS_COMPARED), now
        late = difference - least(differences, WORDS_COMPARED) if word.relayed else 0
        waited = (word.waited_ns + late) / NANOS
        news = heard(before, batch, received_at=word.received_at)
        # A target that did not answer again: what came is who asked, not the target.
        silent = known if known is not None and _says_the_same(known.heard, news) else None
        now_known = _known(
            news,
            silent.spoke_at if silent is not None else now - waited,
            silent is None or silent.since_start,
            differences,
            burst_at,
            _beat_seq(known, batch),
            len(cluster) if known is None else known.place,
        )
        self._keep(batch.cluster, batch.sender, now_known)

    def _keep(self, cluster: str, sender: str, known: Known) -> None:
        self._known.setdefault(cluster, {})[sender] = known
        beat = known.heard.heartbeat
        limits = limits_of(beat.interval_seconds if beat else None)
        self._words.setdefault(cluster, Words()).put(
            known.place,
            spoke_at=known.spoke_at,
            late=limits.late,
            stale=limits.stale,
            ahead=known.ahead,
            received_at=known.heard.received_at,
            sent_at=known.heard.sent_at,
            is_plain=known.plain and known.heard.received_at > 0,
            since_start=known.since_start,
        )

    @property
    def past(self) -> Past:
        """When the hub could hear; to be asked on the event loop."""
        return self._listening.past

    @property
    def clusters(self) -> list[str]:
        """Ids of the clusters that anybody was heard of, sorted."""
        return sorted(list(self._known))  # noqa: C414 - a list is made at once; a thread may not go through a dict

    def of(self, cluster: str) -> list[tuple[str, Known]]:
        """Return name and what is kept of every sender of a cluster, in any order."""
        return list(self._known.get(cluster, _NOBODY).items())

    def words(self, cluster: str) -> Column:
        """Return the newest words of a cluster's senders as rows; see `Words`. There may be more by now."""
        words = self._words.get(cluster)
        return Words().rows() if words is None else words.rows()

    def names(self, cluster: str) -> list[str]:
        """Return the names of a cluster's senders in the order of their rows."""
        return list(self._known.get(cluster, _NOBODY))

    def places(self, cluster: str, senders: Iterable[str]) -> list[int]:
        """Return the row of each of these senders of a cluster, -1 for one that never spoke."""
        known = self._known.get(cluster, _NOBODY)
        return [-1 if (one := known.get(sender)) is None else one.place for sender in senders]

    def called(self, cluster: str, sender: str) -> Known | None:
        """Return what is kept of one, or None if it never spoke."""
        return self._known.get(cluster, _NOBODY).get(sender)

    def after(self, place: Who | None, limit: int) -> list[Who]:
        """Return the first senders that come after a place, by cluster and name; at most so many."""
        found: list[Who] = []
        for cluster in self.clusters:
            if len(found) >= limit or (place is not None and cluster < place[0]):
                continue
            floor = place[1] if place is not None and place[0] == cluster else None
            names = (name for name, _ in self.of(cluster) if floor is None or name > floor)
            found += [(cluster, name) for name in sorted(names)[: limit - len(found)]]
        return found

    def lives(self, now: float, cluster: str | None = None) -> Iterator[SenderLife]:
        """Go through all of them, or those of one cluster, by cluster and name, as they were at that second."""
        for id_ in self.clusters if cluster is None else (cluster,):
            for name, known in sorted(self.of(id_), key=lambda one: one[0]):
                yield life_of(id_, name, known, now)

    def life(self, now: float, cluster: str, sender: str) -> SenderLife | None:
        """Return one, or None if it never spoke."""
        known = self.called(cluster, sender)
        return None if known is None else life_of(cluster, sender, known, now)


def answered_at(heard: Heard) -> int:
    """Return when something of the sender itself came last, in nanoseconds since 1970; 0 for never.

    A sender that speaks by itself did so with its newest word.
    """
    at = heard.heartbeat.answered_at if heard.heartbeat is not None else None
    return heard.received_at if at is None else min(at, heard.received_at)


def _says_the_same(before: Heard, news: Heard) -> bool:
    """Tell whether a target that is asked did not answer since the word before.

    Another instant is another answer, be it an earlier one: the clock of who asks can be set back.
    """
    if news.heartbeat is None or news.heartbeat.answered_at is None:
        return False
    at = before.heartbeat.answered_at if before.heartbeat is not None else None
    return news.heartbeat.answered_at == (before.received_at if at is None else at)


def _beat_seq(known: Known | None, batch: WireBatch) -> int:
    if batch.heartbeat is not None:
        return batch.seq
    return known.beat_seq if known is not None and known.heard.epoch == batch.epoch else 0


def _waited(known: Known, word: Word) -> bool:
    """Tell whether a batch is one of those that waited at its sender when that last said how many do.

    What a relay brings may have waited there instead.
    """
    batch, beat = word.batch, known.heard.heartbeat
    of_before = batch.epoch == known.heard.epoch and batch.seq < known.beat_seq
    return of_before and not word.relayed and beat is not None and beat.queue_records > 0


def _come(known: Known) -> Known:
    """Return what is kept of a sender once one batch more of those that waited at it has come."""
    beat = known.heard.heartbeat
    assert beat is not None
    left = beat.queue_records - 1
    oldest = beat.oldest_unsent if left else None
    beat = msgspec.structs.replace(beat, queue_records=left, oldest_unsent=oldest)
    heard = msgspec.structs.replace(known.heard, heartbeat=beat)
    return msgspec.structs.replace(known, heard=heard, plain=_is_plain(beat))


def _known(
    news: Heard, spoke_at: float, since_start: bool, differences: Fastest, burst_at: float, beat_seq: int, place: int
) -> Known:
    beat = news.heartbeat
    return Known(
        heard=news,
        spoke_at=spoke_at,
        since_start=since_start,
        differences=differences,
        burst_at=burst_at,
        ahead=-least(differences, WORDS_OF_CLOCK) / NANOS,
        beat_seq=beat_seq,
        place=place,
        plain=beat is not None and _is_plain(beat),
    )


def _is_plain(beat: Heartbeat) -> bool:
    return beat.answered_at is None and not (beat.oldest_unsent or beat.queue_records or beat.dropped_total)


def life_of(cluster: str, sender: str, known: Known, now: float) -> SenderLife:
    """Return how recently a sender was heard of, at a second of listening."""
    interval = known.heard.heartbeat.interval_seconds if known.heard.heartbeat else None
    unverified = not known.since_start and now < limits_of(interval).late
    return SenderLife(
        cluster=cluster,
        sender=sender,
        heard=known.heard,
        silent_seconds=max(0.0, (0.0 if unverified else now) - known.spoke_at),
        unverified=unverified,
        clock_ahead_seconds=known.ahead,
        never=answered_at(known.heard) == 0,
    )
