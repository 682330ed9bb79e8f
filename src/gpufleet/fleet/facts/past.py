"""Judgement of an interval in the past whose readings arrived late: findings that opened and closed within it. Pure.

Rules about the values of a GPU at an instant are judged, and rules about its XIDs up to a reset. Rules that need
holders, other GPUs or successive samples are not, and a missing report cannot be missing afterwards. XIDs without a
reset are judged with the newest ones.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from gpufleet.fleet.facts import metrics
from gpufleet.fleet.facts.conditions import fault_columns, state_columns
from gpufleet.fleet.facts.holders import GPU_PREFIX
from gpufleet.fleet.facts.past_xids import past_xids
from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.judgement import Judgement, RuleVerdicts, judge
from gpufleet.fleet.rules.logic import Column
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.fleet.rules.tracker import Findings
from gpufleet.fleet.rules.xids import COLUMN_OF_ACTION, XidFacts
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.device_state import OK
from gpufleet.model.finding import RuleScope
from gpufleet.model.reading import Value
from gpufleet.model.status import LANE_SECONDS, MISSED_PASSES
from gpufleet.model.stored.findings import FindingTransition, TransitionKind
from gpufleet.model.stored.readings import split_labelled
from gpufleet.model.stored.samples import StoredEvent
from gpufleet.model.time import NANOS

STEP_SECONDS = 60
"""Time between two judgements."""

CURRENT_SECONDS = 120.0
"""Minimum time for which a value counts after its measurement."""

_VALUES = {name: metric for name, metric in metrics.NUMBERS.items() if not split_labelled(metric)[1]}
_FAULTS = ("repair_pending", "fabric_unhealthy", "mig_mode_pending")
_XIDS = {*filter(None, COLUMN_OF_ACTION.values()), "xids_most_repeated"}
_STATES = ("lost", "reset_required", "hung", "unreadable", "recovery_needed")

PAST_METRICS = (
    *dict.fromkeys(
        (
            *_VALUES.values(),
            *(metrics.STATE, metrics.RECOVERY, metrics.MIG_MODE, metrics.MIG_MODE_PENDING),
            *(*metrics.REPAIRS, metrics.FABRIC_STATUS, metrics.FABRIC_CONFIGURATION),
            metrics.BOOTED_AT,
        )
    ),
)
"""Metrics of the series that are judged."""

PAST_RULES = tuple(
    rule
    for rule in RULES
    if rule.scope is RuleScope.DEVICE and {*_VALUES, *_FAULTS, *_STATES, *_XIDS}.issuperset(rule.inputs)
)
"""Rules that are judged."""

Points = Mapping[tuple[str | None, str], Sequence[tuple[int, Value]]]
"""Start of step and value by view key and metric, as in `StoredSeries`."""


class PastInterval(msgspec.Struct, frozen=True):
    """Interval in which the readings of a machine arrived late.

    Attributes:
        cluster, machine: ids.
        start, end: nanoseconds since 1970, `end` excluded.
        sender: sender of the machine.
    """

    cluster: str
    machine: str
    start: int
    end: int
    sender: str = ""


class PastReadings:
    """Values of the GPUs of a machine at every step of an interval, one row per step and GPU.

    Attributes:
        views: view keys of the GPUs.
        steps: number of steps.
    """

    def __init__(self, interval: PastInterval, points: Points) -> None:
        """Take the points of `PAST_METRICS`."""
        self.views = sorted({view for view, _ in points if view and view.startswith(GPU_PREFIX)})
        self.steps = -(-(interval.end - interval.start) // (STEP_SECONDS * NANOS))
        self._start, self._points = interval.start, points

    @property
    def times(self) -> range:
        """Time of each step, nanoseconds since 1970."""
        step = STEP_SECONDS * NANOS
        return range(self._start, self._start + self.steps * step, step)

    def boots(self) -> set[int]:
        """Return the times of the machine's boots, nanoseconds since 1970."""
        return {int(float(value) * NANOS) for _, value in self._points.get((None, metrics.BOOTED_AT), ())}

    def works(self) -> dict[str, list[int]]:
        """Return the starts of the steps in which each GPU was `ok`, ascending, by view key."""
        states = {view: self._points.get((view, metrics.STATE), ()) for view in self.views}
        return {view: [at for at, value in points if value == OK] for view, points in states.items()}

    def gone(self) -> Column:
        """Return whether the GPU of each row is gone: since a boot, other GPUs have values, and it has none any more.

        It was removed or replaced, or has another key since.
        """
        last = dict.fromkeys(self.views, 0)
        read: set[int] = set()
        for (view, _), points in self._points.items():
            if view in last:
                read.update(times := [at for at, _ in points])
                last[view] = max([last[view], *times])
        boots, times = sorted(self.boots()), sorted(read)
        cells = np.zeros((self.steps, len(self.views)), bool)
        for place, view in enumerate(self.views):
            after_boot = [times[bisect_left(times, at) :] for at in boots if at > last[view]]
            if after_boot and after_boot[0]:
                cells[self._step(after_boot[0][0]) :, place] = True
        return cells.ravel()

    def value(self, metric: str) -> Column:
        """Return the value of each row, NaN for none."""
        cells = np.full((self.steps, len(self.views)), np.nan)
        states = CATALOGUE[metric].states if metric in CATALOGUE else ()
        for place, view in enumerate(self.views):
            for at, value in self._points.get((view, metric), ()):
                cells[self._step(at), place] = states.index(str(value)) if states else float(value)
        return _filled(cells, _valid_steps(metric)).ravel()

    def _step(self, at: int) -> int:
        return (at - self._start) // (STEP_SECONDS * NANOS)


