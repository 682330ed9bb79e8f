"""Readings of one lane from the answers of a pass.

Most answers are plain numbers within the catalogue's range; they take a fast path. All others are read by `row`, which
alone determines why a value is absent. Those results, and readings per entry (links), are cached and recomputed only if
the driver's answer changed since the previous pass.
"""

import math
from typing import Any, NamedTuple

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvml.calls.call import Call
from gpufleet.readers.nvml.mapping.row import (
    NO_MODES,
    Convert,
    DeviceModes,
    FailedEntriesError,
    MetricRow,
    can_be_absent,
    first_labels,
    read,
    read_entries,
)
from gpufleet.readers.nvml.mapping.units import SCALES
from gpufleet.readers.nvml.parse import MAX_INTEGER, SENTINELS
from gpufleet.readers.nvml.protocol import CallResult

Values = dict[str, Value | Absent]

_MISSING = object()


class _BoundRow(NamedTuple):
    """A row, the position of its answer, and the parameters of the fast path.

    Attributes:
        factor, divisor: of `units.SCALES`; 0 and 0 if a function converts.
        convert: None disables the fast path.
    """

    row: MetricRow
    metric: Metric
    position: int
    part: int | None
    entry: int | None
    convert: Convert | None
    factor: int
    divisor: int
    sentinel: int | None
    low: float
    high: float


class _RowPlan(NamedTuple):
    """Rows that apply to a device in some modes.

    Attributes:
        names: metrics of `plain`.
        plain: rows without dimensions.
        labelled: rows of one reading with labels.
        listed: rows with a reading per entry.
    """

    names: tuple[str, ...]
    plain: tuple[_BoundRow, ...]
    labelled: tuple[_BoundRow, ...]
    listed: tuple[_BoundRow, ...]


class LaneCache:
    """Results of the newest pass of one lane over one device, for the next pass.

    Attributes:
        single: readings outside the fast path, by metric and labels.
        listed: readings per entry, by index in the plan.
    """

    def __init__(self) -> None:
        self.single: dict[tuple[str, tuple[str, ...]], tuple[CallResult, DeviceModes, Value | Absent]] = {}
        self.listed: dict[int, tuple[Any, DeviceModes, list[DimValue]]] = {}


class LaneRows:
    """Rows of one lane, each bound to the position of its call among the answers."""

    def __init__(
        self, lane: Lane, rows: tuple[MetricRow, ...], calls: tuple[Call, ...], *, every_role: bool = False
    ) -> None:
        """Bind the rows.

        Args:
            lane: lane of the answers.
            rows: rows of every lane.
            calls: calls of this lane, in the order of their answers.
            every_role: ignore roles: an instance has none, and all its rows apply.
        """
        positions = {call.key: position for position, call in enumerate(calls)}
        self._rows = [
            _bind(row, CATALOGUE[row.metric], positions[row.call]) for row in rows if CATALOGUE[row.metric].lane is lane
        ]
        self._every_role = every_role
        self._plans: dict[DeviceModes, _RowPlan] = {}  # there are few modes

    def map(
        self, answers: tuple[CallResult, ...], modes: DeviceModes, cache: LaneCache
    ) -> tuple[Values, list[DimValue]]:
        """Return the readings of a device or instance in these modes."""
        plan = self._plans.get(modes) or self._plans.setdefault(modes, self._plan(modes))
        values: Values = dict(zip(plan.names, _read_rows(plan.plain, answers, modes, cache), strict=True))
        found = _read_rows(plan.labelled, answers, modes, cache)
        dims = [
            DimValue(bound.metric.name, bound.row.labels, value)
            for bound, value in zip(plan.labelled, found, strict=True)
        ]
        for number, bound in enumerate(plan.listed):
            answer = answers[bound.position]
            key = _relevant(bound.row, answer)
            known = cache.listed.get(number)
            if known is None or known[0] != key or known[1] != modes:
                listed = read_entries(bound.row, bound.metric, answer, modes)
                readings = [DimValue(bound.metric.name, labels, value) for labels, value in listed]
                cache.listed[number] = known = key, modes, readings
            dims += known[2]
        return values, dims

    def absent(self, why: Absent) -> tuple[Values, list[DimValue]]:
        """Return all readings as absent, for a device or instance without an answer."""
        plan = self._plans.get(NO_MODES) or self._plans.setdefault(NO_MODES, self._plan(NO_MODES))
        dims = [
            DimValue(bound.metric.name, first_labels(bound.row), why)
            for bound in (*plan.labelled, *plan.listed)
            if not bound.row.omit_if_none
        ]
        return dict.fromkeys(plan.names, why), dims

    def _plan(self, modes: DeviceModes) -> _RowPlan:
        """Return the rows that apply in these modes."""
        rows = [
            bound._replace(convert=None) if modes.mig and can_be_absent(bound.metric, Reason.NOT_IN_MIG_MODE) else bound
            for bound in self._rows
            if self._every_role or bound.metric.role is None or bound.metric.role in modes.roles
        ]
        plain = tuple([bound for bound in rows if not bound.metric.dims])
        with_dims = [bound for bound in rows if bound.metric.dims]
        return _RowPlan(
            tuple([bound.metric.name for bound in plain]),
            plain,
            tuple([bound for bound in with_dims if not bound.row.every]),
            tuple([bound for bound in with_dims if bound.row.every]),
        )


def _bind(row: MetricRow, metric: Metric, position: int) -> _BoundRow:
    factor, divisor = SCALES.get(row.convert, (0, 0)) if row.convert is not None else (0, 0)
    return _BoundRow(
        row,
        metric,
        position,
        row.part,
        row.entry,
        row.convert,
        factor,
        divisor,
        SENTINELS.get(row.bits),
        -math.inf if metric.low is None else metric.low,
        MAX_INTEGER if metric.high is None else metric.high,
    )


def _read_rows(
    rows: tuple[_BoundRow, ...], answers: tuple[CallResult, ...], modes: DeviceModes, cache: LaneCache
) -> list[Value | Absent]:
    """Return a reading for each row, in one loop without function calls: a pass has hundreds of rows."""
    found: list[Value | Absent] = []
    finite = math.isfinite
    for bound in rows:
        row, metric, position, part, entry, convert, factor, divisor, sentinel, low, high = bound
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
                    value = raw / divisor if divisor else raw * factor if factor and kind is int else convert(raw)
                    if not low <= value <= high:
                        value = None
            except (TypeError, ValueError, LookupError, FailedEntriesError):
                value = None
        found.append(_read_cached(row, metric, answer, modes, cache) if value is None else value)
    return found


def _read_cached(
    row: MetricRow, metric: Metric, answer: CallResult, modes: DeviceModes, cache: LaneCache
) -> Value | Absent:
    """Read a row outside the fast path; return the cached result if the answer is unchanged."""
    known = cache.single.get((row.metric, row.labels))
    if known is None or known[0] != answer or known[1] != modes:
        known = cache.single[row.metric, row.labels] = answer, modes, read(row, metric, answer, modes)
    return known[2]


def _relevant(row: MetricRow, answer: CallResult) -> Any:
    """Return the part of an answer that determines the readings of a row's entries."""
    if answer.code or not isinstance(answer.value, list):
        return answer
    if row.part is None:
        positions: tuple[int | None, ...] = row.positions
    else:
        positions = (row.part,) if row.instead is None else (row.part, row.instead.part)
    if not positions or None in positions:
        return answer
    value = answer.value
    # Includes the length: an empty list differs from a list without these entries.
    entries = [value[at] if at < len(value) else _MISSING for at in positions if at is not None]
    return answer.breadcrumb, len(value), entries
