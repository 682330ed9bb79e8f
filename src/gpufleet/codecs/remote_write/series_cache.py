"""Cache of series: a source writes the same series with every request."""

from collections.abc import Sequence

from gpufleet.codecs.remote_write.records import WriteLimits, WriteProblem
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.text import clean

NAME = "__name__"
"""Label of the metric name."""

RENEWED_AFTER = 20
"""Uncached series read since the last reset, as a multiple of the capacity, at which the cache is cleared.

This removes series that ended."""

_BYTES_A_SERIES = 1024
"""Label bytes per series; a series with more counts as several, because labels may be as long as a message."""

Key = bytes | tuple[str, ...]
"""Cache key: the bytes of a series' labels (1.0), or its symbols (2.0)."""


class SeriesError(Exception):
    """Rejected series."""

    def __init__(self, problem: WriteProblem) -> None:
        self.problem = problem
        super().__init__(problem)


def series_of(pairs: Sequence[tuple[str, str]], limits: WriteLimits) -> ImportedSeries:
    """Return the series of received labels.

    Raises:
        SeriesError: if it has no name or a duplicate label, or exceeds a limit.
    """
    if len(pairs) > limits.labels:
        raise SeriesError(WriteProblem.TOO_MANY_LABELS)
    labels: dict[str, str] = {}
    for label, value in pairs:
        if len(label.encode()) > limits.name_bytes or len(value.encode()) > limits.value_bytes:
            raise SeriesError(WriteProblem.LABEL_TOO_LONG)
        label = clean(label)
        if label in labels:
            raise SeriesError(WriteProblem.LABEL_TWICE)
        labels[label] = clean(value)
    name = labels.pop(NAME, "")
    if not name:
        raise SeriesError(WriteProblem.NO_NAME)
    return ImportedSeries(name, labels)


class SeriesCache:
    """Bounded cache of the series of one writer; series beyond the capacity are parsed on every request.

    Attributes:
        found: wanted series by key.
        others: unwanted series by the key of their name.
        missed: series of the newest request beyond the capacity.
    """

    def __init__(self, limits: WriteLimits) -> None:
        self.found: dict[Key, ImportedSeries] = {}
        self.others: dict[Key, ImportedSeries] = {}
        self.missed = 0
        self._limits = limits
        self._room = limits.kept
        self._missed_in_all = 0
        self._bytes = 0  # of cached labels
        self._same: dict[tuple[str, tuple[tuple[str, str], ...]], ImportedSeries] = {}  # by name and labels

    @property
    def kept(self) -> int:
        """Number of cached series; long ones count as several."""
        return max(len(self.found), len(self._same), self._bytes // _BYTES_A_SERIES)

    def begin(self) -> None:
        """Prepare for the next request."""
        self._missed_in_all += self.missed
        self.missed = 0
        if self._missed_in_all > RENEWED_AFTER * self._room:
            self.clear()
        if len(self.others) > self._limits.others:
            self.others.clear()
        self.trim()

    def keep(self, key: Key, series: ImportedSeries) -> ImportedSeries:
        """Return the cached series with the same name and labels; cache it if there is capacity."""
        meaning = _meaning(series)
        same = self._same.get(meaning)
        if self.kept >= self._room:
            self.missed += 1
            return same or series
        if same is None:
            same = self._same[meaning] = series
        self.found[key] = same
        self._bytes += _size(key)
        return same

    def allow(self, room: int) -> None:
        """Set the capacity from the next request on; `trim` applies it at once."""
        self._room = min(room, self._limits.kept)

    def trim(self) -> None:
        """Remove the newest entries beyond the capacity."""
        while self.found and self.kept > self._room:
            key, series = self.found.popitem()
            self._bytes -= _size(key)
            self._same.pop(_meaning(series), None)

    def clear(self) -> None:
        """Clear the cache."""
        self.found.clear()
        self.others.clear()
        self._same.clear()
        self._bytes = self._missed_in_all = 0


def _meaning(series: ImportedSeries) -> tuple[str, tuple[tuple[str, str], ...]]:
    return series.name, tuple(sorted(series.labels.items()))


def _size(key: Key) -> int:
    return len(key) if isinstance(key, bytes) else sum(map(len, key))
