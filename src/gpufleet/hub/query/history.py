"""An allocation's values over time: whose, within its own time, with a hole wherever nothing was measured. Pure."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import MachineRecord, Series, SeriesAnswer, SeriesPoint
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.errors import GpufleetError
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.stored.samples import StoredSeries
from gpufleet.model.time import NANOS, to_datetime, to_ns

MAX_POINTS = 11_000
"""Steps that one question may ask for."""

LATEST = 2**63 - 1
"""The last instant there is, in the year 2262, and the longest step."""

MAX_METRICS = 20
"""Metrics that one question may ask for."""


class QuestionError(GpufleetError):
    """The question cannot be meant; `field` names the parameter."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        super().__init__(f"{field}: {reason}")


class Window(msgspec.Struct, frozen=True):
    """A span of time in steps; nanoseconds since 1970 and nanoseconds, `end` excluded."""

    start: int
    end: int
    step: int

    @property
    def starts(self) -> range:
        """The start of each step."""
        return range(self.start, self.end, self.step)


def window(start: int, end: int, step: int) -> Window:
    """Make a window out of what was asked for, with its start on a multiple of the step.

    Raises:
        QuestionError: if it is empty or past the last instant, the step is under a second, or there are too many.
    """
    if end > LATEST:
        raise QuestionError("end", f"must not be after {to_datetime(LATEST):%Y-%m-%d}")
    if end <= start:
        raise QuestionError("end", "must be after start")
    if not NANOS <= step <= LATEST:
        raise QuestionError("step", "must be at least one second, and at most 292 years")
    start -= start % step
    if -(-(end - start) // step) > MAX_POINTS:
        raise QuestionError("step", f"gives more than {MAX_POINTS} points: make it longer, or the time shorter")
    return Window(start, end, step)


def check_metrics(names: Sequence[str]) -> None:
    """Refuse what has no values over time.

    Raises:
        QuestionError: naming the metric.
    """
    if not names:
        raise QuestionError("metric", "name at least one, such as gpu_utilization_ratio")
    if len(names) > MAX_METRICS:
        raise QuestionError("metric", f"at most {MAX_METRICS} in one question")
    for name in names:
        metric = CATALOGUE.get(name)
        if metric is None:
            raise QuestionError("metric", f"{name!r} is not in the catalogue")
        if metric.dims or metric.kind is MetricKind.INFO:
            raise QuestionError("metric", f"{name!r} has no plain values over time")


def within(allocation: Allocation, asked: Window) -> Window | None:
    """Cut the window to the allocation's own time: what came before or after it was somebody else's.

    A window that is cut at its start has its steps from there. None when nothing is left.
    """
    spec = allocation.spec
    start = max(asked.start, to_ns(spec.valid_from)) if spec.valid_from is not None else asked.start
    end = min([asked.end, *(to_ns(at) for at in (spec.valid_to, allocation.closed_at) if at is not None)])
    return Window(start, end, asked.step) if start < end else None


def series_answer(
    allocation: Allocation,
    machine: MachineRecord,
    stored: StoredSeries,
    asked: Window,
    *,
    listed: AbstractSet[str] | None,
    source: Provenance = Provenance.HOST_LOCAL_PROBE,
) -> SeriesAnswer:
    """Answer with the points of one machine, measured by `source`; of devices in `listed` (ids) only, unless None."""
    prefix = f"{machine.cluster}/{machine.id}"
    series = tuple(
        Series(
            device=None if view is None else f"{prefix}/{view}",
            metric=name,
            unit=CATALOGUE[name].unit,
            points=_filled(found, asked),
        )
        for (view, name), found in sorted(stored.points.items(), key=lambda item: (item[0][1], item[0][0] or ""))
        if view is None or listed is None or f"{prefix}/{view}" in listed
    )
    return _answer(allocation, asked, source, None, "", series, stored.resolution)


def no_series(allocation: Allocation, reason: Reason, detail: str, asked: Window) -> SeriesAnswer:
    """Answer that there is nothing to answer with."""
    return _answer(allocation, asked, Provenance.UNAVAILABLE, reason, detail, ())


def _filled(found: Sequence[tuple[int, Value]], asked: Window) -> tuple[SeriesPoint, ...]:
    values = dict(found)
    return tuple(SeriesPoint(at=to_datetime(at), value=values.get(at)) for at in asked.starts)


def _answer(
    allocation: Allocation,
    asked: Window,
    source: Provenance,
    reason: Reason | None,
    detail: str,
    series: tuple[Series, ...],
    resolution: Resolution | None = None,
) -> SeriesAnswer:
    return SeriesAnswer(
        allocation=allocation,
        source=source,
        reason=reason,
        detail=detail,
        start=to_datetime(asked.start),
        end=to_datetime(asked.end),
        step_seconds=asked.step / NANOS,
        resolution=resolution,
        series=series,
    )
