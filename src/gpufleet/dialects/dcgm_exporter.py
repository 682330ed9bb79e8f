"""Dialect of NVIDIA's dcgm-exporter up to 4.8 (4.9 renames families and units; no page of it was seen).

Series and labels are from published pages of 4.x (`tests/data/exposition`), other families from the exporter's list of
counters.
"""

from collections.abc import Mapping

from gpufleet.dialects.dialect import (
    Dialect,
    FamilyMapping,
    SeriesSubject,
    address_of,
    guest_name,
    small_number,
    table,
    text_of,
)
from gpufleet.dialects.sample_builder import WHOLE_GPU_METRICS
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Subject
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.view import Side, View, ViewKind

MIB, MHZ = 1 << 20, 1_000_000
PARTS = (Subject.GPU, Subject.MIG)
"""The exporter does not support vGPU instances."""

FAMILIES = table(
    FamilyMapping(name="DCGM_FI_DEV_SM_CLOCK", metric="gpu_sm_clock_hertz", times=MHZ),
    FamilyMapping(name="DCGM_FI_DEV_MEM_CLOCK", metric="gpu_memory_clock_hertz", times=MHZ),
    FamilyMapping(name="DCGM_FI_DEV_VIDEO_CLOCK", metric="gpu_video_clock_hertz", times=MHZ),
    FamilyMapping(name="DCGM_FI_DEV_MEMORY_TEMP", metric="gpu_memory_temperature_celsius", zero=Reason.NOT_SUPPORTED),
    FamilyMapping(name="DCGM_FI_DEV_GPU_TEMP", metric="gpu_temperature_celsius"),
    FamilyMapping(name="DCGM_FI_DEV_POWER_USAGE", metric="gpu_power_watts", real=True),
    FamilyMapping(
        name="DCGM_FI_DEV_POWER_USAGE_INSTANT", metric="gpu_power_instant_watts", real=True, zero=Reason.NOT_SUPPORTED
    ),
    FamilyMapping(name="DCGM_FI_DEV_ENFORCED_POWER_LIMIT", metric="gpu_power_limit_watts", real=True),
    FamilyMapping(
        name="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", metric="gpu_energy_joules_total", over=1000, counter=True
    ),
    FamilyMapping(name="DCGM_FI_DEV_PCIE_REPLAY_COUNTER", metric="gpu_pcie_replays_total", counter=True),
    FamilyMapping(name="DCGM_FI_DEV_PSTATE", metric="gpu_performance_state"),
    FamilyMapping(name="DCGM_FI_DEV_CLOCKS_EVENT_REASONS", metric="gpu_clock_event_reasons_mask"),
    FamilyMapping(name="DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", metric="gpu_clock_event_reasons_mask", written=False),
    FamilyMapping(name="DCGM_FI_DEV_GPU_UTIL", metric="gpu_utilization_ratio", over=100, of=PARTS),
    FamilyMapping(name="DCGM_FI_DEV_MEM_COPY_UTIL", metric="gpu_memory_activity_ratio", over=100, of=PARTS),
    FamilyMapping(name="DCGM_FI_DEV_ENC_UTIL", metric="gpu_encoder_utilization_ratio", over=100, of=PARTS),
    FamilyMapping(name="DCGM_FI_DEV_DEC_UTIL", metric="gpu_decoder_utilization_ratio", over=100, of=PARTS),
    FamilyMapping(name="DCGM_FI_DEV_XID_ERRORS", metric="gpu_last_xid", zero=Reason.NO_DATA),
    FamilyMapping(name="DCGM_FI_DEV_FB_TOTAL", metric="gpu_memory_total_bytes", times=MIB, of=PARTS),
    FamilyMapping(name="DCGM_FI_DEV_FB_FREE", metric="gpu_memory_free_bytes", times=MIB),
    FamilyMapping(name="DCGM_FI_DEV_FB_USED", metric="gpu_memory_used_bytes", times=MIB, of=PARTS),
    FamilyMapping(name="DCGM_FI_DEV_FB_RESERVED", metric="gpu_memory_reserved_bytes", times=MIB),
    FamilyMapping(name="DCGM_FI_DEV_BAR1_TOTAL", metric="gpu_bar1_total_bytes", times=MIB),
    FamilyMapping(name="DCGM_FI_DEV_BAR1_USED", metric="gpu_bar1_used_bytes", times=MIB),
    FamilyMapping(name="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", metric="gpu_ecc_corrected_errors_total", counter=True),
    FamilyMapping(name="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", metric="gpu_ecc_uncorrected_errors_total", counter=True),
    FamilyMapping(name="DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", metric="gpu_ecc_corrected_lifetime_errors_total", counter=True),
    FamilyMapping(
        name="DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", metric="gpu_ecc_uncorrected_lifetime_errors_total", counter=True
    ),
    FamilyMapping(
        name="DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", metric="gpu_remapped_rows_uncorrectable", counter=True
    ),
    FamilyMapping(name="DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", metric="gpu_remapped_rows_correctable", counter=True),
    FamilyMapping(name="DCGM_FI_DEV_ROW_REMAP_FAILURE", metric="gpu_row_remap_failed"),
    FamilyMapping(name="DCGM_FI_DEV_ROW_REMAP_PENDING", metric="gpu_row_remap_pending"),
    FamilyMapping(name="DCGM_FI_DEV_RETIRED_SBE", metric="gpu_retired_pages", labels=("single_bit",), counter=True),
    FamilyMapping(name="DCGM_FI_DEV_RETIRED_DBE", metric="gpu_retired_pages", labels=("double_bit",), counter=True),
    FamilyMapping(name="DCGM_FI_DEV_RETIRED_PENDING", metric="gpu_retired_pages_pending"),
    FamilyMapping(name="DCGM_FI_PROF_GR_ENGINE_ACTIVE", metric="gpu_graphics_activity_ratio", real=True),
    FamilyMapping(name="DCGM_FI_PROF_SM_ACTIVE", metric="gpu_sm_activity_ratio", real=True),
    FamilyMapping(name="DCGM_FI_PROF_SM_OCCUPANCY", metric="gpu_sm_occupancy_ratio", real=True),
    FamilyMapping(name="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", metric="gpu_tensor_activity_ratio", real=True),
    FamilyMapping(name="DCGM_FI_PROF_DRAM_ACTIVE", metric="gpu_dram_activity_ratio", real=True),
    FamilyMapping(name="DCGM_FI_PROF_PIPE_FP64_ACTIVE", metric="gpu_fp64_activity_ratio", real=True),
    FamilyMapping(name="DCGM_FI_PROF_PIPE_FP32_ACTIVE", metric="gpu_fp32_activity_ratio", real=True),
    FamilyMapping(name="DCGM_FI_PROF_PIPE_FP16_ACTIVE", metric="gpu_fp16_activity_ratio", real=True),
    FamilyMapping(name="DCGM_FI_PROF_PCIE_TX_BYTES", metric="gpu_pcie_transmit_bytes_per_second"),
    FamilyMapping(name="DCGM_FI_PROF_PCIE_RX_BYTES", metric="gpu_pcie_receive_bytes_per_second"),
    FamilyMapping(name="DCGM_FI_PROF_NVLINK_TX_BYTES", metric="gpu_nvlink_transmit_bytes_per_second"),
    FamilyMapping(name="DCGM_FI_PROF_NVLINK_RX_BYTES", metric="gpu_nvlink_receive_bytes_per_second"),
)

