"""What the parts of the chip did: profiling fields, which an engine tells only of what it watches.

Ratios are means over the engine's newest interval, traffic is a rate over it.
"""

from collections.abc import Iterable, Mapping

from gpufleet.codecs.dcgm_wire.codes import REASONS, name_of
from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value
from gpufleet.readers.dcgm.mapping.row import Modes, Row, every_field, in_guest, read
from gpufleet.readers.dcgm.mapping.units import real

RATIO_ROWS: tuple[Row, ...] = (
    Row("gpu_graphics_activity_ratio", 1001, real),
    Row("gpu_sm_activity_ratio", 1002, real),
    Row("gpu_sm_occupancy_ratio", 1003, real),
    Row("gpu_tensor_activity_ratio", 1004, real),
    Row("gpu_dram_activity_ratio", 1005, real),
    Row("gpu_fp64_activity_ratio", 1006, real),
    Row("gpu_fp32_activity_ratio", 1007, real),
    Row("gpu_fp16_activity_ratio", 1008, real),
    Row("gpu_tensor_integer_activity_ratio", 1013, real),
    Row("gpu_tensor_half_activity_ratio", 1014, real),
    Row("gpu_tensor_fp64_activity_ratio", 1015, real),
    Row("gpu_integer_activity_ratio", 1016, real),
)
"""Told of GPUs and of MIG devices."""

TRAFFIC_ROWS: tuple[Row, ...] = (
    Row("gpu_pcie_transmit_bytes_per_second", 1009, real),
    Row("gpu_pcie_receive_bytes_per_second", 1010, real),
    Row("gpu_nvlink_transmit_bytes_per_second", 1011, real),
    Row("gpu_nvlink_receive_bytes_per_second", 1012, real),
)
"""Told of GPUs."""

ROWS = (*RATIO_ROWS, *TRAFFIC_ROWS)
DRAM = 1005
"""Told of GPU instances at the least: their compute instances share the memory."""

FIELDS = every_field(ROWS)


def map_activity(
    rows: Iterable[Row], values: Mapping[int, FieldValue], refused: Mapping[int, int], modes: Modes
) -> dict[str, Value | Absent]:
    """Return readings of what was watched.

    Args:
        rows: which.
        values: by field.
        refused: field to the return code with which the engine refused to watch it.
        modes: of the device.
    """
    found: dict[str, Value | Absent] = {}
    for row in rows:
        code = refused.get(row.field)
        if code is None:
            found[row.metric] = read(row, values, modes, frozenset())
        else:
            why = Absent(REASONS.get(code, Reason.DRIVER_ERROR), f"watch of DCGM {row.field}: {name_of(code)}")
            found[row.metric] = in_guest(why, CATALOGUE[row.metric], modes)
    return found


def absent_activity(rows: Iterable[Row], why: Absent) -> dict[str, Value | Absent]:
    """Return the readings of what could not be asked at all."""
    return {row.metric: why for row in rows}
