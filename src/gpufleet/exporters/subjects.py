"""Series of devices and of the machine. Their lines are cached, so that only changed ones are rendered.

Changes are detected by identity: snapshots of one assembler share unchanged objects (`agent/collect/readings.py`).
If only the value of a line changes, the part before the value is reused.
"""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpufleet.dialects.native import MEASURED, PREFIX
from gpufleet.exporters.exposition import FamilyHeader, Section, format_labels, format_number, format_sample
from gpufleet.exporters.holders import HOLDER_INFO, HOLDER_STATE, holder_labels
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.holdings import DeviceHolders, HolderState
from gpufleet.model.reading import DimReading, Reading, Value
from gpufleet.model.snapshot import Source

ABSENT = "gpufleet_reading_absent"

FamilyLines = dict[str, str]
"""Family to lines of one subject; empty if the subject no longer has any."""


class FamilyBodies:
    """Lines of several subjects by family."""

    def __init__(self, heads: Mapping[str, FamilyHeader], subjects: int) -> None:
        """Create empty families in order, for a number of subjects."""
        self._heads = heads
        self._parts: dict[str, list[str]] = {family: [""] * subjects for family in heads}
        self._bodies: dict[str, bytes] = dict.fromkeys(heads, b"")
        self._stale: set[str] = set()

    def put(self, subject: int, lines: FamilyLines) -> None:
        """Replace lines of one subject."""
        for family, text in lines.items():
            self._parts[family][subject] = text
        self._stale |= lines.keys()

    def join(self) -> Iterator[None]:
        """Join the lines of changed families, in small steps."""
        while self._stale:
            family = self._stale.pop()
            self._bodies[family] = "".join(self._parts[family]).encode()
            yield

    def sections(self) -> Iterable[Section]:
        """Return the families in order."""
        return [(self._heads[family], body) for family, body in self._bodies.items()]


class SubjectLabels(NamedTuple):
    """Labels of the series of a device or machine, as written by `format_labels`.

    Attributes:
        base: labels of its series.
        identity: those without the holder.
        since: start of the holding of the holder in `base`, or None.
    """

    base: str
    identity: str
    since: dt.datetime | None = None

    def at(self, instant: dt.datetime | None) -> str:
        """Return the labels of a value measured at an instant, without the holder if it had not begun."""
        return self.identity if self.is_before(instant) else self.base

    def is_before(self, instant: dt.datetime | None) -> bool:
        """Return whether an instant is before the start of the holding."""
        return self.since is not None and instant is not None and instant < self.since


