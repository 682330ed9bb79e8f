"""Validation of a guest's readings. Pure.

A guest is hostile input: it may send anything. Accepted readings concern only the guest itself, are marked as the
guest's, follow the catalogue and have a bounded size. A bad value becomes `invalid_value`; other values are kept.
"""

import math
import re
from collections.abc import Iterable

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Metric, Subject, ValueType
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import DimValue, Provenance, Round, Sample, Value
from gpufleet.model.text import clean
from gpufleet.model.view import Side, View, ViewKind

MAX_VIEWS = 256
"""Maximum devices in one pass. 16 GPUs with 7 MIG devices each are 128."""

MAX_DIMS = 4096
"""Maximum dimensioned values in one sample. 256 processors in 8 modes are half of that."""

MAX_EVENTS, MAX_ATTRIBUTES = 64, 8
MAX_TEXT = 256
MAX_ERRORS = 4
MAX_ERROR = 300

_NAME = re.compile(r"[A-Za-z0-9._:@/-]{1,96}", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9._:@/-]{1,160}", re.ASCII)

_INT64, _UINT64 = -(2**63), 2**64


def validate_round(reported: Round) -> Round:
    """Return the accepted part of a pass. Inventories and evidence of identity are dropped: they are claims."""
    samples: list[Sample] = []
    views, left_out = 0, False
    for sample in reported.samples:
        if sample.view is not None:
            views += 1
            if views > MAX_VIEWS or sample.view.kind is ViewKind.VGPU or not _is_named(sample.view):
                left_out = True  # a guest cannot see its host's vGPU instances
                continue
        samples.append(_sample(sample))
    errors = [clean(error)[:MAX_ERROR] for error in reported.errors[:MAX_ERRORS]]
    if left_out:
        errors = [f"devices without a valid name or beyond the limit of {MAX_VIEWS} are left out", *errors][:MAX_ERRORS]
    return Round(
        samples=tuple(samples),
        events=tuple(_events(reported.events)),
        errors=tuple(errors),
        age_seconds=reported.age_seconds,
    )


def _events(reported: tuple[Event, ...]) -> Iterable[Event]:
    """Return at most `MAX_EVENTS` XID events of the guest's own devices."""
    for event in reported[:MAX_EVENTS]:
        view = event.view
        if event.kind != EventKind.XID or view is None or view.kind is ViewKind.VGPU or not _is_named(view):
            continue
        if not 0 < event.at < 1 << 62:
            continue
        texts = {_plain(key): _plain(text) for key, text in list(event.attributes.items())[:MAX_ATTRIBUTES]}
        code = event.code if 0 <= event.code < 1 << 31 else 0
        yield Event(view=_view(view), kind=event.kind, code=code, at=event.at, attributes=texts)


def _plain(text: str) -> str:
    return clean(text)[:MAX_TEXT]


def _sample(sample: Sample) -> Sample:
    subject = Subject.MACHINE if sample.view is None else Subject(sample.view.kind.value)
    return msgspec.structs.replace(
        sample,
        view=None if sample.view is None else _view(sample.view),
        values=_values(sample.values.items(), subject),
        dims=tuple(_dims(sample.dims, subject)),
        provenance=Provenance.SLICE_GUEST,
        processes=None,
    )


def _is_named(view: View) -> bool:
    names = (view.uuid, view.pci_address, view.instance)
    return any(names) and all(name is None or _NAME.fullmatch(name) for name in names)


def _view(view: View) -> View:
    parent = view.parent if view.parent is not None and _KEY.fullmatch(view.parent) else None
    return View(
        kind=view.kind,
        side=Side.GUEST,
        uuid=view.uuid,
        pci_address=view.pci_address,
        instance=view.instance,
        parent=parent,
        index=view.index if view.index is None or 0 <= view.index < 1 << 16 else None,
    )


def _values(reported: Iterable[tuple[str, Value | Absent]], subject: Subject) -> dict[str, Value | Absent]:
    found: dict[str, Value | Absent] = {}
    for name, value in reported:
        metric = CATALOGUE.get(name)
        if metric is not None and not metric.dims:
            found[name] = _fit(metric, subject, value)
    return found


def _dims(reported: tuple[DimValue, ...], subject: Subject) -> Iterable[DimValue]:
    seen: set[tuple[str, ...]] = set()
    for item in reported[:MAX_DIMS]:
        metric = CATALOGUE.get(item.metric)
        labels = tuple(clean(label)[:MAX_TEXT] for label in item.labels)
        if metric is None or len(labels) != len(metric.dims) or (item.metric, *labels) in seen:
            continue
        seen.add((item.metric, *labels))
        yield DimValue(item.metric, labels, _fit(metric, subject, item.value))


def _fit(metric: Metric, subject: Subject, value: Value | Absent) -> Value | Absent:
    if isinstance(value, Absent):
        return Absent(value.reason, clean(value.detail)[:MAX_TEXT])
    if subject not in metric.subjects:
        return Absent(Reason.INVALID_VALUE, f"not a metric of a {subject}")
    if metric.type is ValueType.TEXT:
        return clean(value)[:MAX_TEXT] if isinstance(value, str) else Absent(Reason.INVALID_VALUE, "not a text")
    if metric.type is ValueType.ENUM:
        return value if value in metric.states else Absent(Reason.INVALID_VALUE, "not a state of this metric")
    if isinstance(value, int) and not _INT64 <= value < _UINT64:
        return Absent(Reason.INVALID_VALUE, "does not fit in 64 bits")
    if isinstance(value, str | bool) or not math.isfinite(value):
        return Absent(Reason.INVALID_VALUE, "not a number")
    low, high = metric.low, metric.high
    if (low is not None and value < low) or (high is not None and value > high):
        return Absent(Reason.INVALID_VALUE, "out of range")
    return value
