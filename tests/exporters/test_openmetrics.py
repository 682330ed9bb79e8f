"""OpenMetrics page: accepted by strict parsers, with the content of the text page."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.delivery.export import AgentStats, LaneStats, QueueStats, SendStats
from gpufleet.exporters.agent_page import DIALECT_WRITERS
from gpufleet.exporters.exposition import MetricsPage, PageFormat, format_labels
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from tests.support.golden import check_golden
from tests.support.openmetrics import check_by_promtool, openmetrics_series, text_series
from tests.support.pages import agent_page
from tests.support.snapshots import example_snapshot

GOLDEN = Path(__file__).parent / "golden"


def pages() -> tuple[bytes, bytes]:
    """Return the page of an agent with every family, in OpenMetrics and as text."""
    stats = AgentStats(
        started_at=1_767_225_600_000_000_000,
        lanes={("host", "fast"): LaneStats(passes=3, failures=1)},
        send=SendStats(batches=5, acknowledged=4, last_success=1_767_225_601_500_000_000),
        queue=QueueStats(records=1, bytes=700),
    )
    dialects = ("gpufleet", "dcgm-exporter", *DIALECT_WRITERS)
    openmetrics = agent_page(example_snapshot(), stats, dialects, openmetrics=True)
    return openmetrics, agent_page(example_snapshot(), stats, dialects)


def test_openmetrics_page_matches_its_golden_file() -> None:
    check_golden(GOLDEN / "metrics.om.txt", pages()[0])


def test_openmetrics_page_equals_the_text_page() -> None:
    openmetrics, text = pages()
    assert openmetrics_series(openmetrics) == text_series(text)


@pytest.mark.system
def test_prometheus_reads_the_openmetrics_page(peer: Callable[[str], Path], tmp_path: Path) -> None:
    check_by_promtool(peer("promtool"), pages()[0], tmp_path)


def test_types_and_units_of_families() -> None:
    lines = pages()[0].decode().splitlines()
    assert "# TYPE gpufleet_gpu_energy_joules counter" in lines
    assert "# UNIT gpufleet_gpu_energy_joules joules" in lines
    assert "# UNIT gpufleet_gpu_power_watts watts" in lines
    assert "# UNIT gpufleet_measured_timestamp_seconds seconds" in lines
    # Counters of dcgm-exporter have no `_total`; dashboards use the names without it.
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown" in lines
    assert any(line.startswith("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{") for line in lines)


def test_family_names_without_total_are_unique() -> None:
    names = [
        name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else name for name, metric in CATALOGUE.items()
    ]
    assert len(names) == len(set(names))


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from([0, 1.5, float("inf"), 2**63]))
def test_any_text_can_be_a_label_and_a_help(value: str, text: str, number: float) -> None:
    page = MetricsPage()
    page.declare("x_bytes_total", "counter", f"help {text}".encode("utf-8", "replace").decode(), "bytes")
    page.add("x_bytes_total", format_labels({"label": value, "other": "y"}), number)
    found = openmetrics_series(page.encode(PageFormat.OPENMETRICS))
    label = value.encode("utf-8", "replace").decode()
    assert found == {("x_bytes_total", frozenset({("label", label), ("other", "y")})): number}