class SubjectSeries:
    """The series of one device, or of the machine itself."""

    def __init__(self, labels: SubjectLabels, info: str, texts: frozenset[str]) -> None:
        """Create a subject without lines.

        Args:
            labels: labels of its series.
            info: the info family of the subject.
            texts: info texts that the info family omits.
        """
        self._labels, self._info, self._texts = labels, info, texts
        self._readings: dict[str, Reading] = {}
        self._dims: tuple[DimReading, ...] = ()
        self._dim_lines: list[str] = []
        self._at: dict[str, list[int]] = {}  # family to positions in `_dim_lines`
        self._sources: tuple[Source, ...] = ()
        self._holders: DeviceHolders | None = None
        self._written = False

    def update(
        self,
        readings: dict[str, Reading],
        dims: tuple[DimReading, ...],
        sources: tuple[Source, ...],
        holders: DeviceHolders | None = None,
    ) -> FamilyLines:
        """Return the changed lines."""
        fresh: FamilyLines = {}
        infos = self._update_readings(readings, fresh)
        self._update_dims(dims, fresh)
        if infos or not self._written:
            fresh[self._info] = format_sample(
                self._info, ",".join(filter(None, (self._labels.base, self._info_labels()))), "1"
            )
        if ABSENT in fresh:
            fresh[ABSENT] = self._absences()
        if sources != self._sources:
            self._sources = sources
            fresh[MEASURED] = "".join([_measured(self._labels.at(source.measured_at), source) for source in sources])
        if holders is not self._holders:
            self._holders = holders
            fresh[HOLDER_INFO], fresh[HOLDER_STATE] = _holder_lines(self._labels.identity, holders)
        self._written = True
        return fresh

    def _update_readings(self, readings: dict[str, Reading], fresh: FamilyLines) -> bool:
        """Render changed readings; return whether an info text changed.

        An empty text under `ABSENT` requests rendering of the absences.
        """
        before, self._readings = self._readings, readings
        if before is readings:
            return False
        infos = False
        if before.keys() != readings.keys():
            gone = before.keys() - readings.keys()
            fresh.update(dict.fromkeys([PREFIX + name for name in gone if not _is_info(name)], ""))
            fresh[ABSENT] = ""
            infos = any(map(_is_info, gone))
        for name, reading in readings.items():
            known = before.get(name)
            if known is reading or (known is not None and self._renders_equal(known, reading)):
                continue
            if reading.value is None or (known is not None and known.value is None):
                fresh[ABSENT] = ""
            if _is_info(name):
                infos = True
            else:
                fresh[PREFIX + name] = _metric_lines(name, self._labels.at(reading.measured_at), reading.value)
        return infos

    def _update_dims(self, dims: tuple[DimReading, ...], fresh: FamilyLines) -> None:
        before, self._dims = self._dims, dims
        if before is dims:
            return
        changed = [place for place, (one, other) in enumerate(zip(before, dims, strict=False)) if one is not other]
        if len(before) != len(dims) or not all(_is_same_series(before[place], dims[place]) for place in changed):
            self._write_dims(fresh)
            return
        families: set[str] = set()
        for place in changed:
            known, reading = before[place], dims[place]
            if self._renders_equal(known, reading):
                continue
            if reading.value is None or known.value is None:
                fresh[ABSENT] = ""
            families.add(PREFIX + reading.metric)
            is_moved = self._labels.is_before(known.measured_at) is not self._labels.is_before(reading.measured_at)
            self._dim_lines[place] = self._dim_line(reading, "" if is_moved else self._dim_lines[place])
        for family in families:
            fresh[family] = "".join([self._dim_lines[place] for place in self._at[family]])

    def _write_dims(self, fresh: FamilyLines) -> None:
        """Render all dimension lines, because the set of series changed."""
        fresh.update(dict.fromkeys(self._at, ""))
        fresh[ABSENT] = ""
        self._at = {}
        for place, reading in enumerate(self._dims):
            self._at.setdefault(PREFIX + reading.metric, []).append(place)
        self._dim_lines = [self._dim_line(reading, "") for reading in self._dims]
        for family, places in self._at.items():
            fresh[family] = "".join([self._dim_lines[place] for place in places])

    def _dim_line(self, reading: DimReading, known: str) -> str:
        """Render a reading. The part of a known line before the value is reused."""
        value = reading.value
        if known and CATALOGUE[reading.metric].kind is not MetricKind.STATE and isinstance(value, int | float):
            return f"{known[: known.rindex(' ')]} {format_number(value)}\n"
        return _metric_lines(
            reading.metric, f"{self._labels.at(reading.measured_at)},{format_labels(reading.labels)}", value
        )

    def _absences(self) -> str:
        found = [
            _absence(self._labels.at(reading.measured_at), name, reading.absent)
            for name, reading in self._readings.items()
            if reading.value is None
        ]
        for dim in self._dims:
            if dim.value is None:
                # A dimension can be named `reason` too, so all dimensions get the prefix `dim_` here.
                where = format_labels({f"dim_{name}": value for name, value in dim.labels.items()})
                found.append(_absence(f"{self._labels.at(dim.measured_at)},{where}", dim.metric, dim.absent))
        return "".join(found)

    def _renders_equal(self, one: Reading | DimReading, other: Reading | DimReading) -> bool:
        """Return whether two readings render alike. The values 1 and 1.0 do not."""
        return (
            one.value == other.value
            and one.absent is other.absent
            and one.value.__class__ is other.value.__class__
            and self._labels.is_before(one.measured_at) is self._labels.is_before(other.measured_at)
        )

    def _info_labels(self) -> str:
        return format_labels(
            {
                name.removeprefix("gpu_").removeprefix("host_"): str(reading.value)
                for name, reading in self._readings.items()
                if reading.value is not None and _is_info(name) and name not in self._texts
            }
        )


def _is_info(name: str) -> bool:
    return CATALOGUE[name].kind is MetricKind.INFO


def _is_same_series(one: DimReading, other: DimReading) -> bool:
    return one.metric == other.metric and (one.labels is other.labels or one.labels == other.labels)


def _metric_lines(name: str, labels: str, value: Value | None) -> str:
    """Render a reading: one line, one per state for a state metric, or nothing without a value."""
    metric = CATALOGUE[name]
    if value is None:
        return ""
    if metric.kind is MetricKind.STATE:
        return "".join(
            [f'{PREFIX}{name}{{{labels},state="{state}"}} {int(state == value)}\n' for state in metric.states]
        )
    return "" if isinstance(value, str) else f"{PREFIX}{name}{{{labels}}} {format_number(value)}\n"


def _absence(where: str, name: str, reason: Reason | None) -> str:
    return f'{ABSENT}{{{where},metric="{name}",reason="{reason}"}} 1\n'


def _holder_lines(base: str, holders: DeviceHolders | None) -> tuple[str, str]:
    """Return the lines of the holders, and of their state."""
    if holders is None:
        return "", ""
    infos = [format_sample(HOLDER_INFO, f"{base},{format_labels(holder_labels(one))}", "1") for one in holders.holdings]
    states = [
        format_sample(HOLDER_STATE, f'{base},state="{state}"', str(int(state is holders.state)))
        for state in HolderState
    ]
    return "".join(infos), "".join(states)


def _measured(base: str, source: Source) -> str:
    labels = format_labels({"reader": source.reader, "lane": source.lane, "provenance": source.provenance})
    return f"{MEASURED}{{{base},{labels}}} {format_number(source.measured_at.timestamp())}\n"


def catalogue_headers() -> dict[str, FamilyHeader]:
    """Return the headers of every metric with series, in the order of the catalogue."""
    return {
        PREFIX + name: FamilyHeader.of(
            PREFIX + name, "counter" if metric.kind is MetricKind.COUNTER else "gauge", metric.help, metric.unit
        )
        for name, metric in CATALOGUE.items()
        if metric.kind is not MetricKind.INFO
    }
