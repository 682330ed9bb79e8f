"""Themes of metrics, by which lists of readings are grouped for people. Pure."""

import re

_PATTERN_TEXTS = (
    ("links", r"pcie_|nvlink|nvswitch|c2c|fabric|infiniband"),
    ("state and errors", r"ecc_(?!mode)|remap|retired|xid|sram|recovery|repair|gpu_state$|problem"),
    ("MIG", r"mig_"),
    ("vGPU", r"vgpu"),
    ("Kubernetes", r"kubernetes"),
    ("guest", r"^guest_"),
    ("processes", r"processes"),
    ("temperature and fans", r"temperature|fan_speed"),
    ("power and energy", r"power|energy"),
    ("clocks", r"clock"),
    ("memory", r"memory_(?!activity|bus_width)|bar1|swap"),
    ("CPU and load", r"^host_cpu|^host_load|^host_pressure"),
    ("activity", r"activity_ratio|utilization|occupancy|performance_state"),
    ("disks", r"filesystem|disk|root_device"),
    ("network", r"^host_network"),
    (
        "driver and services",
        r"driver|library|cuda_version|dcgm|service|log_lost|nvidia_devices|gpus_released|confidential",
    ),
    ("modes", r"_mode|gsp_firmware_mode|gpu_display|accounting"),
    ("identity", r""),
)
"""Theme and pattern of the names of its metrics; the first that matches counts."""

_PATTERNS = tuple((theme, re.compile(pattern)) for theme, pattern in _PATTERN_TEXTS)

THEMES = (
    "activity", "memory", "temperature and fans", "power and energy", "clocks", "state and errors", "links",
    "processes", "MIG", "vGPU", "modes", "CPU and load", "disks", "network", "driver and services", "guest",
    "Kubernetes", "identity",
)  # fmt: skip
"""Themes in the order in which they are shown."""


def theme_of(metric: str) -> str:
    """Return the theme of a metric; `identity` for those that fit no other."""
    name = metric.partition("{")[0]
    return next(theme for theme, pattern in _PATTERNS if pattern.search(name))


def theme_order(metric: str) -> int:
    """Return the position of the metric's theme."""
    return THEMES.index(theme_of(metric))
