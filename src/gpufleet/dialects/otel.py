"""Mapping of the catalogue to OpenTelemetry names and back; `codecs/otlp` encodes the bytes.

`otel_names` has the tables of OpenTelemetry's conventions; `l9gpu` is imported as well, and exported by
`l9gpu_points`. A metric without a name in the conventions is `gpufleet.` plus its catalogue name, with its dimensions
as attributes: a collector that converts OTLP to Prometheus yields the same name as our own page.

Export of a sample: `device_attributes(view, texts)` once per device (none for the machine itself), plus the attributes
of each of `points(sample)`. The time of a point is `sample.measured_at`. Absent values and texts yield no point.

Import of points: `otel_reading.read_points`, or for single points `view_of(attributes)` and `map_point(name, unit,
attributes, value)`.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from gpufleet.dialects.dialect import address_of, small_number, text_of
from gpufleet.dialects.l9gpu import INDEX, L9GPU, L9GPU_PREFIXES, L9GPU_UNREAD, UUID
from gpufleet.dialects.otel_names import (
    HW,
    ID,
    MODEL,
    MODEL_METRICS,
    OWN,
    OWN_ROWS,
    PARENT,
    SYSTEM,
    TEXTS,
    TYPE,
    TYPE_GPU,
    UNREAD,
    VENDOR,
    Instrument,
    OtelRow,
)
from gpufleet.dialects.sample_builder import bounded
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.device_state import ERROR
from gpufleet.model.reading import Sample, Value
from gpufleet.model.view import Side, View, ViewKind

KIND, SIDE, PCI, STATE = OWN + "kind", OWN + "side", OWN + "pci_address", OWN + "state"

GPU_PREFIXES = ("hw.gpu.", "gpu.", OWN)
"""Prefixes of GPU metrics: OpenTelemetry's, l9gpu's and our own."""

DEVICE_ATTRIBUTES = (ID, PARENT, KIND, SIDE, PCI, UUID, INDEX)
"""Attributes from which `view_of` identifies a device."""

MAX_ID = 256
"""Maximum length of an imported identity."""

ROWS: dict[str, tuple[OtelRow, ...]] = {}
"""Rows of the conventions by metric."""
for _row in (*HW, *SYSTEM):
    ROWS[_row.metric] = (*ROWS.get(_row.metric, ()), _row)

BY_NAME: dict[str, tuple[OtelRow, ...]] = {}
"""Rows by OpenTelemetry name."""
for _row in (*HW, *SYSTEM, *OWN_ROWS.values(), *L9GPU):
    BY_NAME[_row.name] = (*BY_NAME.get(_row.name, ()), _row)

_BOTH = frozenset({"gpu_state"})
"""Metrics that are also exported under our own name: the convention has less detail."""

_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")


class OtelPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Exported data point.

    Attributes:
        metric: catalogue name, for help and kind.
        name, unit, instrument: of the exported metric.
        attributes: attributes of the metric, without those of the device.
        value: integers stay integers.
    """

    metric: str
    name: str
    unit: str
    instrument: Instrument
    attributes: dict[str, str]
    value: int | float


class MappedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Imported data point: catalogue metric, values of its dimensions, and a value or an absence."""

    metric: str
    labels: tuple[str, ...]
    value: Value | Absent


def points(sample: Sample) -> Iterator[OtelPoint]:
    """Return the points of a sample; all have the time `sample.measured_at`."""
    for metric, value in sample.values.items():
        if not isinstance(value, Absent):
            yield from points_of(metric, (), value)
    for dim in sample.dims:
        if not isinstance(dim.value, Absent):
            yield from points_of(dim.metric, dim.labels, dim.value)


def points_of(metric: str, labels: tuple[str, ...], value: Value) -> Iterator[OtelPoint]:
    """Return the points of one value: under the names of the conventions, else under our own."""
    rows = [row for row in ROWS.get(metric, ()) if row.labels in ((), labels)]
    own = OWN_ROWS.get(metric)
    if own is not None and (not rows or metric in _BOTH):
        rows.append(own)
    for row in rows:
        renamed = dict(row.renamed)
        attributes = dict(row.fixed)
        attributes |= {name: renamed.get(label, label) for name, label in zip(row.dims, labels, strict=False)}
        if isinstance(value, str):
            yield from _states(row, attributes, value)
        else:
            yield _point(row, attributes, value)


def device_attributes(view: View, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the identifying attributes of a device: those of the conventions, and our own.

    Args:
        view: device.
        texts: known texts of the device and its machine by catalogue name.
    """
    attributes = {ID: _id(view), TYPE: TYPE_GPU, VENDOR[0]: VENDOR[1]}
    named = ((MODEL, MODEL_METRICS[view.kind]), *TEXTS)
    attributes |= {name: texts[metric] for name, metric in named if texts.get(metric)}
    if view.parent:
        attributes[PARENT] = view.parent.removeprefix(f"{ViewKind.GPU}/").removeprefix("pci/")
    attributes |= {KIND: str(view.kind), SIDE: str(view.side)}
    if view.pci_address:
        attributes[PCI] = view.pci_address
    return attributes


