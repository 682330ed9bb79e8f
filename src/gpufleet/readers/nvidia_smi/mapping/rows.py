"""Table of metrics without dimensions: fields and paths in nvidia-smi's outputs.

`--query-gpu` names are the catalogue's `nvidia_smi` column. Paths are those of XML (`-q -x`, DTD 11 to 13) and, if the
name differs, of text (`-q`). The first existing path is used.
"""

from gpufleet.model.catalogue import CATALOGUE, Lane

QUERIES: dict[str, tuple[str, ...]] = {
    metric.name: metric.nvidia_smi for metric in CATALOGUE.values() if metric.nvidia_smi and not metric.dims
}
"""Metric to `--query-gpu` names, newest first; the first supported name is requested."""

FAN, FAN_QUERY, FAN_PATH = "gpu_fan_speed_ratio", "fan.speed", "fan_speed"
ECC_QUERY = "ecc.mode.current"
RESET_STATUS = "gpu_reset_status/reset_required"
"""Path of the statement about the whole device; drivers 525 to 570 print it."""

RESET_QUERY = "reset_status.reset_required"
"""The same statement in CSV."""

MASK, ACTIVE = "gpu_clock_event_reasons_mask", "gpu_clock_event_active"

_PCIE = ("pci/pci_gpu_link_info/pcie_gen", "pci/gpu_link_info/pcie_generation")
_WIDTH = ("pci/pci_gpu_link_info/link_widths", "pci/gpu_link_info/link_width")
_POWER, _MODULE = ("gpu_power_readings", "power_readings"), ("module_power_readings",)
_MEMORY_POWER = ("gpu_memory_power_readings",)
_LIMITS = (*_POWER, "gpu_power_readings/gpu_ceiling_power_limit")  # a section of its own since driver 610
_PROTECTED = ("cc_protected_memory_usage", "conf_compute_protected_memory_usage")
_PLATFORM = ("platforminfo", "platform_info")


def _under(folders: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names for folder in folders)


