"""Newest readings of a cluster in columns: subjects, freshness, and the merge of `fleet.readings`. Pure.

The rules of precedence and freshness are those of `fleet.readings` and `model.reading`, for whole columns at once. A
test compares both over random machines.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from gpufleet.fleet.facts.metrics import STATE
from gpufleet.fleet.readings import LONGEST_SECONDS, MEASURING_LANES
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.device_state import LOST, OK, WORST_FIRST
from gpufleet.model.reading import Sample, precedence
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES
from gpufleet.model.stored.readings import NewestColumns
from gpufleet.model.time import NANOS

NONE = -1
"""Position of a subject, row or text that does not exist."""

NETDATA_READER = "netdata"
"""Name of the reader of the operator's Netdata, which can repeat the values of GPUs that the driver no longer lists."""

_AGENT_IMPORTS = frozenset({"gpufleet", "otlp"})
"""Last parts of the names of readers that import from agents."""

_NUMBER_OF = {reason: number for number, reason in enumerate(Reason, 1)}
"""Reason to its number in a column; 0 is no absence."""

_STALE, _GPU_LOST = _NUMBER_OF[Reason.STALE], _NUMBER_OF[Reason.GPU_LOST]
_LOST_STATE, _OK_STATE = CATALOGUE[STATE].states.index(LOST), CATALOGUE[STATE].states.index(OK)
_STATE_LANE = CATALOGUE[STATE].lane
_SEVERITIES = np.array([-WORST_FIRST.index(state) for state in CATALOGUE[STATE].states])
"""Severity of each state by its stored number; higher is worse."""


def current_rows(newest: NewestColumns, now: int, stale_after_seconds: float) -> Column:
    """Return whether the values of each row are current, as `Freshness.is_current` does.

    No row of a machine is current if the machine sent nothing within the freshness limit.

    Args:
        newest: the rows.
        now: nanoseconds since 1970 by the hub's clock.
        stale_after_seconds: the hub's freshness limit.
    """
    received_at = np.asarray(newest.received_at, np.int64)
    is_ahead = received_at - now > stale_after_seconds * NANOS
    age = np.maximum(0, now - received_at) / NANOS
    live = np.zeros(len(newest.machines), bool)
    live[newest.machine[~is_ahead & (age <= stale_after_seconds)]] = True
    limit = np.maximum(stale_after_seconds, MISSED_PASSES * intervals(newest))
    limit = np.minimum(limit, max(LONGEST_SECONDS, stale_after_seconds))
    return np.asarray(~is_ahead & (age <= limit) & live[newest.machine])


def intervals(newest: NewestColumns) -> Column:
    """Return the interval of the lane of each row in seconds: the declared one, or the default of its lane."""
    defaults = np.array([LANE_SECONDS[Lane(name)] for name in newest.lanes], np.float64)[newest.lane]
    declared = newest.interval_seconds
    return defaults if declared is None else np.where(np.isnan(declared), defaults, declared)


def rows_with_readings(newest: NewestColumns, rows: Column) -> Column:
    """Return whether each of these rows has a reading, as `fleet.readings.has_readings` does for all metrics."""
    absences = [one for one, reasons in newest.absences.items() if set(reasons.values()) - {Reason.NO_DATA}]
    texts = [one for one, of_set in newest.texts.items() if of_set]
    found = np.zeros(len(rows), bool)
    for column, sets in ((newest.absence_set, absences), (newest.info_set, texts)):
        found |= np.isin(np.asarray(column)[rows].astype(np.uint64), np.array(sets, np.uint64))
    for cells in newest.values.values():
        found |= ~np.isnan(np.asarray(cells, np.float64)[rows])
    return found


def last_of(groups: Column, count: int, rows: Column) -> Column:
    """Return the last of these rows in each group, `NONE` for a group without any.

    Args:
        groups: group of each row.
        count: number of groups.
        rows: rows in ascending precedence.
    """
    found = np.full(count, NONE, np.int64)
    found[groups[rows]] = rows  # of several rows of a group the last one stays
    return found


def pick(cells: Column, places: Column, missing: float) -> Column:
    """Return the cells at these places, `missing` at `NONE`."""
    if not len(cells):
        return np.full(len(places), missing, cells.dtype)
    return np.where(places == NONE, cells.dtype.type(missing), cells[places])


