"""Metrics, texts and events that the facts need from the store. Pure."""

from collections.abc import Mapping

from gpufleet.fleet.device_events import LOSS_EVENTS, RESET_EVENTS
from gpufleet.model.aggregate import AGGREGATED
from gpufleet.model.device_state import CORE_READINGS
from gpufleet.model.event import EventKind
from gpufleet.model.finding import RuleScope
from gpufleet.model.stored.readings import labelled
from gpufleet.model.time import NANOS

STATE = "gpu_state"
RECOVERY = "gpu_recovery_action"
ENERGY = "gpu_energy_joules_total"
UNCORRECTED = "gpu_ecc_uncorrected_errors_total"
CLOCK_REASONS = "gpu_clock_event_reasons_mask"
NVLINKS_ACTIVE = "gpu_nvlinks_active"
NVSWITCH_LINKS = "gpu_nvswitch_links"
MIG_MODE, MIG_MODE_PENDING = "gpu_mig_mode", "gpu_mig_mode_pending"
XIDS_ALL, XIDS_SINCE, DRIVER_EVENTS = (
    "gpu_xid_events_total",
    "gpu_xid_watched_since_timestamp_seconds",
    "gpu_driver_events_watched",
)

NOISY_READINGS = (
    *("gpu_power_watts", "gpu_power_instant_watts", ENERGY),
    *("gpu_temperature_celsius", "gpu_memory_temperature_celsius"),
    *("gpu_sm_clock_hertz", "gpu_memory_clock_hertz"),
    *("gpu_utilization_ratio", "gpu_memory_activity_ratio"),
    *("gpu_sm_activity_ratio", "gpu_tensor_activity_ratio", "gpu_dram_activity_ratio"),
)
"""Readings that change on a working GPU. The energy of an idle GPU still increases."""

RESET_COUNTERS = (ENERGY, "gpu_ecc_corrected_errors_total", UNCORRECTED, "gpu_pcie_replays_total")
"""Counters that decrease at a reset only. Byte counters are not among them: the driver's can wrap."""

UNIT_METRICS = (
    *("gpu_power_watts", "gpu_power_limit_watts", ENERGY),
    *("gpu_memory_total_bytes", "gpu_memory_used_bytes", "gpu_sm_clock_hertz", "gpu_memory_clock_hertz"),
)
"""Metrics by which readers are compared. A ratio in percent is out of its range, and absent."""

TOTALS = tuple(name for name in AGGREGATED if name in {*CORE_READINGS, *NOISY_READINGS, *UNIT_METRICS})
"""Metrics whose values show that a GPU reports: those that contribute to totals."""

NUMBERS = {
    "utilization_ratio": "gpu_utilization_ratio",
    "memory_used_bytes": "gpu_memory_used_bytes",
    "memory_total_bytes": "gpu_memory_total_bytes",
    "processes": "gpu_compute_processes",
    "power_watts": "gpu_power_watts",
    "power_limit_watts": "gpu_power_limit_watts",
    "sm_clock_hertz": "gpu_sm_clock_hertz",
    "sm_clock_max_hertz": "gpu_sm_clock_max_hertz",
    "temperature_margin_celsius": "gpu_temperature_margin_celsius",
    "slowdown_margin_celsius": labelled("gpu_temperature_margin_threshold_celsius", "slowdown"),
    "row_remap_failed": "gpu_row_remap_failed",
    "row_remap_pending": "gpu_row_remap_pending",
    "unrepairable_memory": "gpu_unrepairable_memory",
    "nvlinks_active": NVLINKS_ACTIVE,
    "pcie_width": "gpu_pcie_link_width",
    "pcie_width_max": "gpu_pcie_link_width_max",
    "pcie_generation": "gpu_pcie_link_generation",
    "pcie_generation_max": "gpu_pcie_link_generation_max",
}
"""Inputs of a device that are the value of a metric."""

REPAIRS = ("gpu_channel_repair_pending", "gpu_tpc_repair_pending")
RETIRED_PAGES = tuple(labelled("gpu_retired_pages", cause) for cause in ("single_bit", "double_bit"))
FABRIC_STATUS, FABRIC_CONFIGURATION = "gpu_fabric_health_status", "gpu_fabric_incorrect_configuration"
FABRIC_FAULTS = tuple(
    labelled("gpu_fabric_health", condition)
    for condition in ("degraded_bandwidth", "route_unhealthy", "fabric_manager_disconnected")
)