PATHS: dict[str, tuple[str, ...]] = {
    "gpu_utilization_ratio": ("utilization/gpu_util", "utilization/gpu"),
    "gpu_memory_activity_ratio": ("utilization/memory_util", "utilization/memory"),
    "gpu_encoder_utilization_ratio": ("utilization/encoder_util", "utilization/encoder"),
    "gpu_decoder_utilization_ratio": ("utilization/decoder_util", "utilization/decoder"),
    "gpu_jpeg_utilization_ratio": ("utilization/jpeg_util", "utilization/jpeg"),
    "gpu_ofa_utilization_ratio": ("utilization/ofa_util", "utilization/ofa"),
    "gpu_memory_total_bytes": ("fb_memory_usage/total",),
    "gpu_memory_used_bytes": ("fb_memory_usage/used",),
    "gpu_memory_free_bytes": ("fb_memory_usage/free",),
    "gpu_memory_reserved_bytes": ("fb_memory_usage/reserved",),
    "gpu_bar1_total_bytes": ("bar1_memory_usage/total",),
    "gpu_bar1_used_bytes": ("bar1_memory_usage/used",),
    "gpu_temperature_celsius": ("temperature/gpu_temp", "temperature/gpu_current_temp"),
    "gpu_memory_temperature_celsius": ("temperature/memory_temp", "temperature/memory_current_temp"),
    "gpu_temperature_margin_celsius": (
        "temperature/gpu_temp_tlimit",
        "temperature/gpu_t_limit_temp",
        "temperature/gpu_current_t_limit_temp",
    ),
    # A board without an average (Turing and older) prints it as N/A beside the instant value.
    "gpu_power_watts": _under(
        _POWER, "average_power_draw", "power_draw", "instant_power_draw", "instantaneous_power_draw"
    ),
    "gpu_power_instant_watts": _under(_POWER, "instant_power_draw", "instantaneous_power_draw"),
    # The limit in force is "current" beside "requested" (from DTD 12), and "enforced" in DTD 11.
    "gpu_power_limit_watts": _under(_LIMITS, "current_power_limit", "enforced_power_limit"),
    "gpu_power_default_limit_watts": _under(_LIMITS, "default_power_limit"),
    "gpu_graphics_clock_hertz": ("clocks/graphics_clock", "clocks/graphics"),
    "gpu_sm_clock_hertz": ("clocks/sm_clock", "clocks/sm"),
    "gpu_memory_clock_hertz": ("clocks/mem_clock", "clocks/memory"),
    "gpu_video_clock_hertz": ("clocks/video_clock", "clocks/video"),
    "gpu_sm_clock_max_hertz": ("max_clocks/sm_clock", "max_clocks/sm"),
    "gpu_performance_state": ("performance_state",),
    "gpu_remapped_rows_correctable": ("remapped_rows/remapped_row_corr", "remapped_rows/correctable_error"),
    "gpu_remapped_rows_uncorrectable": ("remapped_rows/remapped_row_unc", "remapped_rows/uncorrectable_error"),
    "gpu_row_remap_pending": ("remapped_rows/remapped_row_pending", "remapped_rows/pending"),
    "gpu_row_remap_failed": ("remapped_rows/remapped_row_failure", "remapped_rows/remapping_failure_occurred"),
    "gpu_recovery_action": ("gpu_recovery_action",),
    "gpu_pcie_link_generation": _under(_PCIE, "current_link_gen", "current"),
    "gpu_pcie_link_width": _under(_WIDTH, "current_link_width", "current"),
    "gpu_pcie_link_generation_max": _under(_PCIE, "max_link_gen", "max"),
    "gpu_pcie_link_width_max": _under(_WIDTH, "max_link_width", "max"),
    "gpu_pcie_replays_total": ("pci/replay_counter", "pci/replays_since_reset"),
    "gpu_ecc_mode": ("ecc_mode/current_ecc", "ecc_mode/current"),
    "gpu_mig_mode": ("mig_mode/current_mig", "mig_mode/current"),
    "gpu_mig_mode_pending": ("mig_mode/pending_mig", "mig_mode/pending"),
    "gpu_persistence_mode": ("persistence_mode",),
    "gpu_compute_mode": ("compute_mode",),
    "gpu_virtualization_mode": ("gpu_virtualization_mode/virtualization_mode",),
    "gpu_power_average_watts": _under(_POWER, "average_power_draw"),
    # DTD 11 calls the requested limit `power_limit`, beside the enforced one.
    "gpu_power_requested_limit_watts": (*_under(_LIMITS, "requested_power_limit"), "power_readings/power_limit"),
    "gpu_power_limit_min_watts": _under(_POWER, "min_power_limit"),
    "gpu_power_limit_max_watts": _under(_POWER, "max_power_limit"),
    "gpu_module_power_watts": _under(_MODULE, "instant_power_draw", "instantaneous_power_draw", "power_draw"),
    "gpu_module_power_average_watts": _under(_MODULE, "average_power_draw"),
    "gpu_module_power_limit_watts": _under(_MODULE, "current_power_limit"),
    "gpu_module_power_default_limit_watts": _under(_MODULE, "default_power_limit"),
    "gpu_module_power_requested_limit_watts": _under(_MODULE, "requested_power_limit"),
    "gpu_module_power_limit_min_watts": _under(_MODULE, "min_power_limit"),
    "gpu_module_power_limit_max_watts": _under(_MODULE, "max_power_limit"),
    "gpu_memory_power_watts": _under(_MEMORY_POWER, "instant_power_draw", "instantaneous_power_draw"),
    "gpu_memory_power_average_watts": _under(_MEMORY_POWER, "average_power_draw"),
    "gpu_channel_repair_pending": ("ecc_errors/channel_repair_pending",),
    "gpu_tpc_repair_pending": ("ecc_errors/tpc_repair_pending",),
    "gpu_unrepairable_memory": ("ecc_errors/unrepairable_memory",),
    "gpu_graphics_clock_max_hertz": ("max_clocks/graphics_clock", "max_clocks/graphics"),
    "gpu_memory_clock_max_hertz": ("max_clocks/mem_clock", "max_clocks/memory"),
    "gpu_ecc_mode_pending": ("ecc_mode/pending_ecc", "ecc_mode/pending"),
    "gpu_sram_threshold_exceeded": ("ecc_errors/aggregate/sram_threshold_exceeded",),
    "gpu_retired_pages_pending": (
        *("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        "retired_pages/pending_page_blacklist",
    ),
    "gpu_accounting_mode": ("accounting_mode",),
    "gpu_display_attached": ("display_mode",),
    "gpu_display_active": ("display_active",),
    "gpu_addressing_mode": ("addressing_mode",),
    "gpu_c2c_enabled": ("c2c_mode", "gpu_c2c_mode"),
    "gpu_protected_memory_total_bytes": _under(_PROTECTED, "total"),
    "gpu_protected_memory_used_bytes": _under(_PROTECTED, "used"),
    "gpu_chassis_serial": _under(_PLATFORM, "chassis_serial_number"),
    "gpu_chassis_slot": _under(_PLATFORM, "slot_number"),
    "gpu_tray_index": _under(_PLATFORM, "tray_index"),
    "gpu_host_id": _under(_PLATFORM, "host_id"),
    "gpu_platform_module_id": _under(_PLATFORM, "module_id"),
    "gpu_fabric_guid": _under(_PLATFORM, "gpu_fabric_guid"),
    "gpu_fabric_state": ("fabric/state",),
    "gpu_fabric_status": ("fabric/status",),
    "gpu_fabric_cluster_uuid": ("fabric/clusteruuid",),
    "gpu_fabric_clique": ("fabric/cliqueid",),
    "gpu_fabric_incorrect_configuration": ("fabric/health/incorrect_configuration",),
    "gpu_fabric_health_status": ("fabric/health/summary",),
    "gpu_vgpu_host_mode": ("gpu_virtualization_mode/host_vgpu_mode",),
    "gpu_vgpu_heterogeneous_mode": ("gpu_virtualization_mode/vgpu_heterogeneous_mode",),
    "gpu_vgpu_instances": ("active_vgpus",),
    "vgpu_license_state": ("vgpu_software_licensed_product/license_status",),
    "vgpu_license_expiry_timestamp_seconds": ("vgpu_software_licensed_product/license_status",),
    "vgpu_license_product": (
        "vgpu_software_licensed_product/licensed_product_name",
        "vgpu_software_licensed_product/product_name",
    ),
    "gpu_name": ("product_name",),
    "gpu_serial": ("serial", "serial_number"),
    "gpu_board_part_number": ("board_part_number",),
    "gpu_vbios_version": ("vbios_version",),
    "gpu_architecture": ("product_architecture",),
    "gpu_pci_address": ("pci/pci_bus_id", "pci/bus_id"),
    "gpu_minor_number": ("minor_number",),
    "gpu_inforom_image_version": ("inforom_version/img_version", "inforom_version/image_version"),
    "gpu_gsp_firmware_version": ("gsp_firmware_version",),
    "gpu_module_id": ("platforminfo/module_id", "platform_info/module_id", "gpu_module_id", "module_id"),
}
"""Metric to paths of a GPU."""


def _ecc(counter: str, kind: str) -> tuple[tuple[str, ...], ...]:
    """Return alternative sets of paths whose sum is the total of CSV; for Volta and older the total itself."""
    sram, dram = f"ecc_errors/{counter}/sram_{kind}", f"ecc_errors/{counter}/dram_{kind}"
    of_volta = (f"ecc_errors/{counter}/{'single' if kind == 'correctable' else 'double'}_bit/total",)
    if kind == "correctable":
        return ((sram, dram), of_volta)
    return (
        (f"{sram}_parity", f"{sram}_secded", dram),
        (f"{sram}_parity", f"{sram}_sec_ded", dram),
        (sram, dram),
        of_volta,
    )


SUMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "gpu_ecc_corrected_errors_total": _ecc("volatile", "correctable"),
    "gpu_ecc_uncorrected_errors_total": _ecc("volatile", "uncorrectable"),
    "gpu_ecc_corrected_lifetime_errors_total": _ecc("aggregate", "correctable"),
    "gpu_ecc_uncorrected_lifetime_errors_total": _ecc("aggregate", "uncorrectable"),
}
"""Metric to alternative sets of paths; the first set whose paths all exist is summed."""

