"""Dialect of utkuozdemir's nvidia_gpu_exporter: fields of `nvidia-smi --query-gpu` and of its NVML backend.

Names, units and labels are from its captured outputs at 4d87490 (`tests/data/exposition`), and otherwise from its list
of metrics. Its UUIDs have no prefix `GPU-`. Its pages have no machine name.

A cell without a number, such as `[N/A]`, has no series, while `No`, `Disabled` and `Not Active` are 0. So a board
without ECC has no ECC mode, but some ECC counts of 0.
"""

import re
from collections.abc import Iterator

from gpufleet.dialects.dialect import (
    Dialect,
    FamilyMapping,
    MappedValue,
    SeriesSubject,
    address_of,
    small_number,
    table,
)
from gpufleet.dialects.sample_builder import STATE
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE, Subject
from gpufleet.model.device_state import RESET_REQUIRED, STATE_OF_REASON
from gpufleet.model.driver_texts import ZERO_REASONS, text_reason
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.view import Side, View, ViewKind

PREFIX = "nvidia_smi_"
_GPU = (Subject.GPU,)
_ENABLED = ("disabled", "enabled")
_MODES = {
    "accounting_mode": "gpu_accounting_mode",
    "display_active": "gpu_display_active",
    "display_mode": "gpu_display_attached",
    "ecc_mode_current": "gpu_ecc_mode",
    "ecc_mode_pending": "gpu_ecc_mode_pending",
    "gsp_mode_current": "gpu_gsp_firmware_mode",
    "mig_mode_current": "gpu_mig_mode",
    "mig_mode_pending": "gpu_mig_mode_pending",
    "persistence_mode": "gpu_persistence_mode",
}
_NUMBERS = {
    "clocks_current_graphics_clock_hz": "gpu_graphics_clock_hertz",
    "clocks_current_memory_clock_hz": "gpu_memory_clock_hertz",
    "clocks_current_sm_clock_hz": "gpu_sm_clock_hertz",
    "clocks_current_video_clock_hz": "gpu_video_clock_hertz",
    "clocks_max_graphics_clock_hz": "gpu_graphics_clock_max_hertz",
    "clocks_max_memory_clock_hz": "gpu_memory_clock_max_hertz",
    "clocks_max_sm_clock_hz": "gpu_sm_clock_max_hertz",
    "clocks_event_reasons_active": "gpu_clock_event_reasons_mask",
    "compute_apps": "gpu_compute_processes",
    "c2c_mode": "gpu_c2c_enabled",
    "ecc_errors_corrected_aggregate_total": "gpu_ecc_corrected_lifetime_errors_total",
    "ecc_errors_corrected_volatile_total": "gpu_ecc_corrected_errors_total",
    "ecc_errors_uncorrected_aggregate_total": "gpu_ecc_uncorrected_lifetime_errors_total",
    "ecc_errors_uncorrected_volatile_total": "gpu_ecc_uncorrected_errors_total",
    "ecc_errors_uncorrected_aggregate_sram_threshold_exceeded": "gpu_sram_threshold_exceeded",
    "energy_joules_total": "gpu_energy_joules_total",
    "enforced_power_limit_watts": "gpu_power_limit_watts",
    "memory_free_bytes": "gpu_memory_free_bytes",
    "memory_reserved_bytes": "gpu_memory_reserved_bytes",
    "memory_total_bytes": "gpu_memory_total_bytes",
    "memory_used_bytes": "gpu_memory_used_bytes",
    "pcie_link_gen_current": "gpu_pcie_link_generation",
    "pcie_link_gen_max": "gpu_pcie_link_generation_max",
    "pcie_link_width_current": "gpu_pcie_link_width",
    "pcie_link_width_max": "gpu_pcie_link_width_max",
    "power_default_limit_watts": "gpu_power_default_limit_watts",
    "power_draw_average_watts": "gpu_power_average_watts",
    "power_draw_instant_watts": "gpu_power_instant_watts",
    "power_draw_watts": "gpu_power_watts",
    "power_limit_watts": "gpu_power_requested_limit_watts",
    "power_max_limit_watts": "gpu_power_limit_max_watts",
    "power_min_limit_watts": "gpu_power_limit_min_watts",
    "protected_memory_total_bytes": "gpu_protected_memory_total_bytes",
    "protected_memory_used_bytes": "gpu_protected_memory_used_bytes",
    "pstate": "gpu_performance_state",
    "remapped_rows_correctable": "gpu_remapped_rows_correctable",
    "remapped_rows_failure": "gpu_row_remap_failed",
    "remapped_rows_pending": "gpu_row_remap_pending",
    "remapped_rows_uncorrectable": "gpu_remapped_rows_uncorrectable",
    "retired_pages_pending": "gpu_retired_pages_pending",
    "temperature_gpu": "gpu_temperature_celsius",
    "temperature_gpu_tlimit": "gpu_temperature_margin_celsius",
    "temperature_memory": "gpu_memory_temperature_celsius",
    "utilization_decoder_ratio": "gpu_decoder_utilization_ratio",
    "utilization_encoder_ratio": "gpu_encoder_utilization_ratio",
    "utilization_gpu_ratio": "gpu_utilization_ratio",
    "utilization_jpeg_ratio": "gpu_jpeg_utilization_ratio",
    "utilization_memory_ratio": "gpu_memory_activity_ratio",
    "utilization_ofa_ratio": "gpu_ofa_utilization_ratio",
}
_REASONS = {
    "gpu_idle": "gpu_idle",
    "applications_clocks_setting": "applications_clocks",
    "sw_power_cap": "sw_power_cap",
    "hw_slowdown": "hw_slowdown",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
}
_TIMED = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_BANKS = ("max", "high", "partial", "low", "none")
_PAGES = {"single_bit_ecc_count": "single_bit", "double_bit_count": "double_bit"}
_LOCATIONS = ("dram", "sram")