XID_COUNT, CLOCK_COUNT = "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT"
WINDOW_MS = 300_000
"""Default window of both counts in the exporter."""

CLOCK_EVENTS = {
    "gpu_idle": "gpu_idle",
    "applications_clocks": "clocks_setting",
    "sw_power_cap": "power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal": "sw_thermal",
    "hw_thermal": "hw_thermal",
    "hw_power_brake": "hw_power_brake",
    "display_clocks": "display_clocks",
}
"""Our reason to the exporter's `clock_event`."""

_SPENT = "microseconds or nanoseconds, by release; ours is by reason (`gpufleet_gpu_clock_event_seconds_total`)"
_LINK_ERRORS = "sum of all links; ours is by link (`gpufleet_gpu_nvlink_errors_total`)"

UNREAD = {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "a rate of both directions in MB/s, declared as a counter; "
    "ours are counters by direction (`gpufleet_gpu_nvlink_transmit_bytes_total`)",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "one link, both directions together; ours is by link and direction",
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": "a sample over 20 ms, declared as a counter; "
    "`gpufleet_gpu_pcie_transmit_bytes_total` counts",
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": "a sample over 20 ms, declared as a counter; "
    "`gpufleet_gpu_pcie_receive_bytes_total` counts",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "0 also if no licence is required; ambiguous (`gpufleet_vgpu_license_state`)",
    "DCGM_FI_DEV_POWER_VIOLATION": _SPENT,
    "DCGM_FI_DEV_THERMAL_VIOLATION": _SPENT,
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": _SPENT,
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": _SPENT,
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": _SPENT,
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": _SPENT,
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": _LINK_ERRORS,
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": _LINK_ERRORS,
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": _LINK_ERRORS,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": _LINK_ERRORS,
    XID_COUNT: "a count over a window of the exporter; written from our events "
    "(`gpufleet_gpu_xid_errors_total` counts without a window)",
    CLOCK_COUNT: "a count of samples over a window of the exporter; written from our samples "
    "(`gpufleet_gpu_clock_event_seconds_total` is time)",
    "DCGM_EXP_GPU_HEALTH_STATUS": "an assessment, not a measurement",
    "DCGM_EXP_P2P_STATUS": "an assessment, not a measurement",
}


