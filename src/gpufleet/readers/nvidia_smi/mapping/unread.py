"""What nvidia-smi prints and this reader leaves alone on purpose, each with the reason.

A test holds that every field and path of every captured output is read, or stands here.
"""

import re

LATER = "later: nothing reads it from here yet"
SAME = "said already by a value that is read"
ELSEWHERE = "the machine's own reader tells it"
PARTS = "a part of the PCI address or identity that is read as a whole, or that the PCI scan reads from the kernel"
SETTING = "a setting of graphics or of legacy boards, nothing to watch on compute GPUs"
SAMPLED = "a sample of the last 20 ms, not a rate: two of them say nothing about what was moved in between"
HEADLESS = "it says Yes of H100 and H200, which have no display output"
PENDING = "what the mode will be after a reset: later"
ENCODING = "statistics of video sessions: later"
ACCOUNTING = "accounting of processes that have ended: later"
CATALOGUED = "a list of what the chip could be set to, not a reading"
WHO = "who uses the device: counted only, as processes have rows of their own"
REST = "of a vGPU instance: the host counts the rest of its memory, not what is free inside the guest"
HOLDER = "the name of a virtual machine is its owner's; it is known by its UUID"

UNREAD: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        LATER,
        (
            *("clocks_event_reasons_counters.*", "clocks_event_reasons_counters/*", "clocks_event_reasons.supported"),
            *("ecc.errors.*", "ecc_errors/aggregate*", "ecc_errors/*_pending", "ecc_errors/unrepairable_memory"),
            *("ecc_errors/volatile/sram_uncorrectable", "ecc_error_count/*"),
            *("retired_pages.*", "retired_pages/*", "remapped_rows.histogram.*", "remapped_rows/*histogram/*"),
            *("remapped_rows/*_inactive", "remapped_rows.*_inactive"),
            *("temperature/*",),
            *("gpu_power_readings/*", "power_readings/*", "gpu_memory_power_readings/*", "module.*"),
            *("module_power_readings/*", "power_smoothing", "power_smoothing.*", "power_smoothing/*"),
            *("power_profiles/*", "workload_power_profiles/*", "edpp_multiplier", "voltage/*"),
            *("fabric.*", "fabric/*", "platform.*", "platforminfo/*", "platform_info/*"),
            *("protected_memory.*", "cc_protected_memory_usage/*", "conf_compute_protected_memory_usage/*"),
            *("gsp.mode.*", "capabilities/egm"),
            *("dramEncryption.mode.*", "dram_encryption_mode/*", "gpu_reset_status/*"),
            *("inforom.checksum_validation", "inforom_bbx_flush/*", "inforom_bbx_object_flush/*"),
            *("clocks.max.*", "max_clocks/*", "max_customer_boost_clocks/*", "pci/replay*rollover*"),
            *("vgpu_device_capability.*", "vgpu_driver_capability.*", "bar1_memory_usage/free"),
            *("shared_bar1_memory/free", "vgpu_type", "product_brand", "pdi", "gpu_pdi"),
            *("board_id", "gpu_part_number", "inforom.*", "inforom_version/*"),
        ),
    ),
    (SAME, ("clocks_event_reasons.*",)),
    (ELSEWHERE, ("hostname",)),
    (
        PARTS,
        (
            *("pci.*", "pci/pci_bus", "pci/pci_device", "pci/pci_domain", "pci/pci_*_class", "pci/pci_device_id"),
            *("pci/pci_sub_system_id", "pci/bus", "pci/device", "pci/domain", "pci/*_classcode", "pci/device_id"),
            *("pci/sub_system_id", "pci/*bridge_chip/*", "pcie.link.gen.*", "pci/*link_info/*", "pci/atomic_caps_*"),
        ),
    ),
    (
        SETTING,
        (
            *("driver_model.*", "driver_model/*", "gom.*", "gpu_operation_mode/*", "ibmnpu/*"),
            *("clocks.applications.*", "clocks.default_applications.*", "applications_clocks/*"),
            *("default_applications_clocks/*", "deferred_clocks/*", "clock_policy/*", "sparse_operation_mode"),
            *("multigpu_board", "power.management", "*fru_part_number", "supported_gpu_target_temp/*"),
        ),
    ),
    (HEADLESS, ("display_attached",)),
    (SAMPLED, ("pci/tx_util", "pci/rx_util", "pci/tx_throughput", "pci/rx_throughput")),
    (PENDING, ("*.mode.pending", "*_mode/pending*")),
    (ENCODING, ("encoder.stats.*", "encoder_stats/*", "fbc_stats/*")),
    (
        ACCOUNTING,
        (
            "accounting.*",
            "accounting_mode_buffer_size",
            "accounting_buffer_size",
            "accounted_processes",
            "accounted_processes/*",
        ),
    ),
    (CATALOGUED, ("supported_clocks", "supported_clocks/*")),
    (WHO, ("process_id", "pid", "name", "process_name", "used_gpu_memory", "used_memory", "process_info/*")),
    (REST, ("fb_memory_usage/free",)),
    (HOLDER, ("vm_name",)),
)
"""Reason to patterns of names; `*` stands for anything. The first reason that fits counts."""

_COMPILED = tuple(
    (why, re.compile("|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in patterns)))
    for why, patterns in UNREAD
)
_AGAIN = re.compile(r"\[[0-9]+\]$")


def why_unread(name: str) -> str | None:
    """Return why a field or path is left alone on purpose, or None if nothing is said of it here."""
    bare = _AGAIN.sub("", name)
    return next((why for why, patterns in _COMPILED if patterns.fullmatch(bare)), None)