class AbsenceReasons:
    """Reasons of the distinct sets of absences of some rows, by metric."""

    def __init__(self, newest: NewestColumns, rows: Column) -> None:
        """Take the rows of `newest`."""
        self._place = _set_places(newest.absences, newest.absence_set, rows)
        sets = list(newest.absences.values())
        self._numbers: dict[str, Column] = {}
        for place, reasons in enumerate(sets):
            for metric, reason in reasons.items():
                numbers = self._numbers.get(metric)
                if numbers is None:  # the last cell is that of rows without a set
                    numbers = self._numbers[metric] = np.zeros(len(sets) + 1, np.uint8)
                numbers[place] = _NUMBER_OF[Reason(reason)]

    def numbers(self, metric: str) -> Column | None:
        """Return the number of the reason of each row, 0 without absence; None if no set has the metric."""
        numbers = self._numbers.get(metric)
        return None if numbers is None else numbers[self._place]

    def has(self, metric: str, reasons: Collection[int]) -> bool:
        """Return whether a set has the metric with a reason of these numbers."""
        numbers = self._numbers.get(metric)
        return numbers is not None and bool(np.isin(numbers, list(reasons)).any())


class TextSets:
    """Texts of some rows, by metric, each as a position in the list of distinct texts."""

    def __init__(self, newest: NewestColumns, rows: Column, metrics: Iterable[str]) -> None:
        """Take the rows of `newest`, and the text metrics to look up."""
        positions: dict[str, int] = {}
        found: dict[str, list[int]] = {metric: [] for metric in metrics}
        for of_set in newest.texts.values():
            for metric, cells in found.items():
                text = of_set.get(metric)
                cells.append(NONE if text is None else positions.setdefault(text, len(positions)))
        self.texts = list(positions)
        place = _set_places(newest.texts, newest.info_set, rows)
        self._rows = np.flatnonzero(place != NONE)
        place = place[self._rows]
        self._positions = {metric: np.array(cells, np.int64)[place] for metric, cells in found.items()}

    def cells(self, metric: str) -> tuple[Column, Column]:
        """Return the rows with a text of the metric, as positions in the given rows, and the position of each text."""
        positions = self._positions[metric]
        return self._rows[positions != NONE], positions[positions != NONE]


