"""Inputs of the rules: the table of facts about each kind of subject. Pure.

A number that the hub does not have is NaN, and the verdict of a rule that needs it is unknown. A yes-or-no input is 1
or 0.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpufleet.model.finding import RuleScope

UPTIME = "uptime_seconds"
"""Input of several scopes: with it, a rule about a past time is unknown after a start of the hub."""


class FactInput(NamedTuple):
    """Row of the table.

    Attributes:
        name: unique in its scope.
        unit: unit, `0 or 1`, or empty for a count.
        help: meaning.
    """

    name: str
    unit: str
    help: str


_S, _R, _W, _B, _Y = "s", "ratio", "W", "bytes", "0 or 1"
_UPTIME = FactInput(UPTIME, _S, "Time since the hub's start. Earlier events are not counted.")
_XIDS = "XIDs since the last reset, within 24 h, with the action "

# fmt: off
_HUB = (
    FactInput("ingesting", _Y, "The hub accepts batches."),
    _UPTIME,
    FactInput("down_seconds", _S, "Time without a hub process before the present one; 0 an hour after its start."),
    FactInput("store_answers", _Y, "The store answers."),
    FactInput("registry_answers", _Y, "The registry answers."),
    FactInput("flush_lag_seconds", _S, "Age of the oldest acknowledged batch that is not in the store."),
    FactInput("flush_failures", "", "Failed flushes in the last hour."),
    FactInput("quarantined_batches", "", "Batches quarantined in the last hour."),
    FactInput("log_used_ratio", _R, "Backlog of the log as a share of its limit."),
    FactInput("disk_free_ratio", _R, "Free space of the fullest file system that the hub writes to."),
    FactInput("received_bodies", "", "Bodies received in the last hour."),
    FactInput("rejected_bodies", "", "Bodies rejected in the last hour."),
    FactInput("clock_behind_seconds", _S, "Median offset of the hub's clock behind its senders' clocks."),
    FactInput("task_restarts", "", "Restarts of background tasks in the last hour."),
    FactInput("clusters", "", "Clusters that are expected to report."),
    FactInput("jointly_late_clusters", "", "Late or stale clusters with last reports at most two intervals apart."),
    FactInput("unknown_names", "", "Unknown names of imported metrics and labels, first seen in the last hour."),
    FactInput("uncached_series", "", "Series decoded again in the last hour because the series cache was full."),
)
_CLUSTER = (
    FactInput("unseen_seconds", _S, "Ingest time since the newest report of any of its senders."),
    FactInput("late_after_seconds", _S, "Limit of that time for the state `late`."),
    FactInput("stale_after_seconds", _S, "Limit of that time for the state `stale`."),
    FactInput("newest_value_seconds", _S, "Ingest time since the receipt of its newest GPU value."),
    FactInput("expected_gpus", "", "Expected GPUs, as in its coverage, without replaced ones."),
    FactInput("reporting_gpus", "", "Reporting GPUs, as in its coverage."),
    FactInput("zero_utilization_ratio", _R, "Share of its GPUs with a utilisation that report exactly 0."),
    FactInput("busy_before_ratio", _R, "At least this share of reporting GPUs was in use at a time in the past hour."),
    _UPTIME,
    FactInput("allocated_devices", "", "Devices that Kubernetes or SLURM declares as allocated."),
    FactInput("unattributed_devices", "", "Allocated devices without a known holder."),
    FactInput("kubernetes_uids", "", "UIDs of the namespace kube-system that its collectors reported within 5 min."),
    FactInput("machines_ratio", _R, "Use of the nearest of the limits that `ingest.max_machines` sets."),
)
_MACHINE = (
    FactInput("unseen_seconds", _S, "Ingest time since its newest report, or since it is listed if it never reported."),
    FactInput("interval_seconds", _S, "Declared interval of its reports."),
    FactInput("node_deleted_seconds", _S, "Time since the deletion of its Kubernetes node retired it; else infinite."),
    FactInput("inventory_age_seconds", _S, "Age of its newest static readings."),
    FactInput("inventory_interval_seconds", _S, "Interval of its static readings."),
    FactInput("gpu_value_seconds", _S, "Ingest time since the newest readings of its GPUs, without static ones."),
    FactInput("gpu_interval_seconds", _S, "Interval of these readings."),
    FactInput("pci_gpus", "", "NVIDIA controllers on its PCI buses, without virtual functions."),
    FactInput("passthrough_gpus", "", "The part of them that is bound to vfio-pci."),
    FactInput("nvml_gpus", "", "GPUs that its driver reports, without lost ones."),
    FactInput("lost_gpus", "", "GPUs that its driver reports as lost."),
    FactInput("kubernetes_gpus", "", "Whole GPUs in its Kubernetes capacity; missing if GPUs are shared."),
    FactInput("allocatable_gpus", "", "Whole GPUs that are allocatable in Kubernetes."),
    FactInput("expectation_sources", "", "Sources with an expected number of its GPUs."),
    FactInput("class_gpus", "", "Largest number of GPUs that a machine of its class ever had."),
    FactInput("imported", _Y, "Its GPUs report through an imported exporter only."),
    FactInput("reporting_gpus", "", "GPUs with current values."),
    FactInput("allocated_gpus", "", "GPUs that Kubernetes or SLURM declares as allocated."),
    FactInput("identity_conflict", _Y, "Another machine has the same id, such as the machine-id, and both report."),
    FactInput("agents", "", "Live senders whose reports have its machine-id and boot id."),
    FactInput("driver_works", _Y, "State of the driver is `ok`."),
    FactInput("fabric_manager_runs", _Y, "State of the Fabric Manager's service is `running`."),
    FactInput("nvswitch_links", "", "NVLinks of its GPUs that end at an NVSwitch."),
    FactInput("xids_watched", _Y, "XIDs are read from the driver or the kernel log."),
    FactInput("lost_log_messages", "", "Messages of the kernel log lost in the last hour."),
    FactInput("fatal_xids", "", "XIDs of its GPUs within 24 h that need a reset, a reboot or a repair."),
    FactInput("driver_differs", _Y, "Its driver version differs from that of most machines of its pool."),
    FactInput("unresolved_devices", "", "Device names of holder sources that identify no device."),
)
_DEVICE = (
    FactInput("lost", _Y, "Its state is `lost`, it had XID 79 since its last reset, or only the PCI bus shows it now."),
    FactInput("reset_required", _Y, "State of the GPU is `reset_required`."),
    FactInput("hung", _Y, "State of the GPU is `hung`."),
    FactInput("unreadable", _Y, "State of the GPU is `unreadable`."),
    FactInput("recovery_needed", _Y, "The driver recommends a recovery action."),
    FactInput("failed_core_readings", "", "Core readings that failed, without those that the device does not support."),
    FactInput("missing_core_readings", "", "Core readings with an earlier value, which their reader no longer gives."),
    FactInput("noisy_readings", "", "Readings that change on a working GPU: power, temperatures, clocks, activity."),
    FactInput("identical_cycles", "", "Successive samples in which all of them are identical."),
    FactInput("identical_energy_cycles", "", "Successive samples with the same energy counter."),
    FactInput("unexplained_resets", "", "Decreases of a counter in the last hour without a new driver session."),
    FactInput("invalid_readings", "", "Readings that are absent with `invalid_value`."),
    FactInput("reader_ratio", _R, "Largest quotient of two readers' values of one metric of the GPU."),
    FactInput("machines", "", "Machines that reported its UUID within two intervals."),
    FactInput("replaced_seconds", _S, "Time since another GPU was reported in its slot; infinite for never."),
    FactInput("contradicting_holders", _Y, "A holding of it has the verdict `conflict`."),
    FactInput("bound_to_vfio", _Y, "The host binds it to vfio-pci."),
    FactInput("host_values", _Y, "A reader on the host, or an exporter of the host, reports values of it."),
    FactInput("held", _Y, "It has a holder; missing if its holders are unknown."),
    FactInput("held_seconds", _S, "Time since the newest holding of it began."),
    FactInput("utilization_ratio", _R, "Utilisation."),
    FactInput("memory_used_bytes", _B, "Memory in use."),
    FactInput("memory_total_bytes", _B, "Memory."),
    FactInput("processes", "", "Processes with a compute context."),
    FactInput("power_watts", _W, "Board power."),
    FactInput("power_limit_watts", _W, "Power limit in force."),
    FactInput("sm_clock_hertz", "Hz", "Clock of the streaming multiprocessors."),
    FactInput("sm_clock_max_hertz", "Hz", "Maximum of that clock."),
    FactInput("temperature_margin_celsius", "°C", "Distance to the temperature at which the GPU slows down."),
    FactInput("slowdown_margin_celsius", "°C", "That distance at which the hardware slows the GPU down."),
    FactInput("hardware_slowdown", _Y, "Clocks are low by hardware slowdown, heat or a power brake."),
    FactInput("slowdown_starts", "", "Starts of such slowdowns within 10 min."),
    FactInput("uncorrected_errors", "", "Uncorrected ECC errors in the last hour."),
    FactInput("row_remap_failed", _Y, "A memory row could not be remapped."),
    FactInput("row_remap_pending", _Y, "A memory row is remapped at the next reset."),
    FactInput("repair_pending", _Y, "A memory channel or TPC is repaired at the next reset."),
    FactInput("unrepairable_memory", _Y, "Memory has errors that cannot be repaired."),
    FactInput("retired_pages", "", "Retired memory pages."),
    FactInput("nvlinks_active", "", "Active NVLinks."),
    FactInput("nvlinks_of_peers", "", "Most active NVLinks of a GPU of its model on its machine."),
    FactInput("nvlinks_day_before", "", "Its active NVLinks a day before; after a restart that of its open finding."),
    FactInput("fabric_unhealthy", _Y, "Its health in the NVLink fabric is bad, or its configuration is wrong."),
    FactInput("pcie_width", "", "PCIe lanes in use."),
    FactInput("pcie_width_max", "", "PCIe lanes of GPU and slot."),
    FactInput("pcie_generation", "", "PCIe generation in use."),
    FactInput("pcie_generation_max", "", "PCIe generation of GPU and slot."),
    FactInput("vbios_differs", _Y, "Its VBIOS version differs from that of most GPUs of its pool."),
    FactInput("mig_layout_differs", _Y, "Its MIG profiles differ from those of most GPUs of its pool."),
    FactInput("mig_mode_pending", _Y, "MIG mode changes at the next reset."),
    FactInput("xids_restart_app", "", _XIDS + "`restart_app`."),
    FactInput("xids_reset", "", _XIDS + "`reset_gpu` or `reboot_node`."),
    FactInput("xids_repair", "", _XIDS + "`check_hardware` or `contact_vendor`."),
    FactInput("xids_investigate", "", _XIDS + "`investigate` or `as_reported`."),
    FactInput("xids_update_software", "", _XIDS + "`update_software` or `restart_vm`."),
    FactInput("xids_unknown", "", _XIDS + "`unknown`."),
    FactInput("xids_most_repeated", "", "Occurrences of the most frequent application XID among them."),
)
_ALLOCATION = (
    FactInput("expected_devices", "", "Expected devices, all classes together."),
    FactInput("devices", "", "Devices of its target that report now."),
    FactInput("answers", _Y, "A source answers for it."),
    FactInput("overlapping_tenants", "", "Other tenants with an allocation of one of its devices or its machine now."),
)
_SENDER = (
    FactInput("clock_ahead_seconds", _S, "Offset of its clock from the hub's."),
    FactInput("interval_seconds", _S, "Declared interval of its reports."),
    FactInput("data_delay_seconds", _S, "Receipt time of its newest values less their measurement time."),
    FactInput("missing_batches", "", "Missing batches that it reports neither as queued nor as dropped."),
    FactInput("dropped_batches", "", "Batches that it dropped in the last hour."),
    FactInput("oldest_queued_seconds", _S, "Age of its oldest queued batch; 0 without a backlog."),
    FactInput("backfilled_seconds", _S, "Length of the interval whose late batches are not judged yet; 0 without one."),
    FactInput("shared_epoch_batches", "", "Batches within 24 h that another machine numbered under its epoch."),
    _UPTIME,
)
# fmt: on

INPUTS: Mapping[RuleScope, Mapping[str, FactInput]] = MappingProxyType(
    {
        scope: MappingProxyType({one.name: one for one in rows})
        for scope, rows in (
            (RuleScope.HUB, _HUB),
            (RuleScope.CLUSTER, _CLUSTER),
            (RuleScope.MACHINE, _MACHINE),
            (RuleScope.SENDER, _SENDER),
            (RuleScope.ALLOCATION, _ALLOCATION),
            (RuleScope.DEVICE, _DEVICE),
        )
    }
)
"""Number inputs of each scope by name."""

TEXTS: Mapping[RuleScope, Mapping[str, str]] = MappingProxyType(
    {
        RuleScope.HUB: {},
        RuleScope.CLUSTER: {},
        RuleScope.MACHINE: {
            "driver_state": "State of the driver.",
            "driver_version": "Version of the driver.",
            "machine_class": "Its class: cluster, pool and model of GPU.",
            "last_error": "Newest error of its readers.",
        },
        RuleScope.SENDER: {},
        RuleScope.ALLOCATION: {"reason": "Why no source answers."},
        RuleScope.DEVICE: {
            "missing_readings": "The missing core readings.",
            "recovery_action": "Recovery action that the driver recommends.",
            "vbios_version": "Version of the VBIOS.",
            "mig_layout": "MIG profiles in order.",
            "xid_codes": "XIDs with their number, such as `31 x2, 79`.",
        },
    }
)
"""Text inputs of each scope by name: evidence only."""
