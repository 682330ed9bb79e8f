"""docs/hardware.md says what the catalogue and the captures say; `GPUFLEET_UPDATE_GOLDEN=1` renders it anew."""

from pathlib import Path

from gpufleet.model.catalogue import CATALOGUE, Subject
from tests.support.golden import check_golden
from tests.support.hardware import render

PAGE = Path(__file__).parents[3] / "docs" / "hardware.md"


def test_the_page_is_the_rendered_one() -> None:
    check_golden(PAGE, render().encode())


def test_every_reading_of_a_device_is_on_it() -> None:
    page = render()
    for name, metric in CATALOGUE.items():
        if Subject.MACHINE not in metric.subjects and metric.nvml:
            assert f"| `{name}` |" in page


def test_what_was_seen_is_told_apart_from_what_was_not() -> None:
    rows = {line.split("`")[1]: line for line in render().splitlines() if line.startswith("| `gpu_")}
    assert rows["gpu_power_watts"].endswith("| never | yes | yes | yes | yes | yes | yes | no |")
    assert rows["gpu_fan_speed_ratio"].split("|")[4].strip() == "no"  # a T4 has no fan of its own
    assert "gpu_power_watts" not in render().split("## Without any evidence")[1]
