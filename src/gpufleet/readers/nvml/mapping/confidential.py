"""Confidential computing."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value
from gpufleet.readers.nvml.calls import SYSTEM_CALLS
from gpufleet.readers.nvml.mapping.row import NO_MODES, Row, read
from gpufleet.readers.nvml.mapping.units import kibi, same
from gpufleet.readers.nvml.protocol import Answer

_SIZES, _USAGE = "nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetConfComputeProtectedMemoryUsage"
_STATE, _SETTINGS = "nvmlSystemGetConfComputeState", "nvmlSystemGetConfComputeSettings"

ROWS = (
    Row("gpu_protected_memory_total_bytes", _SIZES, kibi, 0, bits=64),
    Row("gpu_unprotected_memory_total_bytes", _SIZES, kibi, 1, bits=64),
    Row("gpu_protected_memory_used_bytes", _USAGE, same, 0, bits=64),
)

_SYSTEM_ROWS = (
    Row("nvidia_confidential_environment", _STATE, None, 0),
    Row("nvidia_confidential_computing", _STATE, None, 1),
    Row("nvidia_confidential_devtools", _STATE, None, 2),
    Row("nvidia_confidential_multi_gpu", _SETTINGS, None),
    Row("nvidia_confidential_gpus_ready", "nvmlSystemGetConfComputeGpusReadyState", same),
)

SYSTEM_METRICS = tuple([row.metric for row in _SYSTEM_ROWS])
_POSITIONS = {call.key: position for position, call in enumerate(SYSTEM_CALLS)}


def map_system(answers: tuple[Answer, ...]) -> dict[str, Value | Absent]:
    """Return the machine's readings from the answers of `SYSTEM_CALLS`."""
    if not answers:
        return dict.fromkeys(SYSTEM_METRICS, Absent(Reason.NOT_COLLECTED))
    return {
        row.metric: read(row, CATALOGUE[row.metric], answers[_POSITIONS[row.call]], NO_MODES) for row in _SYSTEM_ROWS
    }