OF_SHARERS = frozenset({"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"})
"""Families that are about one pod, not about the device, in series with the label `vgpu`.

The exporter adds this label with `--kubernetes-virtual-gpus`, which repeats each series for every pod that shares the
device. Since March 2026 these two families are sums over the pod's processes.
"""


_OF_WHOLE_GPU = frozenset(name for name, one in FAMILIES.items() if one.metric in WHOLE_GPU_METRICS)


PRESENT = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_TEMP")
"""Families that show a device: integrated GPUs have no memory, and vGPUs in guests no temperature."""


def identify(series: ImportedSeries) -> SeriesSubject | None:
    """Return the subject of a series: by UUID, else address; a MIG instance by its GPU and instance id.

    The share of a pod has none. The exporter repeats readings of a whole GPU, such as its power, for each MIG instance,
    and has no series of the GPU itself (A30, A100, A800 with releases 3 and 4): these are readings of the GPU.
    """
    labels = series.labels
    if labels.get("vgpu") and series.name in OF_SHARERS:
        return None
    uuid = text_of(labels, "UUID", "uuid")
    address = address_of(labels.get("pci_bus_id", ""))
    if not uuid and not address:
        return None
    guest = guest_name(labels)
    machine = guest or _machine(labels)
    side = Side.GUEST if guest else Side.HOST
    index = small_number(labels.get("gpu", ""))
    gpu = View(kind=ViewKind.GPU, side=side, uuid=uuid or None, pci_address=address, index=index)
    instance, name = text_of(labels, "GPU_I_ID"), text_of(labels, "modelName")
    # No page has the UUID of a MIG device. GPU and instance id identify it for this exporter only.
    mig = View(kind=ViewKind.MIG, side=side, instance=f"{uuid or address}/{instance}", parent=gpu.key)
    if instance and series.name not in _OF_WHOLE_GPU:
        return SeriesSubject(machine=machine, view=mig, name=name, guest=bool(guest))
    texts, held = (("gpu_pci_address", address or ""),), mig if instance else None
    return SeriesSubject(machine=machine, view=gpu, name=name, texts=texts, guest=bool(guest), held=held)


def _machine(labels: Mapping[str, str]) -> str:
    """Return the machine name of the exporter: its node, or its own pod if the node name is not configured.

    A pod is not a machine, and its name changes when it is recreated; the target's label `node` is used then.
    """
    name = labels.get("Hostname") or labels.get("hostname") or ""
    return "" if name == labels.get("pod") and labels.get("node") else name


LABELS = frozenset(
    {
        *("UUID", "uuid", "gpu", "device", "pci_bus_id", "modelName", "Hostname", "hostname"),
        *("GPU_I_ID", "GPU_I_PROFILE", "err_code", "err_msg", "hpc_job", "vgpu", "vm_name", "vm_uid"),
    }
)

DCGM_EXPORTER = Dialect(
    name="dcgm-exporter", prefixes=("DCGM_",), families=FAMILIES, unread=UNREAD, identify=identify, labels=LABELS
)
