"""MIG devices and vGPU instances: which of those that were told of are no more, and what to call one."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

from gpufleet.model.reading import Reading

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
