"""NVIDIA's dcgm-exporter, as released up to 4.8 (4.9 renames families and units; no page of it was seen).

Series and labels were seen in published pages of 4.x (`tests/data/exposition`); families that those do not show are
from the exporter's own list of counters.
"""

from gpufleet.dialects.dialect import Dialect, Family, Subject, table
from gpufleet.model.absence import Reason
from gpufleet.model.series import Series
from gpufleet.model.view import Side, View, ViewKind, normalise_pci_address

MIB, MHZ = 1 << 20, 1_000_000

FAMILIES = table(
    Family(name="DCGM_FI_DEV_SM_CLOCK", metric="gpu_sm_clock_hertz", times=MHZ),
    Family(name="DCGM_FI_DEV_MEM_CLOCK", metric="gpu_memory_clock_hertz", times=MHZ),
    Family(name="DCGM_FI_DEV_VIDEO_CLOCK", metric="gpu_video_clock_hertz", times=MHZ),
    Family(name="DCGM_FI_DEV_MEMORY_TEMP", metric="gpu_memory_temperature_celsius", zero=Reason.NOT_SUPPORTED),
    Family(name="DCGM_FI_DEV_GPU_TEMP", metric="gpu_temperature_celsius"),
    Family(name="DCGM_FI_DEV_POWER_USAGE", metric="gpu_power_watts", real=True),
    Family(name="DCGM_FI_DEV_POWER_USAGE_INSTANT", metric="gpu_power_instant_watts", real=True),
    Family(name="DCGM_FI_DEV_ENFORCED_POWER_LIMIT", metric="gpu_power_limit_watts", real=True),
    Family(name="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", metric="gpu_energy_joules_total", over=1000, counter=True),
    Family(name="DCGM_FI_DEV_PCIE_REPLAY_COUNTER", metric="gpu_pcie_replays_total", counter=True),
    Family(name="DCGM_FI_DEV_PSTATE", metric="gpu_performance_state"),
    Family(name="DCGM_FI_DEV_CLOCKS_EVENT_REASONS", metric="gpu_clock_event_reasons_mask"),
    Family(name="DCGM_FI_DEV_GPU_UTIL", metric="gpu_utilization_ratio", over=100),
    Family(name="DCGM_FI_DEV_MEM_COPY_UTIL", metric="gpu_memory_activity_ratio", over=100),
    Family(name="DCGM_FI_DEV_ENC_UTIL", metric="gpu_encoder_utilization_ratio", over=100),
    Family(name="DCGM_FI_DEV_DEC_UTIL", metric="gpu_decoder_utilization_ratio", over=100),
    Family(name="DCGM_FI_DEV_XID_ERRORS", metric="gpu_last_xid", zero=Reason.NO_DATA),
    Family(name="DCGM_FI_DEV_FB_TOTAL", metric="gpu_memory_total_bytes", times=MIB),
    Family(name="DCGM_FI_DEV_FB_FREE", metric="gpu_memory_free_bytes", times=MIB),
    Family(name="DCGM_FI_DEV_FB_USED", metric="gpu_memory_used_bytes", times=MIB),
    Family(name="DCGM_FI_DEV_FB_RESERVED", metric="gpu_memory_reserved_bytes", times=MIB),
    Family(name="DCGM_FI_DEV_BAR1_TOTAL", metric="gpu_bar1_total_bytes", times=MIB),
    Family(name="DCGM_FI_DEV_BAR1_USED", metric="gpu_bar1_used_bytes", times=MIB),
    Family(name="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", metric="gpu_ecc_corrected_errors_total", counter=True),
    Family(name="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", metric="gpu_ecc_uncorrected_errors_total", counter=True),
    Family(name="DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", metric="gpu_ecc_corrected_lifetime_errors_total", counter=True),
    Family(name="DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", metric="gpu_ecc_uncorrected_lifetime_errors_total", counter=True),
    Family(name="DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", metric="gpu_remapped_rows_uncorrectable", counter=True),
    Family(name="DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", metric="gpu_remapped_rows_correctable", counter=True),
    Family(name="DCGM_FI_DEV_ROW_REMAP_FAILURE", metric="gpu_row_remap_failed"),
    Family(name="DCGM_FI_DEV_ROW_REMAP_PENDING", metric="gpu_row_remap_pending"),
    Family(name="DCGM_FI_DEV_RETIRED_PENDING", metric="gpu_retired_pages_pending"),
    Family(name="DCGM_FI_PROF_GR_ENGINE_ACTIVE", metric="gpu_graphics_activity_ratio", real=True),
    Family(name="DCGM_FI_PROF_SM_ACTIVE", metric="gpu_sm_activity_ratio", real=True),
    Family(name="DCGM_FI_PROF_SM_OCCUPANCY", metric="gpu_sm_occupancy_ratio", real=True),
    Family(name="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", metric="gpu_tensor_activity_ratio", real=True),
    Family(name="DCGM_FI_PROF_DRAM_ACTIVE", metric="gpu_dram_activity_ratio", real=True),
    Family(name="DCGM_FI_PROF_PIPE_FP64_ACTIVE", metric="gpu_fp64_activity_ratio", real=True),
    Family(name="DCGM_FI_PROF_PIPE_FP32_ACTIVE", metric="gpu_fp32_activity_ratio", real=True),
    Family(name="DCGM_FI_PROF_PIPE_FP16_ACTIVE", metric="gpu_fp16_activity_ratio", real=True),
    Family(name="DCGM_FI_PROF_PCIE_TX_BYTES", metric="gpu_pcie_transmit_bytes_per_second"),
    Family(name="DCGM_FI_PROF_PCIE_RX_BYTES", metric="gpu_pcie_receive_bytes_per_second"),
    Family(name="DCGM_FI_PROF_NVLINK_TX_BYTES", metric="gpu_nvlink_transmit_bytes_per_second"),
    Family(name="DCGM_FI_PROF_NVLINK_RX_BYTES", metric="gpu_nvlink_receive_bytes_per_second"),
)

UNREAD = {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "a rate of both directions together in MB/s that calls itself a counter",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "0 also where no licence is wanted: it does not tell which",
    "DCGM_EXP_XID_ERRORS_COUNT": "a count over a window of the exporter's own",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": "a count of samples over a window of the exporter's own",
    "DCGM_EXP_GPU_HEALTH_STATUS": "a judgement, not a measurement",
    "DCGM_EXP_P2P_STATUS": "a judgement, not a measurement",
}


def subject(series: Series) -> Subject | None:
    """Read who it is: the UUID, else the address; a MIG instance by its GPU and its number there."""
    labels = series.labels
    uuid = labels.get("UUID") or labels.get("uuid") or ""
    try:
        address = normalise_pci_address(labels["pci_bus_id"]) if labels.get("pci_bus_id") else None
    except ValueError:
        address = None
    if not uuid and not address:
        return None
    machine = labels.get("Hostname") or labels.get("hostname") or ""
    number = labels.get("gpu", "")
    index = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else None
    gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid or None, pci_address=address, index=index)
    instance = labels.get("GPU_I_ID")
    if not instance:
        return Subject(machine=machine, view=gpu, name=labels.get("modelName", ""))
    # No page tells a MIG device's own UUID: its GPU and its number there name it for this exporter only.
    mig = View(kind=ViewKind.MIG, side=Side.HOST, instance=f"{uuid or address}/{instance}", parent=gpu.key)
    return Subject(machine=machine, view=mig, name=labels.get("modelName", ""))


DCGM_EXPORTER = Dialect(name="dcgm-exporter", prefixes=("DCGM_",), families=FAMILIES, unread=UNREAD, subject=subject)
