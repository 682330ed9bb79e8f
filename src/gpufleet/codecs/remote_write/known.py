"""Series that were seen before: a source writes the same ones again and again."""

from collections.abc import Sequence

from gpufleet.codecs.remote_write.records import WriteLimits, WriteProblem
from gpufleet.model.stored.samples import Series
from gpufleet.model.text import clean

NAME = "__name__"
"""The label that holds the metric's name."""

RENEWED_AFTER = 20
"""Times as many series as are remembered, read for want of room: then those that ended leave, and it begins anew."""

_BYTES_A_SERIES = 1024
"""Of its labels, that are remembered. One with more counts for as many: a writer may make them as long as a message."""

Key = bytes | tuple[str, ...]
"""What came: the bytes of a series' labels, or its words."""


class SeriesError(Exception):
    """A series that is not taken."""

    def __init__(self, problem: WriteProblem) -> None:
        self.problem = problem
        super().__init__(problem)


def series_of(pairs: Sequence[tuple[str, str]], limits: WriteLimits) -> Series:
    """Return a series of labels as they came.

    Raises:
        SeriesError: if it has no name, a label twice, or passes a bound.
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
    return Series(name, labels)


class KnownSeries:
    """Series of one writer by what came, up to so many; what there is no room for is read anew each time.

    Attributes:
        found: series by what came.
        others: those of no use by their names, as they come.
        missed: series of the newest request that there was no room to remember.
    """

    def __init__(self, limits: WriteLimits) -> None:
        self.found: dict[Key, Series] = {}
        self.others: dict[Key, Series] = {}
        self.missed = 0
        self._limits = limits
        self._room = limits.kept
        self._missed_in_all = 0
        self._bytes = 0  # of labels that are remembered
        self._same: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}  # by what they mean

    @property
    def kept(self) -> int:
        """Series that are remembered; long ones count for several."""
        return max(len(self.found), len(self._same), self._bytes // _BYTES_A_SERIES)

    def begin(self) -> None:
        """Begin with the next request."""
        self._missed_in_all += self.missed
        self.missed = 0
        if self._missed_in_all > RENEWED_AFTER * self._room:
            self.forget()
        if len(self.others) > self._limits.others:
            self.others.clear()
        self.trim()

    def keep(self, key: Key, series: Series) -> Series:
        """Return the series that means the same, and remember it where there is room."""
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
        """Have so many remembered at most, from the next request on; `trim` has it so at once."""
        self._room = min(room, self._limits.kept)

    def trim(self) -> None:
        """Forget what came last of what there is no room for."""
        while self.found and self.kept > self._room:
            key, series = self.found.popitem()
            self._bytes -= _size(key)
            self._same.pop(_meaning(series), None)

    def forget(self) -> None:
        """Remember none."""
        self.found.clear()
        self.others.clear()
        self._same.clear()
        self._bytes = self._missed_in_all = 0


def _meaning(series: Series) -> tuple[str, tuple[tuple[str, str], ...]]:
    return series.name, tuple(sorted(series.labels.items()))


def _size(key: Key) -> int:
    return len(key) if isinstance(key, bytes) else sum(map(len, key))
