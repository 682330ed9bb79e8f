"""Themes of metrics."""

import pytest

from gpufleet.exporters.themes import theme_of, theme_order
from gpufleet.model.catalogue import CATALOGUE


@pytest.mark.parametrize(
    ("metric", "theme"),
    [
        ("gpu_utilization_ratio", "activity"),
        ("gpu_memory_temperature_celsius", "temperature and fans"),
        ("gpu_memory_activity_ratio", "activity"),
        ("gpu_memory_clock_hertz", "clocks"),
        ("gpu_ecc_mode", "modes"),
        ("gpu_ecc_corrected_errors_total", "state and errors"),
        ("gpu_nvlink_errors_total{link=3}", "links"),
        ("host_network_up{interface=power0}", "network"),
        ("gpu_serial", "identity"),
        ("plugin_metric", "identity"),
    ],
)
def test_metric_has_a_theme(metric: str, theme: str) -> None:
    assert theme_of(metric) == theme


def test_every_metric_of_the_catalogue_has_a_place() -> None:
    assert len({theme_order(name) for name in CATALOGUE}) > 15
