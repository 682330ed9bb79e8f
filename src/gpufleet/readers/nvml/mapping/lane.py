"""The rows of one lane, read from the answers of a pass.

Most answers are plain numbers that the catalogue admits: these are taken by a short way. Everything else goes the way
of `row`, which alone knows why there is no value. That, and what has a reading for each of many entries (links), is
made again only where the driver's words are others than in the pass before.
"""

import math
from typing import Any, NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml.calls.call import Call
from gpufleet.readers.nvml.mapping.row import NO_MODES, Convert, Modes, Row, by_nature, first_labels, read, read_every
from gpufleet.readers.nvml.mapping.units import SCALES
from gpufleet.readers.nvml.parse import SENTINELS
from gpufleet.readers.nvml.protocol import Answer

Values = dict[str, Value | Absent]

_MISSING = object()


class _Place(NamedTuple):
    """A row, where its answer stands, and what the short way needs of it.

    Attributes:
        times, by: of `units.SCALES`; 0 and 0 where a function converts.
        convert: None where the short way is not to be gone.
    """

    row: Row
    metric: Metric
    position: int
    part: int | None
    entry: int | None
    convert: Convert | None
    times: int
    by: int
    sentinel: int | None
    low: float
    high: float


class _Told(NamedTuple):
    """What is told of a device in some modes: readings without dimensions, one of some labels, one for each entry."""

    names: tuple[str, ...]
    plain: tuple[_Place, ...]
    labelled: tuple[_Place, ...]
    listed: tuple[_Place, ...]


class Memory:
    """What the rows of one lane made of the newest pass over one device, for the next one."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.read: dict[tuple[str, tuple[str, ...]], tuple[Answer, Modes, Value | Absent]] = {}  # the long way
        self.made: dict[int, tuple[Any, Modes, list[DimValue]]] = {}  # by place among the rows with entries


class LaneRows:
    """The rows of one lane, with the position of each one's call among the answers."""

    def __init__(self, lane: Lane, rows: tuple[Row, ...], calls: tuple[Call, ...], *, every_role: bool = False) -> None:
        """Take the rows of every lane, and the calls of this one in the order of their answers."""
        positions = {call.key: position for position, call in enumerate(calls)}
        self._places = [
            _place(row, CATALOGUE[row.metric], positions[row.call])
            for row in rows
            if CATALOGUE[row.metric].lane is lane
        ]
        self._every_role = every_role
        self._told: dict[Modes, _Told] = {}  # there are few modes

    def map(self, answers: tuple[Answer, ...], modes: Modes, memory: Memory) -> tuple[Values, list[DimValue]]:
        """Return the readings of a device, or part of one, in these modes."""
        told = self._told.get(modes) or self._told.setdefault(modes, self._told_in(modes))
        values: Values = dict(zip(told.names, _read(told.plain, answers, modes, memory), strict=True))
        found = _read(told.labelled, answers, modes, memory)
        dims = [
            DimValue(place.metric.name, place.row.labels, value)
            for place, value in zip(told.labelled, found, strict=True)
        ]
        for number, place in enumerate(told.listed):
            answer = answers[place.position]
            said = _said(place.row, answer)
            known = memory.made.get(number)
            if known is None or known[0] != said or known[1] != modes:
                listed = read_every(place.row, place.metric, answer, modes)
                made = [DimValue(place.metric.name, labels, value) for labels, value in listed]
                memory.made[number] = known = said, modes, made
            dims += known[2]
        return values, dims

    def absent(self, why: Absent) -> tuple[Values, list[DimValue]]:
        """Return the readings of what gave nothing: all absent."""
        told = self._told.get(NO_MODES) or self._told.setdefault(NO_MODES, self._told_in(NO_MODES))
        dims = [
            DimValue(one.metric.name, first_labels(one.row), why)
            for one in (*told.labelled, *told.listed)
            if not one.row.silent
        ]
        return dict.fromkeys(told.names, why), dims

    def _told_in(self, modes: Modes) -> _Told:
        """Return what is told of a device in these modes; a part of a GPU is in no role, and tells all it has."""
        told = [
            one._replace(convert=None) if modes.mig and by_nature(one.metric, Reason.NOT_IN_MIG_MODE) else one
            for one in self._places
            if self._every_role or one.metric.role is None or one.metric.role in modes.roles
        ]
        plain = tuple([one for one in told if not one.metric.dims])
        with_dims = [one for one in told if one.metric.dims]
        return _Told(
            tuple([one.metric.name for one in plain]),
            plain,
            tuple([one for one in with_dims if not one.row.every]),
            tuple([one for one in with_dims if one.row.every]),
        )


def _place(row: Row, metric: Metric, position: int) -> _Place:
    times, by = SCALES.get(row.convert, (0, 0)) if row.convert is not None else (0, 0)
    return _Place(
        row,
        metric,
        position,
        row.part,
        row.entry,
        row.convert,
        times,
        by,
        SENTINELS.get(row.bits),
        -math.inf if metric.low is None else metric.low,
        math.inf if metric.high is None else metric.high,
    )


def _read(
    places: tuple[_Place, ...], answers: tuple[Answer, ...], modes: Modes, memory: Memory
) -> list[Value | Absent]:
    """Return a reading for each place. All in one loop without calls: there are hundreds of them in a pass."""
    found: list[Value | Absent] = []
    finite = math.isfinite
    for place in places:
        row, metric, position, part, entry, convert, times, by, sentinel, low, high = place
        answer = answers[position]
        value: Any = None
        if convert is not None and not answer.code:
            raw: Any = answer.value
            try:
                if part is not None:
                    raw = raw[part]
                if entry is not None:
                    raw = raw[entry]
                kind = raw.__class__
                if (kind is int and raw != sentinel) or (kind is float and finite(raw)):
                    value = raw / by if by else raw * times if times and kind is int else convert(raw)
                    if not low <= value <= high:
                        value = None
            except (TypeError, ValueError, LookupError):
                value = None
        found.append(_looked(row, metric, answer, modes, memory) if value is None else value)
    return found


def _looked(row: Row, metric: Metric, answer: Answer, modes: Modes, memory: Memory) -> Value | Absent:
    """Return what a longer look gives, or gave of the same words."""
    known = memory.read.get((row.metric, row.labels))
    if known is None or known[0] != answer or known[1] != modes:
        known = memory.read[row.metric, row.labels] = answer, modes, read(row, metric, answer, modes)
    return known[2]


def _said(row: Row, answer: Answer) -> Any:
    """Return everything of an answer that readings of a row's entries are made of."""
    if answer.code or not isinstance(answer.value, list):
        return answer
    if row.part is None:
        places: tuple[int | None, ...] = row.positions
    else:
        places = (row.part,) if row.instead is None else (row.part, row.instead.part)
    if not places or None in places:
        return answer
    value = answer.value
    # Its length too: an empty list says something else than one without these entries.
    return answer.asked, len(value), [value[at] if at < len(value) else _MISSING for at in places if at is not None]