VGPU_INSTANCES = "gpu_vgpu_instances"

PROCESSES, MIG_DEVICES = "gpu_compute_processes", "gpu_mig_devices"

REASON_PATHS: dict[str, tuple[str, ...]] = {
    name: (
        f"clocks_event_reasons/clocks_event_reason_{xml}",
        f"clocks_event_reasons/{text}",
        f"clocks_throttle_reasons/clocks_throttle_reason_{xml}",
        f"clocks_throttle_reasons/{text}",
    )
    for name, xml, text in (
        ("gpu_idle", "gpu_idle", "idle"),
        ("applications_clocks", "applications_clocks_setting", "applications_clocks_setting"),
        ("sw_power_cap", "sw_power_cap", "sw_power_cap"),
        ("hw_slowdown", "hw_slowdown", "hw_slowdown"),
        ("sync_boost", "sync_boost", "sync_boost"),
        ("sw_thermal", "sw_thermal_slowdown", "sw_thermal_slowdown"),
        ("hw_thermal", "hw_thermal_slowdown", "hw_slowdown/hw_thermal_slowdown"),
        ("hw_power_brake", "hw_power_brake_slowdown", "hw_slowdown/hw_power_brake_slowdown"),
        ("display_clocks", "display_clocks_setting", "display_clock_setting"),
    )
}
"""Label of `gpu_clock_event_active` to paths, for outputs without a mask."""

