"""Comparison of nvitop-exporter's metrics with ours, for documentation: neither imported nor exported.

Names and units are from its source at 0bcb5e02; its client library appends the unit to the name. The names have no
common prefix, so a page cannot be recognised, and NaN and 0 stand for failed reads.
"""

_MIB, _PERCENT = "MiB", "Percentage"
_PROCESS = "per process: processes are in `/v1/snapshot`, not in metrics"
_QUOTIENT = "a quotient of other series"
_DIFFERENCE = "a difference of other series"
_DISK = "not collected: disk traffic is not related to GPUs"

MAPPED: dict[str, str] = {
    f"gpu_utilization_{_PERCENT}": "gpu_utilization_ratio",
    f"gpu_memory_utilization_{_PERCENT}": "gpu_memory_activity_ratio",
    f"gpu_encoder_utilization_{_PERCENT}": "gpu_encoder_utilization_ratio",
    f"gpu_decoder_utilization_{_PERCENT}": "gpu_decoder_utilization_ratio",
    f"gpu_memory_total_{_MIB}": "gpu_memory_total_bytes",
    f"gpu_memory_used_{_MIB}": "gpu_memory_used_bytes",
    f"gpu_memory_free_{_MIB}": "gpu_memory_free_bytes",
    "gpu_clock_sm_MHz": "gpu_sm_clock_hertz",
    "gpu_clock_memory_MHz": "gpu_memory_clock_hertz",
    "gpu_clock_graphics_MHz": "gpu_graphics_clock_hertz",
    "gpu_clock_video_MHz": "gpu_video_clock_hertz",
    "gpu_power_usage_W": "gpu_power_watts",
    "gpu_power_limit_W": "gpu_power_limit_watts",
    "gpu_temperature_C": "gpu_temperature_celsius",
    f"gpu_fan_speed_{_PERCENT}": "gpu_fan_speed_ratio",
    "gpu_pcie_tx_throughput_MiBps": "gpu_pcie_transmit_bytes_total",
    "gpu_pcie_rx_throughput_MiBps": "gpu_pcie_receive_bytes_total",
    "gpu_nvlink_total_tx_throughput_MiBps": "gpu_nvlink_transmit_bytes_total",
    "gpu_nvlink_total_rx_throughput_MiBps": "gpu_nvlink_receive_bytes_total",
    "gpu_nvlink_tx_throughput_MiBps": "gpu_nvlink_link_transmit_bytes_total",
    "gpu_nvlink_rx_throughput_MiBps": "gpu_nvlink_link_receive_bytes_total",
    "host_uptime_Second": "host_boot_timestamp_seconds",
    f"host_cpu_percent_{_PERCENT}": "host_cpu_utilization_ratio",
    f"host_virtual_memory_total_{_MIB}": "host_memory_total_bytes",
    f"host_virtual_memory_free_{_MIB}": "host_memory_free_bytes",
    f"host_swap_memory_total_{_MIB}": "host_swap_total_bytes",
    f"host_swap_memory_free_{_MIB}": "host_swap_free_bytes",
    f"host_load_average_1m_{_PERCENT}": "host_load_1m",
    f"host_load_average_5m_{_PERCENT}": "host_load_5m",
    f"host_load_average_15m_{_PERCENT}": "host_load_15m",
    f"host_net_io_tx_data_{_MIB}": "host_network_transmit_bytes_total",
    f"host_net_io_rx_data_{_MIB}": "host_network_receive_bytes_total",
    "host_net_io_tx_packets_Packet": "host_network_transmit_packets_total",
    "host_net_io_rx_packets_Packet": "host_network_receive_packets_total",
    f"host_disk_usage_total_{_MIB}": "host_filesystem_size_bytes",
    f"host_disk_usage_free_{_MIB}": "host_filesystem_available_bytes",
}
"""nvitop name to catalogue metric."""

UNMAPPED: dict[str, str] = {
    "nvitop_info": "texts: `gpufleet_host_info` has the versions, `gpufleet_nvidia_devices` the count",
    f"gpu_memory_percent_{_PERCENT}": _QUOTIENT,
    "gpu_nvlink_mean_tx_throughput_MiBps": _QUOTIENT,
    "gpu_nvlink_mean_rx_throughput_MiBps": _QUOTIENT,
    f"host_virtual_memory_used_{_MIB}": _DIFFERENCE,
    f"host_virtual_memory_percent_{_PERCENT}": _QUOTIENT,
    f"host_swap_memory_used_{_MIB}": _DIFFERENCE,
    f"host_swap_memory_percent_{_PERCENT}": _QUOTIENT,
    f"host_disk_io_read_data_{_MIB}": _DISK,
    f"host_disk_io_write_data_{_MIB}": _DISK,
    f"host_disk_usage_used_{_MIB}": _DIFFERENCE,
    f"host_disk_usage_percent_{_PERCENT}": _QUOTIENT,
    "process_info": _PROCESS,
    "process_running_time_Second": _PROCESS,
    f"process_cpu_percent_{_PERCENT}": _PROCESS,
    f"process_rss_memory_{_MIB}": _PROCESS,
    f"process_memory_percent_{_PERCENT}": _PROCESS,
    f"process_gpu_memory_{_MIB}": _PROCESS,
    f"process_gpu_sm_utilization_{_PERCENT}": _PROCESS,
    f"process_gpu_memory_utilization_{_PERCENT}": _PROCESS,
    f"process_gpu_encoder_utilization_{_PERCENT}": _PROCESS,
    f"process_gpu_decoder_utilization_{_PERCENT}": _PROCESS,
}
"""nvitop name to the reason for having no catalogue metric."""
