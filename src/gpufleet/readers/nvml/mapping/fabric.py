"""The NVLink fabric that the GPU is part of."""

from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.catalogue.gpu_links import FABRIC_CONFIGURATIONS, FABRIC_HEALTH
from gpufleet.model.reading import Value
from gpufleet.readers.nvml import protocol
from gpufleet.readers.nvml.calls.fabric import INFO
from gpufleet.readers.nvml.mapping.row import Row
from gpufleet.readers.nvml.mapping.units import number
from gpufleet.readers.nvml.parse import CODE_NAMES

_SUMMARIES = CATALOGUE["gpu_fabric_health_word"].states

_COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED: only then the status, the clique and the health mean something (nvml.h)."""


def _joined(value: protocol.Value) -> list[protocol.Value] | None:
    """Return what is told of a GPU that has joined the fabric, or None."""
    return value if isinstance(value, list) and len(value) >= 5 and value[0] == _COMPLETED else None


def _status(value: protocol.Value) -> Value | None:
    told = _joined(value)
    if told is None:
        return None
    code = int(number(told[1]))
    return "SUCCESS" if code == 0 else CODE_NAMES.get(code, f"unnamed ({code})")


def _clique(value: protocol.Value) -> Value | None:
    told = _joined(value)
    return str(int(number(told[2]))) if told is not None else None


def _cluster(value: protocol.Value) -> Value | None:
    """Write 16 bytes as a UUID; all zero stands for a fabric of one host."""
    told = _joined(value)
    if told is None or not isinstance(told[3], str) or not told[3].strip("0"):
        return None
    digits = told[3]
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _bits(value: protocol.Value, shift: int, width: int) -> int:
    """Return some bits of the health mask; 0, which is "not told", before the GPU has joined."""
    told = _joined(value)
    return int(number(told[4])) >> shift & ((1 << width) - 1) if told is not None else 0


def _condition(name: str, shift: int) -> Row:
    yes, no = (2, 1) if name == "fabric_manager_disconnected" else (1, 2)

    def convert(value: protocol.Value) -> Value | None:
        return {yes: 1, no: 0}.get(_bits(value, shift, 2))

    return Row("gpu_fabric_health", INFO, convert, labels=(name,))


def _configuration(value: protocol.Value) -> Value | None:
    found = _bits(value, 8, 4)
    if found >= len(FABRIC_CONFIGURATIONS):
        raise ValueError(f"configuration {found} has no name")
    return FABRIC_CONFIGURATIONS[found]


def _summary(value: protocol.Value) -> Value | None:
    """Drivers before 580 tell none."""
    told = _joined(value)
    found = int(number(told[5])) if told is not None and len(told) > 5 else 0
    if not 0 <= found < len(_SUMMARIES):
        raise ValueError(f"summary {found} has no name")
    return _SUMMARIES[found]


ROWS = (
    Row("gpu_fabric_state", INFO, None, 0),
    Row("gpu_fabric_status", INFO, _status),
    Row("gpu_fabric_cluster_uuid", INFO, _cluster),
    Row("gpu_fabric_clique", INFO, _clique),
    *[_condition(name, shift) for name, shift in FABRIC_HEALTH],
    Row("gpu_fabric_incorrect_configuration", INFO, _configuration),
    Row("gpu_fabric_health_word", INFO, _summary),
)