class MergedReadings:
    """Readings of the subjects of a cluster (its GPUs, or its machines), merged over their readers.

    Attributes:
        count: number of subjects.
        rows: rows of the subjects in `newest`: those of a subject together, the least trusted reader first.
        subject: subject of each of them.
        usable: whether each of them is current.
        texts: their texts, whether they are current or not.
    """

    def __init__(
        self, newest: NewestColumns, rows: Column, subject: Column, count: int, current: Column, texts: Sequence[str]
    ) -> None:
        """Take the rows of the subjects.

        Args:
            newest: the rows.
            rows: rows that belong to subjects.
            subject: subject of each of these.
            count: number of subjects.
            current: result of `current_rows`.
            texts: text metrics.
        """
        rank = (
            _ranks(newest.readers)[newest.reader[rows]] + len(newest.readers) * np.asarray(newest.imported, bool)[rows]
        )
        worst_last = 2 * len(newest.readers) - rank
        order = np.argsort(subject * np.int64(2 * len(newest.readers) + 1) + worst_last, kind="stable")
        self._newest = newest
        self.count = count
        self.rows = rows[order]
        self.subject = subject[order]
        self.usable = current[self.rows]
        self.texts = TextSets(newest, self.rows, texts)
        self._absences = AbsenceReasons(newest, self.rows)
        self._heads: dict[str, Column] = {}
        self._states = self._counting_states()
        self._blocked = self._repeated_of_lost()
        self._counts = self.usable & ~self._blocked

    def value(self, metric: str) -> Column:
        """Return the value of each subject, NaN for none."""
        return self.reading(metric)[0]

    def reading(self, metric: str) -> tuple[Column, Column]:
        """Return the value of each subject, NaN for none, and the position in `rows` of the row that gives it."""
        cells = self._cells(metric)
        if cells is None:
            return np.full(self.count, np.nan), np.full(self.count, NONE, np.int64)
        places = self._last(np.flatnonzero(self._counts & ~np.isnan(cells)))
        return pick(cells, places, np.nan), places

    def at(self, name: str, places: Column) -> Column:
        """Return the cells of a column of `newest` at positions that `reading` returned, 0 at `NONE`."""
        column = self._heads.get(name)
        if column is None:
            column = self._heads[name] = np.asarray(getattr(self._newest, name))[self.rows]
        return pick(column, places, 0)

    def has_value(self, metrics: Iterable[str]) -> Column:
        """Return whether each subject has a value of any of the metrics."""
        found = np.zeros(len(self.rows), bool)
        for metric in metrics:
            cells = self._cells(metric)
            if cells is not None:
                found |= ~np.isnan(cells)
        return self.any_row(found & self._counts)

    def may_have_failed(self) -> Column:
        """Return whether each subject has a row, current or not, whose state is not `ok` or is not known any more.

        So has one that an agent pushes without a state: its other readers measured at another time.
        """
        newest, rows = self._newest, self.rows
        column, numbers = newest.values.get(STATE), self._absences.numbers(STATE)
        cells = np.full(len(rows), np.nan) if column is None else np.asarray(column, np.float64)[rows]
        found = ~np.isnan(cells) & (cells != _OK_STATE)
        if numbers is not None:
            found |= numbers == _STALE
        of_agent = np.array([name.rpartition("/")[2] in _AGENT_IMPORTS for name in newest.readers], bool)
        in_lane = np.array([name == _STATE_LANE for name in newest.lanes], bool)
        is_pushed = np.asarray(newest.imported, bool)[rows] & of_agent[newest.reader[rows]] & in_lane[newest.lane[rows]]
        return self.any_row(found | (is_pushed & self.usable & np.isnan(cells)))

    def any_row(self, chosen: Column) -> Column:
        """Return whether each subject has one of the chosen rows (a flag for each of `rows`)."""
        found = np.zeros(self.count, bool)
        found[self.subject[chosen]] = True
        return found

    def count_absences(self, metrics: Iterable[str], reasons: Collection[Reason]) -> Column:
        """Return the number of metrics of each subject that are absent for one of these reasons.

        Neither `stale` nor `gpu_lost` can be counted.
        """
        wanted = [_NUMBER_OF[reason] for reason in reasons]
        total = np.zeros(self.count)
        for metric in metrics:
            if self._absences.has(metric, wanted):
                total += np.isin(self.reasons(metric), wanted)
        return total

    def reasons(self, metric: str) -> Column:
        """Return the number of the reason why the metric of each subject is absent, 0 for none."""
        numbers, cells = self._absences.numbers(metric), self._cells(metric)
        numbers = np.zeros(len(self.rows), np.uint8) if numbers is None else numbers
        is_value = np.zeros(len(self.rows), bool) if cells is None else ~np.isnan(cells)
        is_covered = is_value | (numbers > 0)
        numbers = np.where(self.usable, numbers, np.uint8(_STALE))
        numbers = np.where(self._blocked, np.uint8(_GPU_LOST), numbers)
        places = self._last(np.flatnonzero(is_covered))
        found = pick(numbers, places, 0)
        return np.where(self.any_row(is_value & self._counts), 0, found)

    def text(self, metric: str, *, current: bool = True) -> Column:
        """Return the position in `texts.texts` of the text of each subject, `NONE` without one.

        Args:
            metric: a text metric.
            current: whether only current texts count.
        """
        rows, positions = self.texts.cells(metric)
        if current:
            positions, rows = positions[self.usable[rows]], rows[self.usable[rows]]
        found = np.full(self.count, NONE, np.int64)
        found[self.subject[rows]] = positions
        return found

    def quotients(self, metrics: Iterable[str]) -> Column:
        """Return the largest quotient of two readers' values of a metric of each subject, NaN with fewer than two.

        Only positive values count.
        """
        found = np.full(self.count, np.nan)
        for metric in metrics if self._has_several_readers() else ():
            cells = self._cells(metric)
            if cells is None:
                continue
            rows = np.flatnonzero(self._counts & (cells > 0))
            subject, cells = self.subject[rows], cells[rows]
            starts = np.flatnonzero(np.diff(subject, prepend=NONE))
            if len(starts) in (0, len(rows)):
                continue
            several = np.diff(starts, append=len(rows)) > 1
            quotient = np.maximum.reduceat(cells, starts) / np.minimum.reduceat(cells, starts)
            chosen = subject[starts[several]]
            found[chosen] = np.fmax(found[chosen], quotient[several])
        return found

    def newest_of(self, column: Column, chosen: Column) -> Column:
        """Return the largest cell of a column of `newest` among chosen rows (flags) of each subject, 0 without any."""
        found = np.zeros(self.count, np.int64)
        np.maximum.at(found, self.subject[chosen], np.asarray(column, np.int64)[self.rows[chosen]])
        return found

    def _has_several_readers(self) -> bool:
        """Return whether a subject has usable rows of several readers."""
        readers, subject = self._newest.reader[self.rows[self._counts]], self.subject[self._counts]
        return bool(((np.diff(subject) == 0) & (np.diff(readers) != 0)).any())

    def _cells(self, metric: str) -> Column | None:
        if metric == STATE:
            return self._states
        column = self._newest.values.get(metric)
        return None if column is None else np.asarray(column, np.float64)[self.rows]

    def _last(self, places: Column) -> Column:
        return last_of(self.subject, self.count, places)

    def _counting_states(self) -> Column | None:
        """Return the state of each row, NaN where `fleet.readings.deciding_state` takes that of another row."""
        column = self._newest.values.get(STATE)
        if column is None:
            return None
        cells = np.asarray(column, np.float64)[self.rows]
        has_state = self.usable & ~np.isnan(cells)
        imported = np.asarray(self._newest.imported, bool)[self.rows]
        counts = has_state & ~(imported & self.any_row(has_state & ~imported)[self.subject])
        measured_at = np.asarray(self._newest.measured_at, np.int64)[self.rows]
        behind = self.newest_of(self._newest.measured_at, counts)[self.subject] - measured_at
        counts &= behind <= MISSED_PASSES * intervals(self._newest)[self.rows] * NANOS
        severities = np.full(len(cells), -len(WORST_FIRST))
        severities[counts] = _SEVERITIES[cells[counts].astype(np.int64)]
        worst = np.full(self.count, -len(WORST_FIRST))
        np.maximum.at(worst, self.subject, severities)
        return np.where(has_state & ~(counts & (severities == worst[self.subject])), np.nan, cells)

    def _repeated_of_lost(self) -> Column:
        """Return the measurements of lost subjects that `fleet.readings.merge` does not use."""
        imported = np.asarray(self._newest.imported, bool)[self.rows]
        is_netdata = np.array([name == NETDATA_READER for name in self._newest.readers], bool)
        repeated = imported | is_netdata[self._newest.reader[self.rows]]
        states = self._states
        if states is None or not repeated.any():
            return np.zeros(len(self.rows), bool)
        loss = self._last(np.flatnonzero((states == _LOST_STATE) & self.usable))
        measuring = np.array([Lane(name) in MEASURING_LANES for name in self._newest.lanes], bool)
        blocked = repeated & (loss != NONE)[self.subject] & measuring[self._newest.lane[self.rows]]
        is_own = imported & (self._newest.reader[self.rows] == self.at("reader", loss)[self.subject])
        is_before = np.asarray(self._newest.measured_at)[self.rows] < self.at("measured_at", loss)[self.subject]
        is_imported_loss = pick(imported, loss, False)[self.subject]
        return np.asarray(blocked & (~is_imported_loss | (is_own & is_before)))


