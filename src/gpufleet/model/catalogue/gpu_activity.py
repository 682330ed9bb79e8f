"""Rows of the catalogue about the activity of chip units, and about processes. Ids 521 to 539.

Activities are means between two GPM samples of the driver, at least 100 ms apart and normally one round.
"""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Absence, Metric
from gpufleet.model.catalogue.row import (
    FLOAT,
    GAUGE,
    GPU,
    GPU_MIG,
    GUEST,
    INT,
    OLD_DRIVER,
    TAIL,
    row,
)

NO_GPM = Absence(Reason.NOT_SUPPORTED, "chips before Hopper do not support it")
FIRST_PASS = Absence(Reason.NO_DATA, "first pass, or less than 100 ms after the previous pass")
RESTRICTED = Absence(Reason.NOT_PERMITTED, "profiling is restricted to administrators")
_ABSENT = (NO_GPM, FIRST_PASS, RESTRICTED, OLD_DRIVER, GUEST)


def _activity(id_: int, name: str, help_: str, gpm: int, dcgm: tuple[int, ...] = ()) -> Metric:
    return row(id_, name, GAUGE, FLOAT, "ratio", help_, high=1, storage=TAIL, subjects=GPU_MIG, nvml=(f"GPM {gpm}",),
               dcgm=dcgm, absent=_ABSENT)  # fmt: skip


def _traffic(id_: int, name: str, help_: str, gpm: int, dcgm: tuple[int, ...]) -> Metric:
    return row(id_, name, GAUGE, FLOAT, "bytes_per_second", help_, storage=TAIL, subjects=GPU, nvml=(f"GPM {gpm}",),
               dcgm=dcgm, absent=_ABSENT)  # fmt: skip


# fmt: off
ACTIVITY_METRICS = (
    _activity(521, "gpu_graphics_activity_ratio", "Share of time in which the graphics and compute engine was busy", 1,
              (1001,)),
    _activity(522, "gpu_sm_activity_ratio", "Share of time in which a multiprocessor had a warp, over all of them", 2,
              (1002,)),
    _activity(523, "gpu_sm_occupancy_ratio", "Warps resident on the multiprocessors, as a share of the maximum",
              3, (1003,)),
    _activity(524, "gpu_integer_activity_ratio", "Share of time in which integer pipes were busy", 4, (1016,)),
    _activity(525, "gpu_tensor_activity_ratio", "Share of time in which tensor pipes were busy", 5, (1004,)),
    _activity(526, "gpu_tensor_fp64_activity_ratio", "Share of time in which tensor pipes did FP64 (DFMA)", 6, (1015,)),
    _activity(527, "gpu_tensor_half_activity_ratio", "Share of time in which tensor pipes did half precision (HMMA)", 7,
              (1014,)),
    _activity(528, "gpu_tensor_integer_activity_ratio", "Share of time in which tensor pipes did integers (IMMA)", 9,
              (1013,)),
    _activity(529, "gpu_dram_activity_ratio", "Device memory traffic as a share of the maximum", 10, (1005,)),
    _activity(530, "gpu_fp64_activity_ratio", "Share of time in which FP64 pipes were busy", 11, (1006,)),
    _activity(531, "gpu_fp32_activity_ratio", "Share of time in which FP32 pipes were busy", 12, (1007,)),
    _activity(532, "gpu_fp16_activity_ratio", "Share of time in which FP16 pipes were busy", 13, (1008,)),
    _traffic(533, "gpu_pcie_transmit_bytes_per_second", "PCIe traffic from the GPU", 20, (1009,)),
    _traffic(534, "gpu_pcie_receive_bytes_per_second", "PCIe traffic to the GPU", 21, (1010,)),
    _traffic(535, "gpu_nvlink_transmit_bytes_per_second", "NVLink traffic from the GPU, all links together", 61,
             (1011,)),
    _traffic(536, "gpu_nvlink_receive_bytes_per_second", "NVLink traffic to the GPU, all links together", 60, (1012,)),
    row(537, "gpu_graphics_processes", GAUGE, INT, "", "Processes that hold a graphics context",
        storage=TAIL, subjects=GPU_MIG, nvml=("nvmlDeviceGetGraphicsRunningProcesses_v3",)),
    row(538, "gpu_mps_processes", GAUGE, INT, "", "Processes that compute through an MPS server",
        storage=TAIL, subjects=GPU_MIG, nvml=("nvmlDeviceGetMPSComputeRunningProcesses_v3",)),
)
# fmt: on
