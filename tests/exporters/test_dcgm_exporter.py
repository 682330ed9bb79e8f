"""Page in the dialect of dcgm-exporter, compared with pages of dcgm-exporter itself."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.decoding import decode
from gpufleet.decoding.format import CapturedInput
from gpufleet.delivery.export import AgentStats
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.exporters.dcgm_exporter import add_dcgm, format_dcgm_value
from gpufleet.exporters.exposition import MetricsPage
from gpufleet.model.snapshot import Snapshot
from tests.support.pages import agent_page
from tests.support.snapshots import example_snapshot

PAGES = Path(__file__).parents[1] / "data" / "exposition"


def rendered(snapshot: Snapshot) -> list[str]:
    page = MetricsPage()
    add_dcgm(page, snapshot)
    return page.encode().decode().splitlines()


@pytest.mark.parametrize("name", ["dcgm-exporter-l40s-vm", "dcgm-exporter-h100-vgpu-guest"])
def test_page_of_dcgm_exporter_round_trips(name: str) -> None:
    """Series, labels, their order and the numbers are those of the page that was read."""
    text = (PAGES / f"{name}.txt").read_text()
    _, decoded = decode(CapturedInput(content=text.encode(), name="file", at=1_790_000_000_000_000_000))
    (snapshot,) = decoded.snapshots
    ours = [line for line in rendered(snapshot) if not line.startswith("#")]
    theirs = [
        line
        for line in text.splitlines()
        if not line.startswith("#")
        and line.partition("{")[0] in DCGM_EXPORTER.families
        and not (line.endswith(" 0") and "MEMORY_TEMP" in line)  # placeholders are not written
        and not ("ENC_UTIL" in line and "H100" in line)  # the chip has no encoder
        and "XID_ERRORS" not in line
    ]
    assert len(ours) == len(theirs) >= 8
    for our, their in zip(sorted(ours), sorted(theirs), strict=True):
        # Two labels do not come from the values of this page; pod labels come from the attribution.
        their = re.sub(r',DCGM_FI_DRIVER_VERSION="[^"]*"(,[^}]*)?}', "}", their).replace(
            'device="nvidia0"', 'device=""'
        )
        our = re.sub(r',hostname="[^"]*",DCGM_FI_DRIVER_VERSION="[^"]*"}', "}", our)
        assert our == their


def test_label_order_is_that_of_dcgm_exporter() -> None:
    series = next(line for line in rendered(example_snapshot()) if line.startswith("DCGM_FI_DEV_GPU_UTIL"))
    assert re.findall(r'(\w+)="', series) == [
        *("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "hostname", "DCGM_FI_DRIVER_VERSION")
    ]


def test_reference_parser_reads_the_page() -> None:
    text = "\n".join(rendered(example_snapshot())) + "\n"
    families = {family.name: family for family in text_string_to_metric_families(text)}
    used = families["DCGM_FI_DEV_FB_USED"].samples
    assert used[0].value == 1024
    power = families["DCGM_FI_DEV_POWER_USAGE"].samples
    assert power[0].value == 312.5


def test_mig_device_series_differ_from_those_of_its_gpu() -> None:
    """Prometheus drops empty labels: a MIG device without an instance id would repeat the series of its GPU."""
    lines = [line for line in rendered(example_snapshot()) if "DCGM_FI_DEV_FB_USED{" in line]
    assert len(lines) == 2
    assert [line.count('GPU_I_ID="1"') for line in lines] == [0, 1]
    snapshot = example_snapshot()
    unattributed = tuple(msgspec.structs.replace(one, instance=None) for one in snapshot.devices)
    lines = rendered(msgspec.structs.replace(snapshot, devices=unattributed))
    assert len([line for line in lines if "DCGM_FI_DEV_FB_USED{" in line]) == 1


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", 0.87, "87"),
        ("DCGM_FI_DEV_GPU_UTIL", 0.29, "29"),
        ("DCGM_FI_DEV_FB_USED", (1 << 20) * 3 + 5, "3"),
        ("DCGM_FI_DEV_SM_CLOCK", 1_980_000_000, "1980"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5_551_899.58, "5551899580"),
        ("DCGM_FI_DEV_POWER_USAGE", 35.686, "35.686000"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 0.000131, "0.000131"),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 2**60 + 1, str(2**60 + 1)),
    ],
)
def test_values_are_in_the_units_of_dcgm_exporter(name: str, ours: float, theirs: str) -> None:
    assert format_dcgm_value(DCGM_EXPORTER.families[name], ours) == theirs


def test_page_has_only_the_configured_dialects() -> None:
    snapshot, stats = example_snapshot(), AgentStats(started_at=1, lanes={})

    def page(*dialects: str) -> str:
        return agent_page(snapshot, stats, dialects).decode()

    both, alone = page("gpufleet", "dcgm-exporter"), page("dcgm-exporter")
    assert "DCGM_FI_DEV_GPU_UTIL{" in both
    assert "gpufleet_gpu_utilization_ratio{" in both
    assert "gpufleet_gpu_utilization_ratio{" not in alone
    assert "gpufleet_agent_start_timestamp_seconds" in alone
    assert "DCGM_" not in page("gpufleet")