_MEMORY = {
    "gpu_memory_total_bytes": "fb_memory_usage/total",
    "gpu_memory_used_bytes": "fb_memory_usage/used",
    "gpu_memory_free_bytes": "fb_memory_usage/free",
}

MIG_PATHS: dict[str, tuple[str, ...]] = {
    **{metric: (path, f"shared_{path}") for metric, path in _MEMORY.items()},
    "gpu_memory_reserved_bytes": ("fb_memory_usage/reserved", "shared_fb_memory_usage/reserved"),
    "gpu_bar1_total_bytes": ("bar1_memory_usage/total", "shared_bar1_memory/total"),
    "gpu_bar1_used_bytes": ("bar1_memory_usage/used", "shared_bar1_memory/used"),
    "mig_gpu_instance": ("gpu_instance_id",),
    "mig_compute_instance": ("compute_instance_id",),
    "mig_multiprocessors": ("device_attributes/shared/multiprocessor_count",),
    "mig_copy_engines": ("device_attributes/shared/copy_engine_count",),
    "mig_decoders": ("device_attributes/shared/decoder_count",),
    "mig_encoders": ("device_attributes/shared/encoder_count",),
    "mig_jpeg_engines": ("device_attributes/shared/jpg_count",),
    "mig_ofa_engines": ("device_attributes/shared/ofa_count",),
}
"""Metric to paths of a MIG device; its profile comes from `-L`."""

MIG_PROFILE = "mig_profile"

VGPU_PATHS: dict[str, tuple[str, ...]] = {
    "gpu_memory_total_bytes": ("fb_memory_usage/total",),
    "gpu_memory_used_bytes": ("fb_memory_usage/used",),
    "gpu_utilization_ratio": ("utilization/gpu",),
    "gpu_memory_activity_ratio": ("utilization/memory",),
    "gpu_encoder_utilization_ratio": ("utilization/encoder",),
    "gpu_decoder_utilization_ratio": ("utilization/decoder",),
    "vgpu_type": ("vgpu_name",),
    "vgpu_vm_id": ("vm_uuid",),
    "vgpu_guest_driver_version": ("guest_driver_version",),
    "vgpu_gpu_instance": ("gpu_instance_id",),
    "vgpu_mdev_uuid": ("mdev_uuid",),
    "vgpu_ecc_mode": ("ecc_mode",),
    "vgpu_frame_rate_limit_hertz": ("frame_rate_limit",),
    "vgpu_accounting_mode": ("accounting_mode",),
    "vgpu_license_state": ("license_status",),
    "vgpu_license_expiry_timestamp_seconds": ("license_status",),
}
"""Metric to paths of a vGPU instance in `vgpu -q`."""

VGPU_MACHINE, VGPU_MACHINE_KIND = "vgpu_vm_id", "vgpu_vm_id_kind"
VGPU_NAMES = frozenset({"vm_name", "vm_id", "vm_uuid", "guest_driver_version"})
"""Texts of a vGPU instance that users, a hypervisor or the guest choose."""

READ_ELSEWHERE = frozenset(
    {
        *("uuid", "gpu_uuid", "index", "count", "timestamp", "driver_version", "kmd_version"),
        *("pci.bus_id", "mig.mode.current", "vgpu_uuid", "vgpu_id"),
        *("mig/index", "mig/gpu_instance_id", "mig/compute_instance_id"),
        *("cuda_version", "cuda_umd_version", "attached_gpus", "mig_devices", "processes", FAN_QUERY, FAN_PATH),
        *(RESET_STATUS, RESET_QUERY),
    }
)
"""Fields and paths read by other code: identities, modes, the machine, the time, lists, the fan and the state."""

LANES = (Lane.STATIC, Lane.FAST, Lane.SLOW)
