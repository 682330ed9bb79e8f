"""Rows of the catalogue about links of a GPU: PCIe, NVLink, the fabric, chip-to-chip. Ids 110 to 139."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import Absence
from gpufleet.model.catalogue.row import (
    COUNTER,
    DIM,
    ENUM,
    FLOAT,
    GAUGE,
    GUEST,
    INT,
    OLD_CHIP,
    OLD_DRIVER,
    SLOW,
    STATE,
    STATIC,
    TAIL,
    info,
    row,
)

NO_NVLINK = Absence(Reason.NOT_SUPPORTED, "the board has no NVLink, or MIG mode hides it")
OTHER_COUNTERS = Absence(Reason.NOT_SUPPORTED, "the chip uses other counters")
UNMEASURED_RATIO = Absence(Reason.NO_DATA, "the driver has no measured ratio, as for a link without counted errors")
NO_FABRIC = Absence(Reason.NOT_SUPPORTED, "the GPU is not part of an NVLink fabric")
NOT_JOINED = Absence(Reason.NO_DATA, "the GPU has not joined its fabric yet")
UNPROVEN_C2C = Absence(Reason.NO_DATA, "nvidia-smi prints `Disabled`, also for boards without such a link")
NO_C2C = Absence(Reason.NOT_SUPPORTED, "the GPU has no chip-to-chip link to a CPU")

ONE_HOST = Absence(Reason.NO_DATA, "the fabric does not span hosts")

FABRIC_HEALTH = (
    ("degraded_bandwidth", 0),
    ("route_recovery", 2),
    ("route_unhealthy", 4),
    ("access_timeout_recovery", 6),
    ("partition_assigned", 12),
    ("fabric_manager_disconnected", 14),
)
"""Names and shifts in nvmlGpuFabricInfo's health mask: two bits each, 0 not reported, 1 true, 2 false (nvml.h).

