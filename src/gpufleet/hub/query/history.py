"""Series of allocations and machines, with a gap for each step without a measurement. Pure.

The series of an allocation is clipped to its own time.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import (
    MachineRecord,
    MachineSeriesAnswer,
    Series,
    SeriesAnswer,
    SeriesPoint,
    SourceInterval,
)
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.errors import GpufleetError
from gpufleet.model.reading import Provenance, Value
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.stored.samples import StoredSeries
from gpufleet.model.time import LATEST, NANOS, to_datetime, to_ns
from gpufleet.model.view import Scope

MAX_POINTS = 11_000
"""Maximum number of steps per query."""

MAX_PARTS = 512
"""Maximum number of parts of the series of a pod or job: intervals in which it has devices of one machine."""

MAX_DEVICE_POINTS = 2_000_000
"""Maximum number of points of the series of a pod or job, over all devices and metrics."""

MAX_METRICS = 20
"""Maximum number of metrics per query."""


class InvalidQueryError(GpufleetError):
    """Invalid query; `field` names the parameter."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        super().__init__(f"{field}: {reason}")


class SeriesWindow(msgspec.Struct, frozen=True):
    """Interval in steps; nanoseconds since 1970 and nanoseconds, `end` excluded."""

    start: int
    end: int
    step: int

    @property
    def starts(self) -> range:
        """Start of each step."""
        return range(self.start, self.end, self.step)