def map_point(name: str, unit: str, attributes: Mapping[str, str], value: float) -> MappedPoint | None:
    """Map a point to the catalogue; None if there is no such metric, or for an inactive state."""
    row = _row_of(name, attributes)
    if row is None and value == 1:
        return _unknown_state(name, attributes)
    if row is None or (row.unread and KIND not in attributes):  # points with this attribute are from our agent
        return None
    if row.dims and not row.name.startswith(OWN) and not any(attributes.get(attribute) for attribute in row.dims):
        return None  # aggregated, or split by unknown attributes
    metric = CATALOGUE[row.metric]
    original = {theirs: ours for ours, theirs in row.renamed}
    labels = row.labels or tuple(
        original.get(attributes.get(attribute, ""), attributes.get(attribute, "")) for attribute in row.dims
    )
    if metric.kind is MetricKind.STATE:
        is_own = row.name.startswith(OWN)
        if value != 1 or (KIND in attributes and not is_own):  # our agent sends the state itself, too
            return None
        # `failed` stands for several states. Points under our own name, if there are any, name the worse one.
        theirs = row.states[0] if len(row.states) == 1 else ERROR
        state = attributes.get(STATE, "") if is_own else theirs
        known = state in metric.states
        return MappedPoint(
            metric=metric.name, labels=labels, value=state if known else Absent(Reason.INVALID_VALUE, f"{name}: state")
        )
    if unit not in ("", row.unit):
        return MappedPoint(
            metric=metric.name, labels=labels, value=Absent(Reason.INVALID_VALUE, f"{name}: not in {row.unit}")
        )
    if value == 0 and row.zero is not None and KIND not in attributes:
        return MappedPoint(
            metric=metric.name, labels=labels, value=Absent(row.zero, f"{name} is 0 if there is no value")
        )
    ours = value * row.times
    return MappedPoint(
        metric=metric.name,
        labels=labels,
        value=bounded(metric, ours / row.over if row.over != 1 else ours, name),
    )


def why_unread(name: str, attributes: Mapping[str, str]) -> str | None:
    """Return the reason for not importing a point that `map_point` rejects, or None if its name is unknown."""
    if name in BY_NAME and attributes.get(TYPE, TYPE_GPU) != TYPE_GPU:
        return "component is not a GPU"
    if name in BY_NAME:
        unread = next((row.unread for row in BY_NAME[name] if row.unread), "")
        return unread or "unknown attributes"
    if name.startswith(L9GPU_PREFIXES):
        return "metric of an application, not of a device"
    return UNREAD.get(name) or L9GPU_UNREAD.get(name)


def is_own_name(name: str) -> bool:
    """Return whether a name has a prefix for which the tables should be complete."""
    return name.startswith(GPU_PREFIXES)


def is_state(name: str) -> bool:
    """Return whether a name is a state metric: only its point with value 1 has information."""
    return any(CATALOGUE[row.metric].kind is MetricKind.STATE for row in BY_NAME.get(name, ()))


def view_of(attributes: Mapping[str, str]) -> View | None:
    """Return the device of a point, or None if no attribute identifies one: it is then about the machine."""
    known = text_of(attributes, ID, UUID, PCI)
    if not known or len(known) > MAX_ID:
        return None
    kind = attributes.get(KIND, "")
    if kind not in set(ViewKind):
        kind = ViewKind.MIG if known.startswith("MIG-") else ViewKind.GPU
    side = attributes.get(SIDE, "")
    parent = text_of(attributes, PARENT)
    uuid, address, instance = _named(known)
    return View(
        kind=ViewKind(kind),
        side=Side(side) if side in set(Side) else Side.HOST,
        uuid=uuid,
        pci_address=address or address_of(attributes.get(PCI, "")),
        instance=instance,
        parent=_parent(parent) if parent and len(parent) <= MAX_ID and kind != ViewKind.GPU else None,
        index=small_number(attributes.get(INDEX, "")),
    )


def _row_of(name: str, attributes: Mapping[str, str]) -> OtelRow | None:
    if name.startswith("hw.") and attributes.get(TYPE, TYPE_GPU) != TYPE_GPU:
        return None
    for row in BY_NAME.get(name, ()):
        given = [attributes.get(attribute) for attribute, _ in row.fixed]
        if given == [value for _, value in row.fixed] or (row.plain and not any(given)):
            return row
    return None


def _unknown_state(name: str, attributes: Mapping[str, str]) -> MappedPoint | None:
    """Return the absence of a state for an active point with an unknown state; None if it is no such point."""
    if attributes.get(TYPE, TYPE_GPU) != TYPE_GPU:
        return None
    for row in BY_NAME.get(name, ()):
        if row.states and all(attributes.get(attribute) for attribute, _ in row.fixed):
            return MappedPoint(metric=row.metric, labels=(), value=Absent(Reason.INVALID_VALUE, f"{name}: state"))
    return None


def _states(row: OtelRow, attributes: dict[str, str], state: str) -> Iterator[OtelPoint]:
    if row.states:
        if state not in row.unreported:
            yield _point(row, attributes, int(state in row.states))
        return
    for name in CATALOGUE[row.metric].states:
        yield _point(row, {**attributes, STATE: name}, int(name == state))


def _point(row: OtelRow, attributes: dict[str, str], value: float) -> OtelPoint:
    return OtelPoint(
        metric=row.metric,
        name=row.name,
        unit=row.unit,
        instrument=row.instrument,
        attributes=attributes,
        value=value,
    )


def _id(view: View) -> str:
    return view.uuid or view.pci_address or view.instance or ""


def _named(known: str) -> tuple[str | None, str | None, str | None]:
    """Return an identity as (UUID, PCI address, instance); two of them are None."""
    if _UUID.match(known):
        return known, None, None
    address = address_of(known)
    return None, address, None if address else known


def _parent(known: str) -> str:
    uuid, address, instance = _named(known)
    return View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=address, instance=instance).key