The last is inverted: 1 connected, 2 disconnected.
"""

FABRIC_CONFIGURATIONS = (
    "not_reported",
    "none",
    "system_guid",
    "chassis_serial",
    "no_partition",
    "insufficient_nvlinks",
    "incompatible_firmware",
    "invalid_location",
    "gpu_state",
)
"""Configuration faults of the fabric: four bits of the health mask, from bit 8."""

# fmt: off
LINK_METRICS = (
    # PCIe
    row(110, "gpu_pcie_transmit_bytes_total", COUNTER, INT, "bytes",
        "Bytes sent over PCIe; the driver's counter can wrap",
        storage=TAIL, nvml=("FI 197",), absent=(OLD_CHIP, OLD_DRIVER, GUEST), otel="hw.gpu.io"),
    row(111, "gpu_pcie_receive_bytes_total", COUNTER, INT, "bytes",
        "Bytes received over PCIe; the driver's counter can wrap",
        storage=TAIL, nvml=("FI 198",), absent=(OLD_CHIP, OLD_DRIVER, GUEST), otel="hw.gpu.io"),
    row(112, "gpu_pcie_errors_total", COUNTER, INT, "", "Errors of the PCIe link by kind; only kinds the chip counts",
        lane=SLOW, storage=DIM, dims=("error",), nvml=("FI 95", "FI 169", "FI 173-183"),
        absent=(OLD_CHIP, OLD_DRIVER, GUEST)),
    # NVLink
    row(113, "gpu_nvlinks", GAUGE, INT, "", "NVLinks of the GPU",
        lane=SLOW, storage=TAIL, nvml=("FI 91",), absent=(NO_NVLINK,)),
    row(114, "gpu_nvlinks_active", GAUGE, INT, "", "NVLinks that are up",
        lane=SLOW, storage=TAIL, nvml=("nvmlDeviceGetNvLinkState",), absent=(NO_NVLINK,)),
    row(115, "gpu_nvlink_up", GAUGE, INT, "", "1 if the link is up, else 0",
        high=1, lane=SLOW, storage=DIM, dims=("link",), nvml=("nvmlDeviceGetNvLinkState",), absent=(NO_NVLINK,)),
    row(116, "gpu_nvlink_speed_bytes_per_second", GAUGE, INT, "bytes_per_second", "Speed of the link",
        lane=SLOW, storage=DIM, dims=("link",), nvml=("FI 164",), absent=(NO_NVLINK, OLD_CHIP)),
    row(117, "gpu_nvlink_transmit_bytes_total", COUNTER, INT, "bytes", "Payload sent over all NVLinks together",
        storage=TAIL, nvml=("FI 138 (all links)",), absent=(NO_NVLINK, OTHER_COUNTERS)),
    row(118, "gpu_nvlink_receive_bytes_total", COUNTER, INT, "bytes", "Payload received over all NVLinks together",
        storage=TAIL, nvml=("FI 139 (all links)",), absent=(NO_NVLINK, OTHER_COUNTERS)),
    row(119, "gpu_nvlink_link_transmit_bytes_total", COUNTER, INT, "bytes", "Payload sent over one NVLink",
        lane=SLOW, storage=DIM, dims=("link",), nvml=("FI 138", "FI 202"), absent=(NO_NVLINK,)),
    row(120, "gpu_nvlink_link_receive_bytes_total", COUNTER, INT, "bytes", "Payload received over one NVLink",
        lane=SLOW, storage=DIM, dims=("link",), nvml=("FI 139", "FI 204"), absent=(NO_NVLINK,)),
    row(121, "gpu_nvlink_errors_total", COUNTER, INT, "",
        "Errors of one NVLink, by kind; only kinds that this chip counts",
        lane=SLOW, storage=DIM, dims=("link", "error"), nvml=("FI 161-163", "FI 206-215", "FI 219", "FI 221"),
        absent=(NO_NVLINK,)),
    row(122, "gpu_nvlink_peers", GAUGE, INT, "", "Active NVLinks by type of the remote device",
        lane=STATIC, storage=DIM, dims=("peer",), nvml=("nvmlDeviceGetNvLinkRemoteDeviceType",), absent=(NO_NVLINK,)),
    row(139, "gpu_nvlink_gpu_links", GAUGE, INT, "",
        "Active NVLinks to another GPU, by the PCI address of that GPU; only GPUs that are linked directly",
        lane=STATIC, storage=DIM, dims=("peer_pci_address",), nvml=("nvmlDeviceGetNvLinkRemotePciInfo_v2",),
        absent=(NO_NVLINK,)),
    row(123, "gpu_nvswitch_links", GAUGE, INT, "", "NVLinks that end at an NVSwitch",
        lane=SLOW, storage=TAIL, nvml=("FI 147",), absent=(NO_NVLINK,)),
    row(137, "gpu_nvlink_bit_error_ratio", GAUGE, FLOAT, "ratio",
        "Share of wrong bits on one NVLink, as the driver rates it from effective errors and from symbol errors",
        high=1, lane=SLOW, storage=DIM, dims=("link", "rate"), nvml=("FI 220", "FI 222"),
        absent=(NO_NVLINK, OTHER_COUNTERS, UNMEASURED_RATIO)),
    row(138, "gpu_nvlink_corrected_total", COUNTER, INT, "",
        "Symbol errors that error correction fixed on one NVLink, by bin of the driver's histogram",
        lane=STATIC, storage=DIM, dims=("link", "bin"), nvml=("FI 235-250",), absent=(NO_NVLINK, OTHER_COUNTERS)),
    info(124, "gpu_nvlink_version", "Version of NVLink", nvml="nvmlDeviceGetNvLinkVersion", absent=(NO_NVLINK,)),
    # chip to chip
    row(125, "gpu_c2c_enabled", GAUGE, INT, "", "1 if the chip-to-chip link to the CPU is on, else 0",
        high=1, lane=STATIC, storage=TAIL, nvml=("nvmlDeviceGetC2cModeInfoV",), smi=("c2c.mode",),
        absent=(NO_C2C, UNPROVEN_C2C, OLD_DRIVER)),
    row(126, "gpu_c2c_link_up", GAUGE, INT, "", "1 if this chip-to-chip link is up, else 0",
        high=1, lane=SLOW, storage=DIM, dims=("link",), nvml=("FI 171",), absent=(NO_C2C,)),
    row(127, "gpu_c2c_link_speed_bytes_per_second", GAUGE, INT, "bytes_per_second",
        "Highest speed of this chip-to-chip link",
        lane=SLOW, storage=DIM, dims=("link",), nvml=("FI 172",), absent=(NO_C2C,)),
    row(128, "gpu_c2c_errors_total", COUNTER, INT, "", "Errors of one chip-to-chip link, by kind",
        lane=SLOW, storage=DIM, dims=("link", "error"), nvml=("FI 231-233",), absent=(NO_C2C, OLD_DRIVER)),
    # fabric
    row(130, "gpu_fabric_state", STATE, ENUM, "", "Progress of joining the NVLink fabric",
        low=None, lane=SLOW, storage=TAIL, states=("not_supported", "not_started", "in_progress", "completed"),
        nvml=("nvmlDeviceGetGpuFabricInfoV.state",), smi=("fabric.state",), absent=(NO_FABRIC, OLD_DRIVER)),
    info(131, "gpu_fabric_status", "Result of joining the fabric, once completed: `SUCCESS` or an error",
         lane=SLOW, nvml="nvmlDeviceGetGpuFabricInfoV.status", smi="fabric.status",
         absent=(NO_FABRIC, OLD_DRIVER, NOT_JOINED)),
    info(132, "gpu_fabric_cluster_uuid", "UUID of the fabric of the GPU", lane=SLOW,
         nvml="nvmlDeviceGetGpuFabricInfoV.clusterUuid", smi="fabric.clusterUuid",
         absent=(NO_FABRIC, OLD_DRIVER, ONE_HOST)),
    info(133, "gpu_fabric_clique", "Clique of the GPU in its cluster: GPUs that reach each other", lane=SLOW,
         nvml="nvmlDeviceGetGpuFabricInfoV.cliqueId", smi="fabric.cliqueId",
         absent=(NO_FABRIC, OLD_DRIVER, NOT_JOINED, ONE_HOST)),
    row(134, "gpu_fabric_health", GAUGE, INT, "", "1 if this health condition applies to the GPU in the fabric, else 0",
        high=1, lane=SLOW, storage=DIM, dims=("condition",), nvml=("nvmlDeviceGetGpuFabricInfoV.healthMask",),
        smi=("fabric.health.bandwidth", "fabric.health.route_recovery_in_progress", "fabric.health.route_unhealthy",
             "fabric.health.access_timeout_recovery", "fabric.health.partition_assigned"),
        absent=(NO_FABRIC, OLD_DRIVER, NOT_JOINED)),
    row(135, "gpu_fabric_incorrect_configuration", STATE, ENUM, "", "Fault of the fabric's configuration",
        low=None, lane=SLOW, storage=TAIL, states=FABRIC_CONFIGURATIONS,
        nvml=("nvmlDeviceGetGpuFabricInfoV.healthMask",), smi=("fabric.health.incorrect_configuration",),
        absent=(NO_FABRIC, OLD_DRIVER, NOT_JOINED)),
    row(136, "gpu_fabric_health_status", STATE, ENUM, "", "Summary of the health of the GPU in the fabric",
        low=None, lane=SLOW, storage=TAIL, states=("not_reported", "healthy", "unhealthy", "limited_capacity"),
        nvml=("nvmlDeviceGetGpuFabricInfoV.healthSummary",), smi=("fabric.health.summary",),
        absent=(NO_FABRIC, OLD_DRIVER, NOT_JOINED)),
)
# fmt: on
