"""Generated page docs/hardware.md: matches the catalogue and the captures.

`GPUFLEET_UPDATE_GOLDEN=1` renders it again.
"""

from pathlib import Path

from gpufleet.model.catalogue import CATALOGUE, Subject
from tests.support.golden import check_golden
from tests.support.hardware import render

PAGE = Path(__file__).parents[3] / "docs" / "hardware.md"


def test_hardware_page_is_current() -> None:
    check_golden(PAGE, render().encode())


def test_hardware_page_lists_every_device_metric() -> None:
    page = render()
    for name, metric in CATALOGUE.items():
        if Subject.MACHINE not in metric.subjects and metric.nvml:
            assert f"| `{name}` |" in page


def test_hardware_page_separates_captured_from_unproven() -> None:
    rows = {line.split("`")[1]: line for line in render().splitlines() if line.startswith("| `gpu_")}
    assert rows["gpu_power_watts"].endswith("| never | yes | yes | yes | yes | yes | yes | no |")
    assert rows["gpu_fan_speed_ratio"].split("|")[4].strip() == "no"  # a T4 has no fan
    assert "gpu_power_watts" not in render().split("## Without any evidence")[1]
