"""`gpufleet dashboard render`."""

import json
from pathlib import Path

import pytest

from tests.support.command import gpufleet


@pytest.mark.parametrize(("dialect", "name"), [("native", "gpufleet_gpu_power_watts"), ("dcgm", "DCGM_FI_DEV_FB_USED")])
def test_dashboard_is_printed_or_written(dialect: str, name: str, tmp_path: Path) -> None:
    printed = gpufleet("dashboard", "render", "--dialect", dialect)
    assert printed.returncode == 0
    assert name in printed.stdout
    assert json.loads(printed.stdout)["templating"]["list"][0]["name"] == "datasource"
    file = tmp_path / "dashboard.json"
    assert gpufleet("dashboard", "render", "--dialect", dialect, "--output", str(file)).returncode == 0
    assert file.read_text() == printed.stdout


def test_dialect_without_dashboard_is_refused() -> None:
    done = gpufleet("dashboard", "render", "--dialect", "all-smi")
    assert done.returncode == 2
    assert "all-smi" in done.stderr
