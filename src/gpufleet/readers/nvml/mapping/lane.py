"""The rows of one lane, read from the answers of a pass.

Most answers are plain numbers that the catalogue admits: these are taken by a short way. Everything else goes the way
of `row`, which alone knows why there is no value. What has a reading for each of many entries (links) is made again
only where the driver's words are others than in the pass before.
"""

import math
from typing import Any, NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml.calls.call import Call
from gpufleet.readers.nvml.mapping.row import NO_MODES, Convert, Modes, Row, by_nature, first_labels, read, read_every
from gpufleet.readers.nvml.parse import SENTINELS
from gpufleet.readers.nvml.protocol import Answer

Values = dict[str, Value | Absent]

_MISSING = object()


class _Place(NamedTuple):
    """A row, where its answer stands, and what the short way needs of it."""

    row: Row
    metric: Metric
    position: int
    name: str
    part: int | None
    entry: int | None
    convert: Convert | None
    sentinel: int | None
    low: float
    high: float
    not_in_mig: bool


class Memory:
    """What the rows of one lane made of the newest pass over one device, for the next one."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.made: dict[int, tuple[Any, Modes, list[DimValue]]] = {}  # by place among the rows with dimensions


class LaneRows:
    """The rows of one lane, with the position of each one's call among the answers."""

    def __init__(self, lane: Lane, rows: tuple[Row, ...], calls: tuple[Call, ...], *, every_role: bool = False) -> None:
        """Take the rows of every lane, and the calls of this one in the order of their answers."""
        positions = {call.key: position for position, call in enumerate(calls)}
        located = [
            _place(row, CATALOGUE[row.metric], positions[row.call])
            for row in rows
            if CATALOGUE[row.metric].lane is lane
        ]
        self._plain = tuple([one for one in located if not one.metric.dims])
        self._labelled = tuple([one for one in located if one.metric.dims])
        self._every_role = every_role

    def map(self, answers: tuple[Answer, ...], modes: Modes, memory: Memory) -> tuple[Values, list[DimValue]]:
        """Return the readings of a device, or part of one, in these modes."""
        values: Values = {}
        for place in self._plain:
            metric = place.metric
            if self._every_role or metric.role is None or metric.role in modes.roles:
                value = _number(place, answers[place.position], modes)
                values[place.name] = read(place.row, metric, answers[place.position], modes) if value is None else value
        dims: list[DimValue] = []
        for number, place in enumerate(self._labelled):
            if not self._is_told(place.metric, modes):
                continue
            answer = answers[place.position]
            if not place.row.every:
                value = _number(place, answer, modes)
                found = read(place.row, place.metric, answer, modes) if value is None else value
                dims.append(DimValue(place.name, place.row.labels, found))
                continue
            said = _said(place.row, answer)
            known = memory.made.get(number)
            if known is None or known[0] != said or known[1] != modes:
                listed = read_every(place.row, place.metric, answer, modes)
                made = [DimValue(place.name, labels, value) for labels, value in listed]
                memory.made[number] = known = said, modes, made
            dims += known[2]
        return values, dims

    def absent(self, why: Absent) -> tuple[Values, list[DimValue]]:
        """Return the readings of what gave nothing: all absent."""
        values: Values = {one.name: why for one in self._plain if self._is_told(one.metric, NO_MODES)}
        dims = [
            DimValue(one.name, first_labels(one.row), why)
            for one in self._labelled
            if self._is_told(one.metric, NO_MODES) and not one.row.silent
        ]
        return values, dims

    def _is_told(self, metric: Metric, modes: Modes) -> bool:
        """Whether it is told of a device in these modes; a part of a GPU is in no role, and tells all it has."""
        return self._every_role or metric.role is None or metric.role in modes.roles


def _place(row: Row, metric: Metric, position: int) -> _Place:
    return _Place(
        row,
        metric,
        position,
        metric.name,
        row.part,
        row.entry,
        row.convert,
        SENTINELS.get(row.bits),
        -math.inf if metric.low is None else metric.low,
        math.inf if metric.high is None else metric.high,
        by_nature(metric, Reason.NOT_IN_MIG_MODE),
    )


def _number(place: _Place, answer: Answer, modes: Modes) -> int | float | None:
    """Return the reading if it is a number like any other, or None where it takes a longer look."""
    if answer.code or place.convert is None or (modes.mig and place.not_in_mig):
        return None
    raw: Any = answer.value
    try:
        if place.part is not None:
            raw = raw[place.part]
        if place.entry is not None:
            code, raw = raw[place.entry]
            if code != 0:
                return None
        kind = raw.__class__
        if (kind is int and raw != place.sentinel) or (kind is float and math.isfinite(raw)):
            value = place.convert(raw)
            if not isinstance(value, str) and value is not None and place.low <= value <= place.high:
                return value
    except (TypeError, ValueError, LookupError):
        pass
    return None


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