def make_window(start: int, end: int, step: int) -> SeriesWindow:
    """Make a window with its start rounded down to a multiple of the step.

    Raises:
        InvalidQueryError: if it is empty, past the last instant, has a step under a second, or too many steps.
    """
    if end > LATEST:
        raise InvalidQueryError("end", f"must not be after {to_datetime(LATEST):%Y-%m-%d}")
    if end <= start:
        raise InvalidQueryError("end", "must be after start")
    if not NANOS <= step <= LATEST:
        raise InvalidQueryError("step", "must be at least one second, and at most 292 years")
    start -= start % step
    if -(-(end - start) // step) > MAX_POINTS:
        raise InvalidQueryError("step", f"gives more than {MAX_POINTS} points: use a longer step or a shorter interval")
    return SeriesWindow(start, end, step)


def check_metrics(names: Sequence[str]) -> None:
    """Reject metrics without values over time.

    Raises:
        InvalidQueryError: for the first such metric.
    """
    if not names:
        raise InvalidQueryError("metric", "is missing: name at least one, such as gpu_utilization_ratio")
    if len(names) > MAX_METRICS:
        raise InvalidQueryError("metric", f"at most {MAX_METRICS} per query")
    for name in names:
        metric = CATALOGUE.get(name)
        if metric is None:
            raise InvalidQueryError("metric", f"{name!r} is not in the catalogue")
        if metric.dims or metric.kind is MetricKind.INFO:
            raise InvalidQueryError("metric", f"{name!r} has dimensions or is text: it has no plain values over time")


def clip_window(allocation: Allocation, requested: SeriesWindow) -> SeriesWindow | None:
    """Clip the window to the allocation's own time, since other tenants had the devices before and after.

    The steps of a window that is clipped at its start begin there. None if nothing is left.
    """
    spec = allocation.spec
    start = max(requested.start, to_ns(spec.valid_from)) if spec.valid_from is not None else requested.start
    end = min([requested.end, *(to_ns(at) for at in (spec.valid_to, allocation.closed_at) if at is not None)])
    return SeriesWindow(start, end, requested.step) if start < end else None


def check_parts(parts: Sequence[tuple[int, int, int]], metrics: int, step: int) -> None:
    """Reject a query for too many parts of series, or too many points.

    Args:
        parts: start, end and number of devices of each part.
        metrics: number of metrics.
        step: length of a step.

    Raises:
        InvalidQueryError: if there are too many.
    """
    if len(parts) > MAX_PARTS:
        detail = f"{len(parts)} intervals of machines, at most {MAX_PARTS}: use a shorter interval"
        raise InvalidQueryError("start", detail)
    points = metrics * sum(-(-(end - start) // step) * devices for start, end, devices in parts)
    if points > MAX_DEVICE_POINTS:
        detail = f"gives {points} points of all devices, at most {MAX_DEVICE_POINTS}: use a longer step"
        raise InvalidQueryError("step", detail)


class SeriesPart(msgspec.Struct, frozen=True):
    """Stored series of the time in which an allocation had one machine.

    Attributes:
        machine: `cluster/id`.
        devices: keys of the allocated views, or None for the whole machine.
        window: that time, in steps.
        stored: series of the machine within the window.
        source: source of the series.
        scope: `shared_device` if others share the devices.
        of_host: whether the machine's own series are the allocation's, too.
    """

    machine: str
    devices: AbstractSet[str] | None
    window: SeriesWindow
    stored: StoredSeries
    source: Provenance
    scope: Scope = Scope.OWN
    of_host: bool = True


def series_answer(allocation: Allocation, parts: Sequence[SeriesPart], window: SeriesWindow) -> SeriesAnswer:
    """Answer with the series of the allocation's machines, in order of time."""
    last = parts[-1]
    return _answer(
        allocation, window, last.source, None, "", device_series(parts), last.stored.resolution, source_intervals(parts)
    )


def machine_series_answer(
    machine: MachineRecord, parts: Sequence[SeriesPart], window: SeriesWindow
) -> MachineSeriesAnswer:
    """Answer with the series of a machine, in order of time."""
    return MachineSeriesAnswer(
        cluster=machine.cluster,
        machine=machine.id,
        name=machine.machine.name,
        source=parts[-1].source,
        start=to_datetime(window.start),
        end=to_datetime(window.end),
        step_seconds=window.step / NANOS,
        resolution=parts[-1].stored.resolution,
        series=device_series(parts),
        sources=source_intervals(parts),
    )


def source_intervals(parts: Sequence[SeriesPart]) -> tuple[SourceInterval, ...]:
    """Return the sources of parts; adjacent intervals of one machine and source are one."""
    found: list[SourceInterval] = []
    for part in parts:
        start, end = to_datetime(part.window.start), to_datetime(part.window.end)
        last = found[-1] if found else None
        if last is not None and (last.machine, last.source, last.end) == (part.machine, part.source, start):
            found[-1] = msgspec.structs.replace(last, end=end)
        else:
            found.append(SourceInterval(machine=part.machine, source=part.source, start=start, end=end))
    return tuple(found)


def device_series(parts: Sequence[SeriesPart]) -> tuple[Series, ...]:
    """Return the series of the devices and machines of parts, in order of metric and device.

    Windows of parts with a device in common are equal, or do not overlap. At an instant with values of several parts,
    that of the last counts.
    """
    values: dict[tuple[str, str | None], dict[int, Value | None]] = {}
    reasons: dict[tuple[str, str | None], dict[int, Reason]] = {}
    shared: set[tuple[str, str | None]] = set()
    known: dict[str, set[tuple[str | None, str]]] = {}
    for part in parts:
        known.setdefault(part.machine, set()).update(part.stored.points)
    for part in parts:
        for view, name in known[part.machine]:
            if part.of_host if view is None else part.devices is None or view in part.devices:
                key = name, None if view is None else f"{part.machine}/{view}"
                if part.scope is Scope.SHARED_DEVICE:
                    shared.add(key)
                steps = values.setdefault(key, {})
                steps.update((at, steps.get(at)) for at in part.window.starts)
                steps.update((at, value) for at, value in part.stored.points.get((view, name), ()) if at in steps)
                absent = part.stored.absences.get((view, name), {})
                reasons.setdefault(key, {}).update((at, why) for at, why in absent.items() if at in steps)
    return tuple(
        Series(
            device=device,
            metric=name,
            unit=CATALOGUE[name].unit,
            scope=Scope.SHARED_DEVICE if (name, device) in shared else Scope.OWN,
            points=_points(values[name, device], reasons[name, device]),
        )
        for name, device in sorted(values, key=lambda key: (key[0], key[1] or ""))
    )


def empty_series(allocation: Allocation, reason: Reason, detail: str, window: SeriesWindow) -> SeriesAnswer:
    """Answer without series, for a reason."""
    return _answer(allocation, window, Provenance.UNAVAILABLE, reason, detail, ())


def _points(steps: Mapping[int, Value | None], reasons: Mapping[int, Reason]) -> tuple[SeriesPoint, ...]:
    return tuple(
        SeriesPoint(at=to_datetime(at), value=value, absent=reasons.get(at) if value is None else None)
        for at, value in steps.items()
    )


def _answer(
    allocation: Allocation,
    window: SeriesWindow,
    source: Provenance,
    reason: Reason | None,
    detail: str,
    series: tuple[Series, ...],
    resolution: Resolution | None = None,
    sources: tuple[SourceInterval, ...] = (),
) -> SeriesAnswer:
    return SeriesAnswer(
        allocation=allocation,
        source=source,
        reason=reason,
        detail=detail,
        start=to_datetime(window.start),
        end=to_datetime(window.end),
        step_seconds=window.step / NANOS,
        resolution=resolution,
        series=series,
        sources=sources,
    )