def _one(name: str, metric: str, *, labels: tuple[str, ...] = (), states: tuple[str, ...] = ()) -> FamilyMapping:
    return FamilyMapping(
        name=PREFIX + name,
        metric=metric,
        of=_GPU,
        labels=labels,
        states=states,
        zero=ZERO_REASONS.get(metric),
        counter=name in ("energy_joules_total", "xid_errors_total"),
    )


def _of_place(scope: str, metric: str) -> Iterator[FamilyMapping]:
    for severity in ("corrected", "uncorrected"):
        for place in _LOCATIONS:
            yield _one(f"ecc_errors_{severity}_{scope}_{place}", metric, labels=(place, severity))


FAMILIES = table(
    *(_one(name, metric) for name, metric in _NUMBERS.items()),
    *(_one(name, metric, states=_ENABLED) for name, metric in _MODES.items()),
    _one("compute_mode", "gpu_compute_mode", states=CATALOGUE["gpu_compute_mode"].states),
    _one("gpu_recovery_action", "gpu_recovery_action", states=CATALOGUE["gpu_recovery_action"].states),
    _one("fabric_state", "gpu_fabric_state", states=CATALOGUE["gpu_fabric_state"].states),
    *(
        _one(f"clocks_event_reasons_{theirs}", "gpu_clock_event_active", labels=(ours,))
        for theirs, ours in _REASONS.items()
    ),
    *(
        _one(
            f"clocks_event_reasons_counters_{theirs}_seconds",
            "gpu_clock_event_seconds_total",
            labels=(_REASONS[theirs],),
        )
        for theirs in _TIMED
    ),
    *(_one(f"remapped_rows_histogram_{left}", "gpu_row_remap_banks", labels=(left,)) for left in _BANKS),
    *(_one(f"retired_pages_{theirs}", "gpu_retired_pages", labels=(ours,)) for theirs, ours in _PAGES.items()),
    *_of_place("volatile", "gpu_ecc_location_errors_total"),
    *_of_place("aggregate", "gpu_ecc_location_lifetime_errors_total"),
    FamilyMapping(
        name=PREFIX + "xid_errors_total", metric="gpu_xid_errors_total", of=_GPU, dims=("xid",), counter=True
    ),
)

_SELF = "status of the exporter itself"
_TEXT = "a text, or a number made of its last digits: `nvidia_smi_gpu_info` and ours have the text"
_PCI = "part of the PCI address in `gpufleet_gpu_info`"
_PLACE = "a text in `gpufleet_gpu_info`"
_FAN = "all fans together, or the first; ours is by fan (`gpufleet_gpu_fan_speed_ratio`)"
_BY_UNIT = "ours is by unit, or by method of detection (`gpufleet_gpu_sram_uncorrected_lifetime_errors_total`)"
_MIG = "per GPU instance, which several MIG devices can share; ours is by MIG device"
_SAMPLE = "a sample over 20 ms; ours is a counter (`gpufleet_gpu_pcie_transmit_bytes_total` and `_receive_`)"
_SESSIONS = "encoder sessions, which are not collected"
_PROCESS = "per process: processes are in `/v1/snapshot`, not in metrics"