def reason_of(number: int) -> Reason | None:
    """Return the reason with a number of `MergedReadings.reasons`."""
    return next((reason for reason, one in _NUMBER_OF.items() if one == number), None)


def number_of(reason: Reason) -> int:
    """Return the number of a reason in `MergedReadings.reasons`."""
    return _NUMBER_OF[reason]


def _set_places(sets: Collection[int], column: Column, rows: Column) -> Column:
    """Return the position among `sets` of the set of each row, `NONE` for another one."""
    if not sets:
        return np.full(len(rows), NONE, np.int64)
    ids = np.fromiter(sets, np.uint64, len(sets))
    order = np.argsort(ids)
    cells = np.asarray(column).astype(np.uint64)[rows]
    place = np.minimum(np.searchsorted(ids[order], cells), len(ids) - 1)
    return np.where(ids[order][place] == cells, order[place], NONE)


def _ranks(readers: Sequence[str]) -> Column:
    """Return the rank of each reader by precedence, 0 for the most trusted."""
    samples = [Sample(view=None, reader=reader, lane=Lane.FAST, measured_at=0, values={}) for reader in readers]
    order = sorted(range(len(readers)), key=lambda place: precedence(samples[place]))
    ranks = np.empty(len(readers), np.int64)
    ranks[order] = np.arange(len(readers))
    return ranks
