"""Times of measurement on a page of an agent, by device, lane and reader. Pure."""

from collections.abc import Mapping, Sequence

from gpufleet.dialects.dialect import Dialect, SeriesSubject
from gpufleet.dialects.sample_builder import STATE
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.catalogue.probe import PROBE_READER
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.time import NANOS
from gpufleet.model.view import View

_MAX_SECONDS = 2**33
"""Upper bound of plausible times in seconds since 1970."""

_STATE_LANE = CATALOGUE[STATE].lane

_LaneKey = tuple[bool, str, View | None, Lane, int]
"""Whether a machine is a guest, its name, the device, the lane, and the timestamp of the samples, 0 for none."""


class LaneTimes:
    """Times of measurement from the page's own family. A page of another project has none.

    Args:
        dialect: dialect of the page.
        series, values: columns of the page.
        times: sample index to its own timestamp.
        at: timestamp of other samples, nanoseconds since 1970.
    """

    def __init__(
        self,
        dialect: Dialect,
        series: Sequence[ImportedSeries],
        values: Sequence[float],
        times: Mapping[int, int],
        at: int,
    ) -> None:
        self._at = at
        self._has_times = bool(dialect.measured)
        self._by_reader: dict[_LaneKey, dict[str, int]] = {}  # by the agent's clock
        self._intervals: dict[tuple[bool, str, str, str], float] = {}  # seconds, by machine, reader and lane
        if self._has_times:
            self._read(dialect, series, values, times)
        self._dates = {key: self._oldest(key) for key in self._by_reader}

    def date(self, subject: SeriesSubject, lane: Lane) -> int:
        """Return the time of readings without a timestamp of their own."""
        if not self._dates:
            return self._at
        return self._dates.get((subject.guest, subject.machine, subject.view, lane, 0), self._at)

    def is_evidence(self, subject: SeriesSubject, lane: Lane, own: int) -> bool:
        """Return whether an absence of a lane can prove the state of a GPU: it was not measured before the state.

        An agent's page repeats the absences of its slow lanes, also with the timestamp of the scrape. It does not
        assign readings to readers, so this has to be true of each reader of the lane. A reader that has stopped is no
        evidence. A part of a scrape may lack the times.

        Args:
            subject: subject of the absence.
            lane: lane of the absence.
            own: its own timestamp, 0 for none.
        """
        if lane is _STATE_LANE or not self._has_times:
            return True
        device = (subject.guest, subject.machine, subject.view)
        absent_at = self._by_reader.get((*device, lane, own))
        if absent_at is None:
            return own == 0
        stated_at = self._current((*device, _STATE_LANE, own))
        return all(reader in stated_at and at >= stated_at[reader] for reader, at in absent_at.items())

    def _read(
        self, dialect: Dialect, series: Sequence[ImportedSeries], values: Sequence[float], times: Mapping[int, int]
    ) -> None:
        for number, (one, value) in enumerate(zip(series, values, strict=True)):
            if one.name not in (dialect.measured, dialect.intervals) or not 0 < value < _MAX_SECONDS:
                continue
            subject, reader, lane = dialect.identify(one), one.labels.get("reader", ""), one.labels.get("lane", "")
            if subject is None or lane not in set(Lane) or reader == PROBE_READER:  # the probe is not imported
                continue
            if one.name == dialect.intervals:
                self._intervals[subject.guest, subject.machine, reader, lane] = value
            else:
                key = (subject.guest, subject.machine, subject.view, Lane(lane), times.get(number, 0))
                self._by_reader.setdefault(key, {})[reader] = round(value * NANOS)

    def _current(self, key: _LaneKey) -> dict[str, int]:
        """Return the times of the readers of a lane that have not missed `MISSED_PASSES` since."""
        found = self._by_reader.get(key, {})
        newest = max(found.values(), default=0)
        guest, machine, _, lane, _ = key
        missed = {
            reader: (newest - at) / NANOS / self._intervals.get((guest, machine, reader, lane), LANE_SECONDS[lane])
            for reader, at in found.items()
        }
        return {reader: at for reader, at in found.items() if missed[reader] <= MISSED_PASSES}

    def _oldest(self, key: _LaneKey) -> int:
        """Return the time of a lane's readings by the clock of the importing machine.

        With several readers of one subject, the page does not assign values to readers: the oldest time counts. That of
        a reader that has stopped does not: its values are stale. A time after receipt of the page is a clock error of
        the other machine and is replaced by the time of receipt.
        """
        return min(*self._current(key).values(), key[-1] or self._at)
