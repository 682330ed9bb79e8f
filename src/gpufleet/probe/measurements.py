"""Kinds of measurements, and the collector that turns repeats into measurements with statistics. Pure."""

import math
import statistics

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.text import bounded
from gpufleet.probe.records import MAX_REPEATS, MAX_VALUE, Better, MeasuredUnit, Measurement, Statistics

TARGET, PEER = "TARGET", "PEER"
"""Placeholders in recorded arguments, for what differs between two machines that run the same workload."""


class MeasurementKind(msgspec.Struct, frozen=True, kw_only=True):
    """Kind of a measurement.

    Attributes:
        name: name in the document.
        help: meaning.
        unit: of the values.
        better: direction of improvement.
        tool: program that measures.
        arguments: of the program, with placeholders.
    """

    name: str
    help: str
    unit: MeasuredUnit
    better: Better
    tool: str
    arguments: tuple[str, ...] = ()


def describe(values: tuple[float, ...]) -> Statistics | None:
    """Return the statistics of values; None without values."""
    if not values:
        return None
    return Statistics(
        count=len(values),
        median=statistics.median(values),
        mean=statistics.fmean(values),
        minimum=min(values),
        maximum=max(values),
        standard_deviation=statistics.stdev(values) if len(values) > 1 else None,
    )


class MeasurementList:
    """Collector of the measurements of a capture, in the order of their first value or absence."""

    def __init__(self) -> None:
        self._kinds: dict[str, MeasurementKind] = {}
        self._values: dict[str, list[float]] = {}
        self._failed: dict[str, int] = {}
        self._absent: dict[str, Absent] = {}
        self._targets: dict[str, str] = {}
        self._versions: dict[str, str] = {}

    def add(self, kind: MeasurementKind, value: float | Absent, *, target: str = "", tool_version: str = "") -> None:
        """Add a repeat: a value, or the reason why there is none. An implausible value is absent."""
        name = kind.name
        self._kinds.setdefault(name, kind)
        self._targets[name] = target
        self._versions[name] = tool_version
        if not isinstance(value, Absent) and not (math.isfinite(value) and 0 <= value <= MAX_VALUE):
            value = Absent(Reason.INVALID_VALUE, f"{value} is out of range")
        values = self._values.setdefault(name, [])
        if isinstance(value, Absent):
            self._failed[name] = min(MAX_REPEATS, self._failed.get(name, 0) + 1)
            self._absent[name] = value
        elif len(values) < MAX_REPEATS:
            values.append(float(value))

    def skip(self, kind: MeasurementKind, absent: Absent) -> None:
        """Add a measurement that the capture does not try."""
        self.add(kind, absent)
        self._failed[kind.name] = 0

    def measurements(self) -> tuple[Measurement, ...]:
        """Return the measurements."""
        return tuple(map(self._measurement, self._kinds.values()))

    def _measurement(self, kind: MeasurementKind) -> Measurement:
        values = tuple(self._values[kind.name])
        absent = self._absent.get(kind.name)
        return Measurement(
            name=kind.name,
            unit=kind.unit,
            better=kind.better,
            tool=kind.tool,
            tool_version=bounded(self._versions[kind.name], 256),
            arguments=kind.arguments,
            target=bounded(self._targets[kind.name], 1024),
            values=values,
            statistics=describe(values),
            failed=self._failed.get(kind.name, 0),
            absent=None if absent is None else absent.reason,
            detail="" if absent is None else bounded(absent.detail, 1024),
        )
