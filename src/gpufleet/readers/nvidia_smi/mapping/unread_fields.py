"""Fields that nvidia-smi prints and this reader deliberately does not read, with the reason.

There are no patterns. A name that is neither here nor in the tables of read fields is reported as unknown. A test
ensures that the captured outputs have no unknown name, and that each name here occurs in one of them.
"""

import re

LATER = "not implemented yet"
SAME = "redundant with a value that is read"
ELSEWHERE = "read by the host reader"
PARTS = "part of the PCI address or identity, which is read as a whole, or read from the kernel by the PCI scan"
SETTING = "setting of graphics or legacy boards, not relevant for compute GPUs"
HEADLESS = "printed as Yes for H100 and H200, which have no display output"
SAMPLED = "sample of the last 20 ms, not a rate: it does not cover the time between two samples"
ENCODING = "statistics of video sessions: not implemented yet"
ACCOUNTING = "accounting of ended processes: not implemented yet"
CATALOGUED = "list of possible settings, not a reading"
WHO = "program paths can contain private data: processes are identified by process ids"
REST = "for a vGPU instance the host's count of unused memory, not the free memory inside the guest"
HOLDER = "virtual machine names are private to the owner: machines are identified by UUID"

UNREAD: dict[str, str] = {
    name: why
    for why, names in (
        (
            LATER,
            """
            bar1_memory_usage/free board_id capabilities/egm cc_protected_memory_usage/free
            conf_compute_protected_memory_usage/free dramEncryption.mode.current dramEncryption.mode.pending
            dram_encryption_mode/current dram_encryption_mode/current_dram_encryption dram_encryption_mode/pending
            dram_encryption_mode/pending_dram_encryption edpp_multiplier gpu_part_number gpu_pdi
            gpu_power_readings/power_state gpu_power_readings/gpu_base_power/current_base_power
            gpu_power_readings/gpu_base_power/default_base_power
            gpu_power_readings/gpu_base_power/requested_base_power inforom_time_data/time_run
            temperature/gpu_target_temperature_specification gpu_reset_status/drain_and_reset_recommended
            gsp.mode.default inforom.checksum_validation inforom.ecc inforom.oem
            inforom.pwr inforom_bbx_flush/latest_duration inforom_bbx_flush/latest_timestamp
            inforom_bbx_object_flush/latest_duration inforom_bbx_object_flush/latest_timestamp
            inforom_version/ecc_object inforom_version/oem_object inforom_version/power_management_object
            inforom_version/pwr_object max_clocks/video max_clocks/video_clock max_customer_boost_clocks/graphics
            max_customer_boost_clocks/graphics_clock module_power_readings/power_state pdi platform.peer_type
            platform_info/peer_type platforminfo/peer_type power_profiles/power_profile_enforced_profiles
            power_profiles/power_profile_requested_profiles power_smoothing
            power_smoothing.admin_override.primary_floor_act_offset
            power_smoothing.admin_override.primary_floor_act_window_multiplier
            power_smoothing.admin_override.primary_floor_tar_window_multiplier
            power_smoothing.admin_override.secondary_power_floor power_smoothing.curr_profile.primary_floor_act_offset
            power_smoothing.curr_profile.primary_floor_act_window_multiplier
            power_smoothing.curr_profile.primary_floor_tar_window_multiplier
            power_smoothing.curr_profile.secondary_power_floor power_smoothing.delayed_power_smoothing_supported
            power_smoothing.min_primary_floor_activation_offset power_smoothing.min_primary_floor_activation_point
            power_smoothing.primary_power_floor power_smoothing.secondary_power_floor
            power_smoothing.window_multiplier product_brand protected_memory.free
            retired_pages/double_bit_retirement/retired_pagelist
            retired_pages/multiple_single_bit_retirement/retired_pagelist shared_bar1_memory/free
            temperature/gpu_target_temperature vgpu_device_capability.fractional_multiVgpu
            vgpu_device_capability.heterogeneous_timeSlice_profile
            vgpu_device_capability.heterogeneous_timeSlice_sizes vgpu_device_capability.homogeneous_placements
            vgpu_device_capability.mig_timeSlicing vgpu_device_capability.mig_timeSlicing_mode
            vgpu_driver_capability.heterogenous_multivGPU vgpu_type voltage/graphics voltage/graphics_volt
            workload_power_profiles/enforced_profiles workload_power_profiles/requested_profiles
            """,
        ),
        (
            SAME,
            """
            clocks_event_reasons.applications_clocks_setting clocks_event_reasons.gpu_idle
            clocks_event_reasons.hw_power_brake_slowdown clocks_event_reasons.hw_slowdown
            clocks_event_reasons.hw_thermal_slowdown clocks_event_reasons.sw_power_cap
            clocks_event_reasons.sw_thermal_slowdown clocks_event_reasons.sync_boost
            """,
        ),
        (
            ELSEWHERE,
            """
            hostname
            """,
        ),
        (
            PARTS,
            """
            pci.baseClass pci.bus pci.device pci.device_id pci.domain pci.subClass pci.sub_device_id
            pci/atomic_caps_inbound pci/atomic_caps_outbound pci/base_classcode pci/bridge_chip/firmware
            pci/bridge_chip/type pci/bus pci/device pci/device_id pci/domain
            pci/gpu_link_info/pcie_generation/device_current pci/gpu_link_info/pcie_generation/device_max
            pci/gpu_link_info/pcie_generation/host_max pci/pci_base_class pci/pci_bridge_chip/bridge_chip_fw
            pci/pci_bridge_chip/bridge_chip_type pci/pci_bus pci/pci_device pci/pci_device_id pci/pci_domain
            pci/pci_gpu_link_info/pcie_gen/device_current_link_gen pci/pci_gpu_link_info/pcie_gen/max_device_link_gen
            pci/pci_gpu_link_info/pcie_gen/max_host_link_gen pci/pci_sub_class pci/pci_sub_system_id pci/sub_classcode
            pci/sub_system_id pcie.link.gen.gpucurrent pcie.link.gen.gpumax pcie.link.gen.hostmax
            """,
        ),
        (
            SETTING,
            """
            applications_clocks/graphics applications_clocks/graphics_clock applications_clocks/mem_clock
            applications_clocks/memory clock_policy/auto_boost clock_policy/auto_boost_default
            clocks.applications.graphics clocks.applications.memory clocks.default_applications.graphics
            clocks.default_applications.memory default_applications_clocks/graphics
            default_applications_clocks/graphics_clock default_applications_clocks/mem_clock
            default_applications_clocks/memory deferred_clocks/mem_clock deferred_clocks/memory driver_model.current
            driver_model.pending driver_model/current driver_model/current_dm driver_model/pending
            driver_model/pending_dm fru_part_number gom.current gom.pending gpu_fru_part_number
            gpu_operation_mode/current gpu_operation_mode/current_gom gpu_operation_mode/pending
            gpu_operation_mode/pending_gom ibmnpu/relaxed_ordering_mode multigpu_board power.management
            sparse_operation_mode supported_gpu_target_temp/gpu_target_temp_max
            supported_gpu_target_temp/gpu_target_temp_min
            """,
        ),
        (
            HEADLESS,
            """
            display_attached
            """,
        ),
        (
            SAMPLED,
            """
            pci/rx_throughput pci/rx_util pci/tx_throughput pci/tx_util
            """,
        ),
        (
            ENCODING,
            """
            encoder.stats.averageFps encoder.stats.averageLatency encoder.stats.sessionCount
            encoder_stats/active_sessions encoder_stats/average_fps encoder_stats/average_latency
            encoder_stats/session_count fbc_stats/active_sessions fbc_stats/average_fps fbc_stats/average_latency
            fbc_stats/session_count
            """,
        ),
        (
            ACCOUNTING,
            """
            accounted_processes accounting.buffer_size accounting_buffer_size accounting_mode_buffer_size
            """,
        ),
        (
            CATALOGUED,
            """
            supported_clocks/supported_mem_clock/supported_graphics_clock supported_clocks/supported_mem_clock/value
            """,
        ),
        (
            WHO,
            """
            name
            """,
        ),
        (
            REST,
            """
            fb_memory_usage/free
            """,
        ),
        (
            HOLDER,
            """
            vm_name
            """,
        ),
    )
    for name in names.split()
}
"""CSV field, or path of XML and text, to the reason why it is not read."""

_AGAIN = re.compile(r"\[[0-9]+\]$")


def why_unread(name: str) -> str | None:
    """Return why a field or path is deliberately unread, or None if it is not in the table."""
    return UNREAD.get(_AGAIN.sub("", name))
