"""MIG devices, and the GPU that is cut into them."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.reading import Value
from gpufleet.readers.nvml.calls.mig import (
    ATTRIBUTE_NAMES,
    ATTRIBUTES,
    COMPUTE_INSTANCE,
    GPU_INSTANCE,
    MOST,
    NAME,
    PLACEMENT,
)
from gpufleet.readers.nvml.mapping import gpm, memory, processes
from gpufleet.readers.nvml.mapping.row import Row, by_nature
from gpufleet.readers.nvml.mapping.units import same, text
from gpufleet.readers.nvml.parse import absence_of
from gpufleet.readers.nvml.protocol import Answer

_OF_ATTRIBUTES = {
    "mig_multiprocessors": "multiprocessorCount",
    "mig_gpu_slices": "gpuInstanceSliceCount",
    "mig_compute_slices": "computeInstanceSliceCount",
    "mig_copy_engines": "sharedCopyEngineCount",
    "mig_decoders": "sharedDecoderCount",
    "mig_encoders": "sharedEncoderCount",
    "mig_jpeg_engines": "sharedJpegCount",
    "mig_ofa_engines": "sharedOfaCount",
}

ROWS: tuple[Row, ...] = (
    *memory.ROWS,
    *processes.ROWS,
    *gpm.PART_ROWS,
    *(Row(metric, ATTRIBUTES, same, ATTRIBUTE_NAMES.index(name)) for metric, name in _OF_ATTRIBUTES.items()),
    Row("mig_placement_start", PLACEMENT, same, 0),
    Row("mig_placement_size", PLACEMENT, same, 1),
)
"""Readings of a MIG device."""

GPU_ROWS: tuple[Row, ...] = (Row("gpu_mig_devices_max", MOST, same),)
"""Readings of a GPU in MIG mode."""

_UNDEFINED = tuple(
    metric
    for metric in CATALOGUE.values()
    if Subject.MIG in metric.subjects and by_nature(metric, Reason.NOT_IN_MIG_MODE)
)


def identity_values(identity: dict[str, Answer], lane: Lane) -> dict[str, Value | Absent]:
    """Return what names a MIG device, and what the driver does not define for it."""
    values: dict[str, Value | Absent] = {
        metric.name: Absent(Reason.NOT_IN_MIG_MODE) for metric in _UNDEFINED if metric.lane is lane
    }
    if lane is Lane.STATIC:
        values["gpu_name"] = _told(identity.get("name"), NAME)
    if lane is Lane.FAST:
        name = _told(identity.get("name"), NAME)
        values["mig_profile"] = profile_in(name) if isinstance(name, str) else name
        values["mig_gpu_instance"] = _told(identity.get("gpu_instance"), GPU_INSTANCE)
        values["mig_compute_instance"] = _told(identity.get("compute_instance"), COMPUTE_INSTANCE)
    return values


def profile_in(name: str) -> Value | Absent:
    """Return the profile out of a name such as `NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb+me`: all that follows `MIG`."""
    _, found, profile = name.rpartition(" MIG ")
    return profile.strip() if found and profile.strip() else Absent(Reason.NO_DATA, NAME)


def _told(answer: Answer | None, call: str) -> Value | Absent:
    if answer is None or answer.code:
        return absence_of(answer.code, call) if answer is not None else Absent(Reason.NO_DATA, call)
    return text(answer.value) or Absent(Reason.NO_DATA, call)