def _valid_steps(metric: str) -> int:
    """Return the number of further steps for which a value of a metric counts."""
    lane = CATALOGUE[metric].lane if metric in CATALOGUE else None
    seconds = MISSED_PASSES * LANE_SECONDS[lane] if lane else 0.0
    return int(max(CURRENT_SECONDS, seconds) // STEP_SECONDS)


def _filled(cells: Column, valid: int) -> Column:
    """Return the cells, each missing one with the last value of its column at most `valid` rows before."""
    rows = np.arange(len(cells))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(cells), -1, rows), axis=0)
    found = np.take_along_axis(cells, np.maximum(last, 0), axis=0)
    return np.where((last >= 0) & (rows - last <= valid), found, np.nan)


def past_findings(
    interval: PastInterval, points: Points, thresholds: Thresholds, events: Iterable[StoredEvent]
) -> list[FindingTransition]:
    """Return the transitions of the findings that opened and closed within an interval, in order.

    Args:
        interval: the interval.
        points: series of the machine with `STEP_SECONDS`, from the start of the interval on.
        thresholds: of `RULES`.
        events: events of the machine within the interval, of the kinds `XID_EVENTS`.
    """
    readings = PastReadings(interval, points)
    if not readings.views:
        return []
    keys = [f"{interval.cluster}/{interval.machine}/{view}" for view in readings.views]
    counts = past_xids(readings.views, readings.times, events, readings.boots(), readings.works())
    xids = XidFacts(counts, np.ones(readings.steps * len(keys), bool))
    columns = _columns(readings) | xids.columns
    columns["lost"][[row for row, codes in counts.items() if metrics.FALLEN_OFF in codes]] = 1
    table = FactTable(
        RuleScope.DEVICE,
        range(readings.steps * len(keys)),  # type: ignore[arg-type]
        columns,
        texts={"xid_codes": xids.codes},
        retired=readings.gone(),
    )
    verdicts = judge(FleetFacts.of(table), PAST_RULES, thresholds, interval.start).verdicts
    firing = [one for one in verdicts.values() if len(one.firing)]
    tracker = Findings([one.rule for one in firing], thresholds)
    transitions: list[FindingTransition] = []
    for step in range(readings.steps if firing else 0):
        transitions += tracker.update(_judgement(interval, step, keys, firing))
    ended = {one.finding.id for one in transitions if one.kind is TransitionKind.CLOSED}
    return [one for one in transitions if one.finding.id in ended]


def _columns(readings: PastReadings) -> dict[str, Column]:
    columns = {name: readings.value(metric) for name, metric in _VALUES.items()}
    found = {**state_columns(readings, readings.value(metrics.STATE)), **fault_columns(readings)}
    return columns | {name: found[name] for name in (*_FAULTS, *_STATES)}


def _judgement(interval: PastInterval, step: int, keys: list[str], verdicts: Sequence[RuleVerdicts]) -> Judgement:
    """Return the judgement of a step from the verdicts about all steps."""
    rows = slice(step * len(keys), (step + 1) * len(keys))
    inputs = {name for one in verdicts for name in one.rule.inputs}
    every = verdicts[0].table
    codes = [every.text("xid_codes", row) for row in range(rows.start, rows.stop)]
    columns = {name: every.column(name)[rows] for name in inputs}
    texts, retired = {"xid_codes": codes}, every.retired[rows]
    table = FactTable(RuleScope.DEVICE, keys, columns, texts=texts, retired=retired)
    of_step = {one.rule.id: one for one in _of_step(verdicts, rows, table)}
    return Judgement(interval.start + step * STEP_SECONDS * NANOS, FleetFacts.of(table), of_step)


def _of_step(verdicts: Sequence[RuleVerdicts], rows: slice, table: FactTable) -> Iterator[RuleVerdicts]:
    for one in verdicts:
        chosen = (one.firing >= rows.start) & (one.firing < rows.stop)
        hiding = one.hiding[(one.hiding >= rows.start) & (one.hiding < rows.stop)]
        yield RuleVerdicts(
            rule=one.rule,
            table=table,
            firing=one.firing[chosen] - rows.start,
            escalated=one.escalated[chosen],
            unknown=one.unknown[rows],
            hiding=hiding - rows.start,
        )