UNREAD: dict[str, str] = {
    **{
        PREFIX + name: _SELF
        for name in (
            *("command_exit_code", "nvml_return_code", "failed_scrapes_total", "last_collect_success"),
            *("last_collect_success_timestamp_seconds", "last_collect_duration_seconds"),
            *("compute_apps_last_collect_success", "exporter_build_info"),
        )
    },
    **{PREFIX + name: _TEXT for name in ("name", "serial", "compute_cap", "inforom_ecc", "inforom_oem")},
    **{
        PREFIX + name: _PCI
        for name in (
            *("pci_base_class", "pci_bus", "pci_device", "pci_device_id", "pci_domain"),
            *("pci_sub_class", "pci_sub_device_id"),
        )
    },
    **{
        PREFIX + name: _PLACE
        for name in (
            *("fabric_clique_id", "platform_gpu_fabric_guid", "platform_host_id", "platform_module_id"),
            *("platform_slot_number", "platform_tray_index"),
        )
    },
    **{
        f"{PREFIX}ecc_errors_{severity}_{scope}_{name}": _BY_UNIT
        for severity in ("corrected", "uncorrected")
        for scope in ("aggregate", "volatile")
        for name in (
            *("device_memory", "sram_l2", "sram_mcu", "sram_other", "sram_parity", "sram_pcie", "sram_secded"),
            "sram_sm",
        )
    },
    **{
        PREFIX + name: _SESSIONS
        for name in ("encoder_stats_average_fps", "encoder_stats_average_latency", "encoder_stats_session_count")
    },
    **{PREFIX + name: _PROCESS for name in ("compute_app_info", "compute_app_used_memory_bytes")},
    **{
        f"{PREFIX}mig_{name}": _MIG
        for name in (
            "info",
            *(f"memory_{part}_bytes" for part in ("total", "used", "free", "reserved")),
            *(f"{part}_ratio" for part in ("graphics_activity", "sm_activity", "sm_occupancy", "tensor_activity")),
            *("pcie_throughput_tx_bytes_per_second", "pcie_throughput_rx_bytes_per_second"),
        )
    },
    PREFIX + "accounting_buffer_size": "size of the driver's accounting buffer",
    PREFIX + "clocks_event_reasons_supported": "a mask; ours is by reason (`gpufleet_gpu_clock_event_supported`)",
    PREFIX + "count": "number of GPUs of the machine, repeated per GPU",
    PREFIX + "index": "a position in a list",
    PREFIX + "display_attached": "1 also of boards without any connector (seen on an H200)",
    PREFIX + "edpp_multiplier_ratio": "not collected",
    PREFIX + "fan_speed_ratio": _FAN,
    PREFIX + "gsp_mode_default": "the default mode, not the current one",
    PREFIX + "pcie_link_gen_gpucurrent": "the GPU's side of the link, as in `pcie_link_gen_current`",
    PREFIX + "pcie_link_gen_gpumax": "of the GPU without its slot; ours is for both together",
    PREFIX + "reset_status_drain_and_reset_recommended": "a recommendation; `gpufleet_gpu_recovery_action` has it",
    PREFIX + "protected_memory_free_bytes": "a difference of other series",
    PREFIX + "pcie_throughput_tx_bytes_per_second": _SAMPLE,
    PREFIX + "pcie_throughput_rx_bytes_per_second": _SAMPLE,
    PREFIX + "xid_last_timestamp_seconds": "ours is for the newest XID of any number",
}

_TEXTS = {
    "name": "gpu_name",
    "serial": "gpu_serial",
    "vbios_version": "gpu_vbios_version",
    "compute_cap": "gpu_compute_capability",
    "driver_version": "nvidia_driver_version",
    "cuda_version": "nvidia_cuda_version",
}
"""Labels of `nvidia_smi_gpu_info` to info metrics."""

UUID_PREFIX = "GPU-"


_UUID = re.compile(r"(?:GPU-)?([0-9A-Fa-f-]{1,60})", re.ASCII)


def identify(series: ImportedSeries) -> SeriesSubject | None:
    """Return the subject of a series: always a GPU, by UUID, else address.

    Of a lost GPU, the label `uuid` can be the text of an error, such as `[gpu is lost]`.
    """
    found = _UUID.fullmatch(series.labels.get("uuid", ""))
    uuid = UUID_PREFIX + found[1] if found is not None else None
    address = address_of(series.labels.get("pci_bus_id", ""))
    if uuid is None and address is None:
        return None
    index = small_number(series.labels.get("index", ""))
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address=address, index=index)
    return SeriesSubject(machine="", view=view)


def _info(series: ImportedSeries, _: float) -> Iterator[MappedValue]:
    for label, metric in _TEXTS.items():
        text = series.labels.get(label, "")
        why = text_reason(text)
        if why is None:
            yield metric, (), text
        elif why in STATE_OF_REASON and CATALOGUE[metric].subjects != (Subject.MACHINE,):
            yield metric, (), Absent(why, label)
    address = address_of(series.labels.get("pci_bus_id", ""))
    if address:
        yield "gpu_pci_address", (), address


def _reset_required(_: ImportedSeries, value: float) -> Iterator[MappedValue]:
    """Return the state of a GPU that requires a reset. 0 is no proof that the GPU works."""
    if value == 1:
        yield STATE, (), RESET_REQUIRED


NVIDIA_GPU_EXPORTER = Dialect(
    name="nvidia-gpu-exporter",
    prefixes=(PREFIX,),
    families=FAMILIES,
    unread=UNREAD,
    identify=identify,
    special={PREFIX + "gpu_info": _info, PREFIX + "reset_status_reset_required": _reset_required},
    labels=frozenset({"uuid", "index", "pci_bus_id"}),
    lists_ecc_modes=True,
)
