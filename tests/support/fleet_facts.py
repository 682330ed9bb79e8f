"""Facts of a fleet in which every rule is healthy."""

from collections.abc import Mapping

WORKING: Mapping[str, float] = {
    **dict.fromkeys(("ingesting", "store_answers", "registry_answers", "answers", "driver_works", "xids_watched"), 1),
    **dict.fromkeys(("fabric_manager_runs", "agents", "machines", "reader_ratio", "held", "expectation_sources"), 1),
    **dict.fromkeys(
        ("pci_gpus", "nvml_gpus", "kubernetes_gpus", "allocatable_gpus", "class_gpus", "reporting_gpus"), 8
    ),
    **dict.fromkeys(("expected_gpus", "devices", "expected_devices", "allocated_gpus"), 8),
    "nvlinks_active": 18,
    "nvlinks_of_peers": 18,
    "nvlinks_day_before": 18,
    "nvswitch_links": 144,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "pcie_generation": 5,
    "pcie_generation_max": 5,
    "memory_used_bytes": 40e9,
    "memory_total_bytes": 80e9,
    "power_watts": 500,
    "power_limit_watts": 700,
    "utilization_ratio": 0.8,
    "sm_clock_hertz": 1.9e9,
    "sm_clock_max_hertz": 1.98e9,
    "noisy_readings": 6,
    "temperature_margin_celsius": 30,
    "slowdown_margin_celsius": -2,
    "replaced_seconds": float("inf"),
    "node_deleted_seconds": float("inf"),
    "unseen_seconds": 20,
    "interval_seconds": 30,
    "late_after_seconds": 75,
    "stale_after_seconds": 300,
    "inventory_age_seconds": 400,
    "inventory_interval_seconds": 600,
    "newest_value_seconds": 20,
    "gpu_value_seconds": 20,
    "gpu_interval_seconds": 10,
    "uptime_seconds": 86_400,
    "disk_free_ratio": 0.5,
}
"""Inputs of the rules that are not 0."""
