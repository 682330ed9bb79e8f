"""What a row of a table of OpenTelemetry names is."""

import enum

import msgspec

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind

OWN = "gpufleet."
"""Before names and attributes that no convention has."""


class Instrument(enum.StrEnum):
    """How OTLP carries a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"  # a monotonic cumulative sum
    UP_DOWN_COUNTER = "up_down_counter"  # a cumulative sum that is not monotonic


class OtelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of the catalogue, or a part of it, and the name it has there.

    Attributes:
        metric: ours.
        name: theirs.
        unit: UCUM, as the convention writes it.
        instrument: how it is sent.
        fixed: attributes, and the values that tell this row from others of the same name.
        labels: our dimensions where this row is one combination of them; empty for all.
        dims: attributes of our dimensions, in our order; none where `labels` or no dimensions.
        words: values of dimensions that are called otherwise there: ours, theirs.
        states: for a state, the names for which its value is 1; the row is 0 for the others.
        unsaid: states of which this row says nothing: no point is made.
        times, over: theirs `* times / over` is ours; the conventions' units are the catalogue's own.
        plain: whether a point without the fixed attributes, where a sender leaves them out, is this row.
        unread: why theirs is not believed, or empty. Ours is written under this name all the same.
    """

    metric: str
    name: str
    unit: str
    instrument: Instrument = Instrument.GAUGE
    fixed: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    states: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    times: int = 1
    over: int = 1
    plain: bool = False
    unread: str = ""


UNITS = {
    "ratio": "1",
    "bytes": "By",
    "bytes_per_second": "By/s",
    "watts": "W",
    "joules": "J",
    "celsius": "Cel",
    "hertz": "Hz",
    "seconds": "s",
    "rpm": "{revolution}/min",
    "": "1",
}
"""The catalogue's units in UCUM. Counts have none of their own: `1`."""


def own_row(metric: Metric) -> OtelRow:
    """Return the row of a metric under our own name; a state has an attribute `state`, and a point for each."""
    counter = metric.kind is MetricKind.COUNTER
    return OtelRow(
        metric=metric.name,
        name=OWN + metric.name,
        unit=UNITS[metric.unit],
        instrument=Instrument.COUNTER if counter else Instrument.GAUGE,
        dims=tuple(OWN + name for name in metric.dims),
    )


OWN_ROWS = {metric.name: own_row(metric) for metric in CATALOGUE.values() if metric.kind is not MetricKind.INFO}
"""Metric to its row under our own name. Texts have none: they are attributes, or not sent."""
