"""What a MIG device's answer tells of the GPU that it is cut from, marked as such. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.answer import AnswerDevice
from gpufleet.model.catalogue import CATALOGUE, MetricKind, Subject
from gpufleet.model.reading import Reading
from gpufleet.model.view import Scope, ViewKind

PARENTAL = frozenset(
    metric.name
    for metric in CATALOGUE.values()
    if Subject.GPU in metric.subjects
    and Subject.MIG not in metric.subjects
    and metric.kind is not MetricKind.INFO
    and metric.role is None
    and not any(case.reason is Reason.NOT_IN_MIG_MODE for case in metric.absent_when)
)
"""Metrics that are measured of a whole GPU only and mean something to who has a part of it: power, heat, ECC, ..."""


def with_parents(chosen: Iterable[AnswerDevice], every: Sequence[AnswerDevice]) -> tuple[AnswerDevice, ...]:
    """Give each MIG device the readings of its GPU that it cannot have of its own, in scope `parent`.

    Args:
        chosen: the devices of an answer.
        every: every device of their machine.
    """
    by_key = {_key(one): one for one in every}
    return tuple(_with_parent(one, by_key.get(one.parent or "")) for one in chosen)


def units(devices: Sequence[AnswerDevice]) -> list[Mapping[str, Reading]]:
    """Return the readings of the devices that are no part of another one among them, for totals."""
    keys = {_key(one) for one in devices}
    return [one.readings for one in devices if one.parent not in keys]


def _with_parent(device: AnswerDevice, parent: AnswerDevice | None) -> AnswerDevice:
    if device.kind is not ViewKind.MIG or parent is None:
        return device
    added = {
        name: msgspec.structs.replace(reading, scope=Scope.PARENT)
        for name, reading in parent.readings.items()
        if name in PARENTAL and name not in device.readings
    }
    return msgspec.structs.replace(device, readings=device.readings | added)


def _key(device: AnswerDevice) -> str:
    return device.id.split("/", 2)[2]
