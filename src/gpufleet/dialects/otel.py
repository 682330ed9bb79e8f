"""The catalogue under OpenTelemetry's names, both directions; bytes are `codecs/otlp`'s.

`otel_hw` and `otel_system` are the tables of OpenTelemetry's own conventions; `l9gpu` is read beside them, and written
by `l9gpu_points`. A metric that the conventions have no name for is `gpufleet.` and its name in the catalogue, with its
dimensions as attributes: a collector that turns OTLP into Prometheus series makes the same name of it that our own page
has.

To send a sample: `device_attributes(view, texts)` once a device (none for the machine itself), and those of each of
`points(sample)` beside them. A point's time is `sample.measured_at`. What is absent makes no point; texts make none.

To take points in: `otel_reading.read_points`, or one by one `view_of(attributes)` and `told(name, unit, attributes,
value)`.
"""

import re
from collections.abc import Iterator, Mapping

import msgspec

from gpufleet.dialects.dialect import address_of, small_number
from gpufleet.dialects.l9gpu import INDEX, L9GPU, L9GPU_PREFIXES, L9GPU_UNREAD, UUID
from gpufleet.dialects.otel_names import (
    HW,
    ID,
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
from gpufleet.model.reading import Sample, Value
from gpufleet.model.view import Side, View, ViewKind

KIND, SIDE, PCI, STATE = OWN + "kind", OWN + "side", OWN + "pci_address", OWN + "state"

GPU_PREFIXES = ("hw.gpu.", "gpu.", OWN)
"""Prefixes of names of GPUs: OpenTelemetry's, l9gpu's and our own."""

DEVICE_ATTRIBUTES = (ID, PARENT, KIND, SIDE, PCI, UUID, INDEX)
"""Attributes of which `view_of` makes a device."""

MAX_ID = 256
"""Characters of an identity that is taken in."""

ROWS: dict[str, tuple[OtelRow, ...]] = {}
"""Metric to its rows under the conventions' names."""
for _row in (*HW, *SYSTEM):
    ROWS[_row.metric] = (*ROWS.get(_row.metric, ()), _row)

BY_NAME: dict[str, tuple[OtelRow, ...]] = {}
"""Their name to rows."""
for _row in (*HW, *SYSTEM, *OWN_ROWS.values(), *L9GPU):
    BY_NAME[_row.name] = (*BY_NAME.get(_row.name, ()), _row)

_BOTH = frozenset({"gpu_state"})
"""Metrics that are also sent under our own name: the convention's says less."""

_UUID = re.compile(r"(?:GPU-|MIG-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")


class OtelPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One number to be sent.

    Attributes:
        metric: ours, for its help and kind.
        name, unit, instrument: under which it is sent.
        attributes: those of the metric; the device's own come beside them.
        value: an int stays one.
    """

    metric: str
    name: str
    unit: str
    instrument: Instrument
    attributes: dict[str, str]
    value: int | float


class MappedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What a point says: a metric of ours, the values of its dimensions, and a value or why it is none."""

    metric: str
    labels: tuple[str, ...]
    value: Value | Absent


def points(sample: Sample) -> Iterator[OtelPoint]:
    """Return a sample's numbers; all are of `sample.measured_at`."""
    for metric, value in sample.values.items():
        if not isinstance(value, Absent):
            yield from points_of(metric, (), value)
    for dim in sample.dims:
        if not isinstance(dim.value, Absent):
            yield from points_of(dim.metric, dim.labels, dim.value)


def points_of(metric: str, labels: tuple[str, ...], value: Value) -> Iterator[OtelPoint]:
    """Return the points of one value: under the conventions' names where they have any, else under our own."""
    rows = [row for row in ROWS.get(metric, ()) if row.labels in ((), labels)]
    own = OWN_ROWS.get(metric)
    if own is not None and (not rows or metric in _BOTH):
        rows.append(own)
    for row in rows:
        words = dict(row.words)
        attributes = dict(row.fixed)
        attributes |= {name: words.get(label, label) for name, label in zip(row.dims, labels, strict=False)}
        if isinstance(value, str):
            yield from _states(row, attributes, value)
        else:
            yield _point(row, attributes, value)


def device_attributes(view: View, texts: Mapping[str, str]) -> dict[str, str]:
    """Return what names a device in each of its points, as the conventions have it, and beside them what only we tell.

    Args:
        view: the device.
        texts: catalogue name to text, of the device and its machine, as far as they are known.
    """
    attributes = {ID: _id(view), TYPE: TYPE_GPU, VENDOR[0]: VENDOR[1]}
    attributes |= {name: texts[metric] for name, metric in TEXTS if texts.get(metric)}
    if view.parent:
        attributes[PARENT] = view.parent.removeprefix(f"{ViewKind.GPU}/").removeprefix("pci/")
    attributes |= {KIND: str(view.kind), SIDE: str(view.side)}
    if view.pci_address:
        attributes[PCI] = view.pci_address
    return attributes


def map_point(name: str, unit: str, attributes: Mapping[str, str], value: float) -> MappedPoint | None:
    """Return what a point says, or None where it says nothing of the catalogue's, as a state that it is not in does."""
    row = _row_of(name, attributes)
    if row is None or (row.unread and KIND not in attributes):  # what has it, is an agent's of ours
        return None
    if row.dims and not row.name.startswith(OWN) and not any(attributes.get(attribute) for attribute in row.dims):
        return None  # of which part, it says in words of its own, or it is of all of them
    metric = CATALOGUE[row.metric]
    theirs = {word: ours for ours, word in row.words}
    labels = row.labels or tuple(
        theirs.get(attributes.get(attribute, ""), attributes.get(attribute, "")) for attribute in row.dims
    )
    if metric.kind is MetricKind.STATE:
        state = attributes.get(STATE, "") if row.name.startswith(OWN) else "".join(row.states)
        if value != 1 or len(row.states) > 1:  # of several states it does not tell which
            return None
        known = state in metric.states
        return MappedPoint(
            metric=metric.name, labels=labels, value=state if known else Absent(Reason.INVALID_VALUE, f"{name}: state")
        )
    if unit not in ("", row.unit):
        return MappedPoint(
            metric=metric.name, labels=labels, value=Absent(Reason.INVALID_VALUE, f"{name}: not in {row.unit}")
        )
    ours = value * row.times
    return MappedPoint(
        metric=metric.name,
        labels=labels,
        value=bounded(metric, ours / row.over if row.over != 1 else ours, name),
    )


def why_unread(name: str, attributes: Mapping[str, str]) -> str | None:
    """Return why a point that `told` says nothing of is left alone on purpose, or None where its name is unknown."""
    if name in BY_NAME and attributes.get(TYPE, TYPE_GPU) != TYPE_GPU:
        return "of a component that is no GPU"
    if name in BY_NAME:
        unread = next((row.unread for row in BY_NAME[name] if row.unread), "")
        return unread or "its attributes say nothing that is known here"
    if name.startswith(L9GPU_PREFIXES):
        return "of an application, not of a device"
    return UNREAD.get(name) or L9GPU_UNREAD.get(name)


def is_mine(name: str) -> bool:
    """Return whether a name is under a prefix of which the tables should know every name."""
    return name.startswith(GPU_PREFIXES)


def is_state(name: str) -> bool:
    """Return whether a name is a state's: of its points only the one that is 1 says anything."""
    return any(CATALOGUE[row.metric].kind is MetricKind.STATE for row in BY_NAME.get(name, ()))


def view_of(attributes: Mapping[str, str]) -> View | None:
    """Return the device that a point is of, or None where nothing names one: then it is the machine's."""
    known = attributes.get(ID) or attributes.get(UUID) or attributes.get(PCI, "")
    if not known or len(known) > MAX_ID:
        return None
    kind = attributes.get(KIND, "")
    if kind not in set(ViewKind):
        kind = ViewKind.MIG if known.startswith("MIG-") else ViewKind.GPU
    side = attributes.get(SIDE, "")
    parent = attributes.get(PARENT, "")
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


def _states(row: OtelRow, attributes: dict[str, str], state: str) -> Iterator[OtelPoint]:
    if row.states:
        if state not in row.unsaid:
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
    """Return UUID, PCI address and instance, of which an identity is one."""
    if _UUID.match(known):
        return known, None, None
    address = address_of(known)
    return None, address, None if address else known


def _parent(known: str) -> str:
    uuid, address, instance = _named(known)
    return View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=address, instance=instance).key
