"""Export of readings as l9gpu points, by the table in `l9gpu`; `otel` imports them.

A device's points carry l9gpu's attributes and ours: `gpufleet.kind` marks a value as measured, not the maximum of a
minute.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpufleet.dialects.l9gpu import CLUSTER, HOST, INDEX, L9GPU, MODEL, SUM, UUID, Quotient
from gpufleet.dialects.otel import KIND, PCI, SIDE, OtelPoint
from gpufleet.dialects.otel_names import Instrument, OtelRow
from gpufleet.model.reading import Value
from gpufleet.model.view import View, ViewKind

ROWS: dict[str, tuple[OtelRow, ...]] = {}
"""Rows by metric."""
for _row in L9GPU:
    ROWS[_row.metric] = (*ROWS.get(_row.metric, ()), _row)


def points_of(metric: str, labels: tuple[str, ...], value: Value) -> Iterator[OtelPoint]:
    """Return the points of one value: one, several, or none if l9gpu has no name for it."""
    for row in ROWS.get(metric, ()):
        if row.labels == labels and not isinstance(value, str):
            yield _point(row.name, row.unit, metric, _converted(row, value), dict(row.fixed))


def quotient(row: Quotient, value: Value | None, by: Value | None) -> OtelPoint | None:
    """Return the point of one of `QUOTIENTS`, or None if a reading has no value, or the second is 0."""
    if value is None or by is None or isinstance(value, str) or isinstance(by, str) or by <= 0:
        return None
    return _point(row.name, row.unit, row.metric, value * row.times / by, {})


def sum_of(values: Iterable[Value | None]) -> OtelPoint | None:
    """Return the point of `SUM`, or None if a part has no value, or there is none."""
    parts = [value for value in values if not isinstance(value, str)]
    known = [value for value in parts if value is not None]
    return _point(SUM.name, SUM.unit, SUM.metric, sum(known), {}) if known and len(known) == len(parts) else None


def device_attributes(view: View, name: str | None, resource: Mapping[str, str]) -> dict[str, str] | None:
    """Return the identifying attributes of a device, or None if l9gpu does not support its kind.

    Args:
        view: device.
        name: product name, if known.
        resource: attributes of the machine.
    """
    if view.kind is not ViewKind.GPU:
        return None
    attributes = {
        INDEX: "" if view.index is None else str(view.index),
        UUID: view.uuid or "",
        MODEL: name or "",
        CLUSTER: resource.get(CLUSTER, ""),
        HOST: resource.get(HOST, ""),
        KIND: str(view.kind),
        SIDE: str(view.side),
        PCI: view.pci_address or "",
    }
    return {key: text for key, text in attributes.items() if text}


def _converted(row: OtelRow, value: float) -> int | float:
    """Convert a value to l9gpu's unit; smaller units, such as millijoules, are rounded to integers."""
    if row.over != 1:
        return round(value * row.over)
    if row.times == 1:
        return value
    return value // row.times if value % row.times == 0 else value / row.times


def _point(name: str, unit: str, metric: str, value: float, attributes: dict[str, str]) -> OtelPoint:
    return OtelPoint(
        metric=metric, name=name, unit=unit, instrument=Instrument.GAUGE, attributes=attributes, value=value
    )
