"""Profiling fields: activity of the units of a chip. An engine reports them only while they are watched.

Ratios are means over the engine's latest interval; traffic is a rate over that interval.
"""

from collections.abc import Iterable, Mapping

from gpufleet.codecs.dcgm_wire.codes import name_of, refusal_reason
from gpufleet.codecs.dcgm_wire.values import FieldValue
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.reading import Value
from gpufleet.readers.dcgm.mapping.row import DcgmRow, EngineGpuModes, absence_in_guest, every_field, read_row
from gpufleet.readers.dcgm.mapping.units import float_value

RATIO_ROWS: tuple[DcgmRow, ...] = (
    DcgmRow("gpu_graphics_activity_ratio", 1001, float_value),
    DcgmRow("gpu_sm_activity_ratio", 1002, float_value),
    DcgmRow("gpu_sm_occupancy_ratio", 1003, float_value),
    DcgmRow("gpu_tensor_activity_ratio", 1004, float_value),
    DcgmRow("gpu_dram_activity_ratio", 1005, float_value),
    DcgmRow("gpu_fp64_activity_ratio", 1006, float_value),
    DcgmRow("gpu_fp32_activity_ratio", 1007, float_value),
    DcgmRow("gpu_fp16_activity_ratio", 1008, float_value),
    DcgmRow("gpu_tensor_integer_activity_ratio", 1013, float_value),
    DcgmRow("gpu_tensor_half_activity_ratio", 1014, float_value),
    DcgmRow("gpu_tensor_fp64_activity_ratio", 1015, float_value),
    DcgmRow("gpu_integer_activity_ratio", 1016, float_value),
)
"""Rows of GPUs and MIG devices."""

TRAFFIC_ROWS: tuple[DcgmRow, ...] = (
    DcgmRow("gpu_pcie_transmit_bytes_per_second", 1009, float_value),
    DcgmRow("gpu_pcie_receive_bytes_per_second", 1010, float_value),
    DcgmRow("gpu_nvlink_transmit_bytes_per_second", 1011, float_value),
    DcgmRow("gpu_nvlink_receive_bytes_per_second", 1012, float_value),
)
"""Rows of GPUs only."""

ROWS = (*RATIO_ROWS, *TRAFFIC_ROWS)
DRAM = 1005
"""Field of DRAM activity. Reported for GPU instances: compute instances share their memory."""

FIELDS = every_field(ROWS)


def map_activity(
    rows: Iterable[DcgmRow], values: Mapping[int, FieldValue], refused: Mapping[int, int], modes: EngineGpuModes
) -> dict[str, Value | Absent]:
    """Return readings of watched fields.

    Args:
        rows: rows to read.
        values: values by field.
        refused: refused fields, with the return code of the engine.
        modes: of the device.
    """
    found: dict[str, Value | Absent] = {}
    for row in rows:
        code = refused.get(row.field)
        if code is None:
            found[row.metric] = read_row(row, values, modes, frozenset())
        else:
            why = Absent(refusal_reason(code), f"watch of DCGM {row.field}: {name_of(code)}")
            found[row.metric] = absence_in_guest(why, CATALOGUE[row.metric], modes)
    return found


def absent_activity(rows: Iterable[DcgmRow], why: Absent) -> dict[str, Value | Absent]:
    """Return absent readings with a common reason."""
    return {row.metric: why for row in rows}
