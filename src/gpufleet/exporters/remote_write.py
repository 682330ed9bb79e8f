"""Remote write requests with the series of the agent's page: each value once, at its instant of measurement.

Names and labels are those of the page. A series that leaves the page ends with a stale marker. A value without an
instant of its own (the agent's counters, info series) is sent when it changes, and once per interval.
"""

import datetime as dt
from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from gpufleet.codecs.prometheus_text.labels import parse_series
from gpufleet.codecs.prometheus_text.page import TextLimits
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1, encode_2
from gpufleet.codecs.remote_write.series_cache import NAME
from gpufleet.delivery.export import AgentStats, Draft
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.native import NATIVE
from gpufleet.exporters.agent_page import add_dialects, add_stats
from gpufleet.exporters.clock_counts import ClockCounts
from gpufleet.exporters.exposition import MetricsPage, format_labels
from gpufleet.exporters.native import add_native
from gpufleet.exporters.otlp import MAX_AHEAD_NS
from gpufleet.model.event import Event
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.time import NANOS, to_ns

MILLISECOND = 10**6

ENDED_SERIES_NS = 3600 * NANOS
"""Nanoseconds for which the last instant of an ended series is kept, as the series may come back."""

MAX_ENDED = 5_000
"""Maximum number of ended series that are kept. Labels of holders end every series of a GPU with its pod or job."""


class _SeriesState(msgspec.Struct):
    """State of a series that was sent.

    Attributes:
        labels, type: as sent.
        value: the last value.
        at: instant of the last value in nanoseconds; after the end, that of the stale marker.
        spacing: nanoseconds between the last two values.
        round: number of the last round with this series.
        ended: whether the stale marker was sent.
    """

    labels: Mapping[str, str]
    type: str
    value: float = 0.0
    at: int = 0
    spacing: int = 0
    round: int = 0
    ended: bool = False


class RemoteWriteSeries(MetricsPage):
    """Collector of series for remote write requests, filled like a page."""

    def __init__(
        self,
        dialects: Sequence[str],
        labels: Mapping[str, str],
        *,
        version: str,
        interval_seconds: float,
        now_ns: Callable[[], int],
        holder_labels: bool = False,
        dcgm_pod_labels: bool = False,
    ) -> None:
        """Create an empty collector.

        Args:
            dialects: names to write under, as on the page.
            labels: labels added to every series that does not have them.
            version: version of remote write, `1.0` or `2.0`.
            interval_seconds: seconds between repetitions of values without an instant of their own.
            now_ns: nanoseconds since 1970.
            holder_labels: as in `NativePage`.
            dcgm_pod_labels: as `pod_labels` of `add_dcgm`.
        """
        super().__init__()
        self._dialects = tuple(dialects)
        self._clocks = ClockCounts() if DCGM_EXPORTER.name in dialects else None
        self._more = labels
        self._encode = encode_2 if version == "2.0" else encode_1
        self._interval = int(interval_seconds * NANOS)
        self._now_ns = now_ns
        self._holder_labels, self._dcgm_pod_labels = holder_labels, dcgm_pod_labels
        self._series: dict[str, _SeriesState] = {}
        self._types: dict[str, str] = {}
        self._points: list[WritePoint] = []
        self._round = 0
        self._now = 0

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        """Collect new values and ended series of a snapshot, in small steps."""
        self._now, self._round = self._now_ns(), self._round + 1
        if NATIVE.name in self._dialects:
            yield from add_native(self, snapshot, holder_labels=self._holder_labels)
        if self._clocks is not None:
            self._clocks.take(snapshot)
        yield from add_dialects(self, snapshot, self._dialects, self._clocks, dcgm_pod_labels=self._dcgm_pod_labels)
        yield
        add_stats(self, format_labels({"node": snapshot.node.name}), stats)
        for series, state in list(self._series.items()):
            if state.round != self._round:
                self._end(series, state)
        self._limit_ended()

    def add_events(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        """Ignore events: there are series that count them."""

    def take(self) -> Draft | None:
        """Return all collected points as one request, or None if there are none."""
        points, self._points = self._points, []
        return Draft(len(points), lambda: self._encode(points)) if points else None

    def declare(self, family: str, kind: str, help_: str, unit: str = "") -> None:
        """Record the type of a family."""
        self._types[family] = kind

    def add(self, family: str, labels: str, value: float, at: dt.datetime | None = None) -> None:
        """Add a value of a series, unless it was already sent."""
        series = f"{family}{{{labels}}}"
        state = self._series.get(series)
        if state is None:
            name, own, _ = parse_series(series, TextLimits())
            state = self._series[series] = _SeriesState({**self._more, **own, NAME: name}, self._types.get(family, ""))
        state.round = self._round
        if at is None and state.value == value and self._now - state.at < self._interval and not state.ended:
            return
        instant = (self._now if at is None else to_ns(at)) // MILLISECOND * MILLISECOND
        if instant <= state.at <= self._now + MAX_AHEAD_NS:
            return  # receivers reject a request with a sample out of order
        state.spacing = instant - state.at if state.at and not state.ended else MILLISECOND
        state.value, state.at, state.ended = value, instant, False
        self._points.append(WritePoint(state.labels, value, instant, state.type))

    def add_text(self, family: str, labels: str, value: str, at: dt.datetime | None = None) -> None:
        """Add a series with a formatted value."""
        self.add(family, labels, float(value), at)

    def _limit_ended(self) -> None:
        """Drop the series that ended first, beyond `MAX_ENDED`."""
        ended = [series for series, state in self._series.items() if state.ended]
        if len(ended) > MAX_ENDED:
            ended.sort(key=lambda series: self._series[series].at)
            for series in ended[:-MAX_ENDED]:
                del self._series[series]

    def _end(self, series: str, state: _SeriesState) -> None:
        """Send the stale marker of a series, one interval after its last value; drop it after `ENDED_SERIES_NS`.

        The marker is not set to the current time, as a slow pass can still deliver a value measured before now.
        """
        if state.ended:
            if state.at < self._now - ENDED_SERIES_NS:
                del self._series[series]
            return
        state.at = max(state.at + MILLISECOND, min(self._now, state.at + state.spacing) // MILLISECOND * MILLISECOND)
        state.ended = True
        self._points.append(WritePoint(state.labels, None, state.at, state.type))
