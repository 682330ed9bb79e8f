"""GPUs that a fallback reader knows only by their place in a list: shown where nothing better is, never twice. Pure.

A place in a list names nothing, so such a GPU is never joined to another one.

MIG devices and vGPU instances: which of those that were told of are no more, and what to call one.

What a MIG device's answer tells of the GPU that it is cut from, marked as such. Pure.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.api.answer import AnswerDevice
from gpufleet.model.catalogue import CATALOGUE, MetricKind, Subject
from gpufleet.model.reading import Reading
from gpufleet.model.view import Scope, ViewKind

ELSEWHERE = frozenset({Reason.NO_DRIVER, Reason.BOUND_TO_VFIO, Reason.OTHER_DRIVER})
"""Why the bus shows a GPU that NVIDIA's driver on this host does not hold."""


class Shown(NamedTuple):
    """One GPU of a machine as it would be shown.

    Attributes:
        key: of the GPU.
        unnamed: whether it is known by its place in a list only.
        why: why there is no value of it at all; None if there is one.
    """

    key: str
    unnamed: bool
    why: Reason | None = None

    @classmethod
    def of(cls, key: str, *, named: bool, readings: Mapping[str, Reading]) -> "Shown":
        """Judge a GPU by its readings."""
        absent = None
        for reading in readings.values():
            if reading.absent is None:
                return cls(key, not named)
            absent = absent or reading.absent
        return cls(key, not named, absent)


def left_out(gpus: Iterable[Shown]) -> frozenset[str]:
    """Return the keys of those that are not to be shown, because another one may be the same.

    Unnamed ones are left out where another reader has values of GPUs. Where the others have none, and there are as
    many of them that NVIDIA's driver holds, they are the same ones, and those without values are left out; where the
    numbers differ nobody can tell which is which, and the named ones stay; so they do where no unnamed one has a value.
    """
    gpus = list(gpus)
    unnamed = frozenset(gpu.key for gpu in gpus if gpu.unnamed)
    named = [gpu for gpu in gpus if not gpu.unnamed]
    held = frozenset(gpu.key for gpu in named if gpu.why is not None and gpu.why not in ELSEWHERE)
    read = any(gpu.why is None for gpu in named)
    told = any(gpu.why is None for gpu in gpus if gpu.unnamed)
    if not unnamed:
        return frozenset()
    return unnamed if read or (held and (len(held) != len(unnamed) or not told)) else held


Source = TypeVar("Source", bound=Hashable)


def is_gone(instance: Mapping[Source, float], parent: Mapping[Source, float]) -> bool:
    """Tell whether a newer pass over the GPU did not list the instance: a pass lists every one there is.

    Args:
        instance: reader and lane to the time of its newest sample.
        parent: the same of the GPU it is cut from, by a clock that gives everything of one pass the same time.
    """
    return any(parent.get(source, at) > at for source, at in instance.items())


def device_name(readings: Mapping[str, Reading]) -> str | None:
    """Return what people call a device: its product, its vGPU type or its MIG profile; None while none is known."""
    for metric, words in (("gpu_name", ""), ("vgpu_type", ""), ("mig_profile", "MIG ")):
        reading = readings.get(metric)
        if reading is not None and reading.value is not None:
            return f"{words}{reading.value}"
    return None


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