DEVICE_METRICS = tuple(
    dict.fromkeys(
        (
            *(STATE, RECOVERY, CLOCK_REASONS, NVSWITCH_LINKS, MIG_MODE, MIG_MODE_PENDING),
            *(XIDS_ALL, XIDS_SINCE, DRIVER_EVENTS),
            *sorted(CORE_READINGS),
            *NOISY_READINGS,
            *RESET_COUNTERS,
            *UNIT_METRICS,
            *NUMBERS.values(),
            *REPAIRS,
            *RETIRED_PAGES,
            *(FABRIC_STATUS, FABRIC_CONFIGURATION, *FABRIC_FAULTS),
        )
    )
)
"""Metrics of GPUs."""

DRIVER_STATE, DRIVER_DEVICES = "nvidia_driver_state", "nvidia_devices"
FABRIC_MANAGER = labelled("host_service_state", "nvidia-fabricmanager")
LOST_MESSAGES, BOOTED_AT = "host_kernel_log_lost_messages_total", "host_boot_timestamp_seconds"
GUEST_STATE, GUEST_GPUS = "guest_state", "guest_expected_gpus"
MACHINE_METRICS = (DRIVER_STATE, DRIVER_DEVICES, FABRIC_MANAGER, LOST_MESSAGES, BOOTED_AT, GUEST_STATE, GUEST_GPUS)
"""Metrics of machines."""

GPU_NAME, VBIOS, GPU_ADDRESS = "gpu_name", "gpu_vbios_version", "gpu_pci_address"
DRIVER_VERSION, PRODUCT = "nvidia_driver_version", "host_product_name"
DEVICE_TEXTS = (GPU_NAME, VBIOS, GPU_ADDRESS)
MACHINE_TEXTS = (DRIVER_VERSION, PRODUCT)

FACT_TEXTS = (*DEVICE_TEXTS, *MACHINE_TEXTS)
"""Text metrics that the facts need."""

FACT_METRICS = (*DEVICE_METRICS, *MACHINE_METRICS, *FACT_TEXTS)
"""Argument of `FactStore.newest_columns`: metrics with numbers, and the text metrics."""

RESTART_EVENTS = frozenset({EventKind.DRIVER_LOADED, *RESET_EVENTS})
"""Kinds of events after which counters can start again, and earlier XIDs are no longer the state; see `reset_after`."""

FALLEN_OFF = 79
"""XID of a GPU that has fallen off the bus."""

BACK_SECONDS = 30
"""Time after a loss from which on an `ok` shows that the GPU is back: a pass can begin before the loss."""

XID_EVENTS = frozenset({EventKind.XID, *RESTART_EVENTS, *LOSS_EVENTS})
"""Kinds of events from which the XIDs since the last reset follow."""

FACT_EVENTS = frozenset({EventKind.THROTTLE_STARTED, EventKind.ECC_UNCORRECTED, *XID_EVENTS})
"""Kinds of events that the facts need: the second argument of `FactStore.event_counts`."""

EVENT_SECONDS = 86400.0
"""Age of the oldest events that the facts need."""


def reset_after(kind: str, code: int, at: int) -> int | None:
    """Return the time after which a GPU or its driver was reset, or None if the event proves no reset.

    A reader notices a reset at its next pass, which can be long after it: XIDs in between can be of either side of the
    reset. The kernel log has the exact time of a load.
    """
    if kind == EventKind.DRIVER_LOADED:
        return at
    return max(0, at - code * NANOS) if kind in RESET_EVENTS and code > 0 else None


def is_loss(kind: str, code: int) -> bool:
    """Return whether a GPU works only if it was reset after such an event."""
    return kind in LOSS_EVENTS or (kind, code) == (EventKind.XID, FALLEN_OFF)


MISSING: Mapping[RuleScope, Mapping[str, str]] = {RuleScope.MACHINE: {}, RuleScope.DEVICE: {}}
"""Inputs of the scopes without a source of data, each with the reason: they are unknown for every subject."""
