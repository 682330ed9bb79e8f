"""What an agent's page shows, as requests of remote write: each value once, at the instant when it was measured.

Names and labels are those of the page. A series that leaves the page ends with a stale marker. What has no instant of
its own (the agent's own figures, texts that are always 1) is told when it changes, and once an interval.
"""

import datetime as dt
from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from gpufleet.codecs.prometheus_text.labels import parse_series
from gpufleet.codecs.prometheus_text.page import TextLimits
from gpufleet.codecs.remote_write.encode import Point, encode_1, encode_2
from gpufleet.codecs.remote_write.known import NAME
from gpufleet.delivery.export import AgentStats, Draft
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.native import NATIVE
from gpufleet.exporters.agent_page import add_others, add_stats
from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.exposition import Page, labelled
from gpufleet.exporters.native import add_native
from gpufleet.exporters.otlp import AHEAD
from gpufleet.model.event import Event
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import NANOS, to_ns

MILLISECOND = 10**6

KEPT = 3600 * NANOS
"""So long the last instant of a series that has ended is remembered: it may come back."""


class _Told(msgspec.Struct):
    """A series that was told.

    Attributes:
        labels, type: as they go out.
        value: the last one.
        at: its instant, in nanoseconds; of a series that has ended, the stale marker's.
        spacing: nanoseconds between its last two values.
        look: number of the last look that saw it.
        ended: whether it was marked as ended.
    """

    labels: Mapping[str, str]
    type: str
    value: float = 0.0
    at: int = 0
    spacing: int = 0
    look: int = 0
    ended: bool = False


class RemoteWriteSeries(Page):
    """A page that is not shown: it gathers series for requests of remote write."""

    def __init__(
        self,
        dialects: Sequence[str],
        labels: Mapping[str, str],
        *,
        version: str,
        interval_seconds: float,
        now_ns: Callable[[], int],
    ) -> None:
        """Take what is told.

        Args:
            dialects: under whose names, as on the page.
            labels: added to every series that does not have them.
            version: of remote write: `1.0` or `2.0`.
            interval_seconds: between repetitions of what has no instant of its own.
            now_ns: nanoseconds since 1970.
        """
        super().__init__()
        self._dialects = tuple(dialects)
        self._clocks = ClockCounts() if DCGM_EXPORTER.name in dialects else None
        self._more = labels
        self._encode = encode_2 if version == "2.0" else encode_1
        self._interval = int(interval_seconds * NANOS)
        self._now_ns = now_ns
        self._told: dict[str, _Told] = {}
        self._types: dict[str, str] = {}
        self._points: list[Point] = []
        self._look = 0
        self._now = 0

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Take what is new on the page, and what has left it, in small steps."""
        self._now, self._look = self._now_ns(), self._look + 1
        if NATIVE.name in self._dialects:
            yield from add_native(self, snapshot)
        if self._clocks is not None:
            self._clocks.take(snapshot)
        yield from add_others(self, snapshot, self._dialects, self._clocks)
        yield
        add_stats(self, labelled({"node": snapshot.node.name}), stats)
        for series, told in list(self._told.items()):
            if told.look != self._look:
                self._end(series, told)

    def tell(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Pass over events: series count them."""

    def take(self) -> Draft | None:
        """Return everything gathered as one request, or None."""
        points, self._points = self._points, []
        return Draft(len(points), lambda: self._encode(points)) if points else None

    def declare(self, family: str, kind: str, words: str, unit: str = "") -> None:
        """Take a family's type."""
        self._types[family] = kind

    def add(self, family: str, labels: str, value: float, at: dt.datetime | None = None) -> None:
        """Take a series, if this value of it was not told before."""
        series = f"{family}{{{labels}}}"
        told = self._told.get(series)
        if told is None:
            name, own, _ = parse_series(series, TextLimits())
            told = self._told[series] = _Told({**self._more, **own, NAME: name}, self._types.get(family, ""))
        told.look = self._look
        if at is None and told.value == value and self._now - told.at < self._interval and not told.ended:
            return
        instant = (self._now if at is None else to_ns(at)) // MILLISECOND * MILLISECOND
        if instant <= told.at <= self._now + AHEAD:
            return  # receivers refuse a whole request for one sample out of order
        told.spacing = instant - told.at if told.at and not told.ended else MILLISECOND
        told.value, told.at, told.ended = value, instant, False
        self._points.append(Point(told.labels, value, instant, told.type))

    def add_text(self, family: str, labels: str, value: str, at: dt.datetime | None = None) -> None:
        """Take a series whose value is written already."""
        self.add(family, labels, float(value), at)

    def _end(self, series: str, told: _Told) -> None:
        """Mark a series as ended one interval after its last value, and forget it in time.

        Not later: a pass that took long can still bring a value that was measured before now.
        """
        if told.ended:
            if told.at < self._now - KEPT:
                del self._told[series]
            return
        told.at = max(told.at + MILLISECOND, min(self._now, told.at + told.spacing) // MILLISECOND * MILLISECOND)
        told.ended = True
        self._points.append(Point(told.labels, None, told.at, told.type))
