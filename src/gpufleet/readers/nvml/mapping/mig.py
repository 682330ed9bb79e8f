"""Rows for MIG devices and their parent GPU."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.reading import Value
from gpufleet.readers.nvml.calls.mig import (
    ATTRIBUTE_NAMES,
    ATTRIBUTES,
    COMPUTE_INSTANCE,
    GPU_INSTANCE,
    MAX_COUNT,
    NAME,
    PLACEMENT,
)
from gpufleet.readers.nvml.mapping.activity import MIG_ROWS, PROCESS_ROWS
from gpufleet.readers.nvml.mapping.board import MEMORY_ROWS
from gpufleet.readers.nvml.mapping.errors import MIG_ROWS as ERROR_ROWS
from gpufleet.readers.nvml.mapping.row import MetricRow, can_be_absent
from gpufleet.readers.nvml.mapping.units import same, text
from gpufleet.readers.nvml.parse import absence_of
from gpufleet.readers.nvml.protocol import CallResult

_ATTRIBUTE_METRICS = {
    "mig_multiprocessors": "multiprocessorCount",
    "mig_gpu_slices": "gpuInstanceSliceCount",
    "mig_compute_slices": "computeInstanceSliceCount",
    "mig_copy_engines": "sharedCopyEngineCount",
    "mig_decoders": "sharedDecoderCount",
    "mig_encoders": "sharedEncoderCount",
    "mig_jpeg_engines": "sharedJpegCount",
    "mig_ofa_engines": "sharedOfaCount",
}

ROWS: tuple[MetricRow, ...] = (
    *MEMORY_ROWS,
    *PROCESS_ROWS,
    *MIG_ROWS,
    *ERROR_ROWS,
    *(MetricRow(metric, ATTRIBUTES, same, ATTRIBUTE_NAMES.index(name)) for metric, name in _ATTRIBUTE_METRICS.items()),
    MetricRow("mig_placement_start", PLACEMENT, same, 0),
    MetricRow("mig_placement_size", PLACEMENT, same, 1),
)
"""Readings of a MIG device."""

GPU_ROWS: tuple[MetricRow, ...] = (MetricRow("gpu_mig_devices_max", MAX_COUNT, same),)
"""Readings of a GPU in MIG mode."""

_UNDEFINED = tuple(
    metric
    for metric in CATALOGUE.values()
    if Subject.MIG in metric.subjects and can_be_absent(metric, Reason.NOT_IN_MIG_MODE)
)


def identity_values(identity: dict[str, CallResult], lane: Lane) -> dict[str, Value | Absent]:
    """Return the identity readings of a MIG device, and absences of metrics that the driver does not define for it."""
    values: dict[str, Value | Absent] = {
        metric.name: Absent(Reason.NOT_IN_MIG_MODE) for metric in _UNDEFINED if metric.lane is lane
    }
    if lane is Lane.STATIC:
        values["gpu_name"] = _text(identity.get("name"), NAME)
    if lane is Lane.FAST:
        name = _text(identity.get("name"), NAME)
        values["mig_profile"] = profile_in(name) if isinstance(name, str) else name
        values["mig_gpu_instance"] = _text(identity.get("gpu_instance"), GPU_INSTANCE)
        values["mig_compute_instance"] = _text(identity.get("compute_instance"), COMPUTE_INSTANCE)
    return values


def profile_in(name: str) -> Value | Absent:
    """Return the profile in a name such as `NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb+me`: everything after `MIG`."""
    _, found, profile = name.rpartition(" MIG ")
    return profile.strip() if found and profile.strip() else Absent(Reason.NO_DATA, NAME)


def _text(answer: CallResult | None, call: str) -> Value | Absent:
    if answer is None or answer.code:
        return absence_of(answer.code, call) if answer is not None else Absent(Reason.NO_DATA, call)
    return text(answer.value) or Absent(Reason.NO_DATA, call)
