"""Metrics page: golden file, strict parsers, and content."""

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.delivery.export import AgentStats, LaneStats, QueueStats, SendStats
from gpufleet.exporters.exposition import MetricsPage, format_labels, format_number
from gpufleet.exporters.prometheus import DEVICE_LABEL_TEXTS, PrometheusExporter
from gpufleet.model.catalogue import CATALOGUE, MetricKind
from gpufleet.model.holdings import UnresolvedDevices
from tests.support.golden import check_golden
from tests.support.pages import agent_page
from tests.support.snapshots import example_snapshot

GOLDEN = Path(__file__).parent / "golden"


def whole_page() -> bytes:
    stats = AgentStats(
        started_at=1_767_225_600_000_000_000,
        lanes={("host", "fast"): LaneStats(passes=3, failures=1)},
        send=SendStats(batches=5, acknowledged=4, last_success=1_767_225_601_500_000_000),
        queue=QueueStats(records=1, bytes=700),
    )
    return agent_page(example_snapshot(), stats)


def series(page: bytes) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Parse with the reference parser; fail on a duplicate series."""
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(page.decode()):
        assert family.documentation
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            assert labels not in found.setdefault(sample.name, {}), (sample.name, labels)
            found[sample.name][labels] = sample.value
    return found


def of(page: bytes, family: str, /, **labels: str) -> list[float]:
    return [value for known, value in series(page).get(family, {}).items() if labels.items() <= dict(known).items()]


def test_metrics_page_matches_its_golden_file() -> None:
    check_golden(GOLDEN / "metrics.txt", whole_page())


@pytest.mark.system
def test_promtool_has_no_findings(peer: Callable[[str], Path]) -> None:
    done = subprocess.run([peer("promtool"), "check", "metrics"], input=whole_page(), capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_absent_reading_has_only_an_absence_series() -> None:
    page = PrometheusExporter().render(example_snapshot())
    assert of(page, "gpufleet_gpu_power_watts") == [312.5]
    assert of(page, "gpufleet_gpu_utilization_ratio") == [0.0]
    uuid = "GPU-00000001-0000"
    assert of(page, "gpufleet_reading_absent", metric="gpu_power_watts", reason="timeout", uuid=uuid) == [1.0]
    vfio = of(page, "gpufleet_reading_absent", metric="gpu_power_watts", reason="bound_to_vfio", side="pci_only")
    assert vfio == [1.0]
    network = "host_network_speed_bytes_per_second"
    assert of(page, "gpufleet_reading_absent", metric=network, reason="no_data", dim_interface="lo") == [1.0]
    assert of(page, "gpufleet_reading_absent", dim_reason="hw_slowdown", reason="not_supported") == [1.0]


def test_state_metric_has_a_series_per_state() -> None:
    page = PrometheusExporter().render(example_snapshot())
    states = CATALOGUE["gpu_state"].states
    for uuid, inside in (("GPU-00000000-0000", "ok"), ("GPU-00000001-0000", "hung")):
        for state in states:
            assert of(page, "gpufleet_gpu_state", uuid=uuid, state=state) == [float(state == inside)]


def test_every_device_has_an_info_series_with_its_texts() -> None:
    page = PrometheusExporter().render(example_snapshot())
    assert of(page, "gpufleet_gpu_info", serial="165", name="NVIDIA H200", kind="gpu") == [1.0]
    assert len(of(page, "gpufleet_gpu_info")) == 4
    assert of(page, "gpufleet_host_info", nvidia_driver_version="580.95.05") == [1.0]


def test_unresolved_devices_are_counted_by_source() -> None:
    unresolved = UnresolvedDevices(counts={"kubelet": 3, "slurm": 0})
    page = PrometheusExporter().render(msgspec.structs.replace(example_snapshot(), unresolved=unresolved)).decode()
    (family,) = [one for one in text_string_to_metric_families(page) if one.name == "gpufleet_agent_unresolved_devices"]
    assert {sample.labels["source"]: sample.value for sample in family.samples} == {"kubelet": 3, "slurm": 0}


def test_integers_keep_every_digit() -> None:
    text = PrometheusExporter().render(example_snapshot()).decode()
    assert " 9223372036854775807\n" in text
    assert " 1152921504606846977\n" in text


def test_counter_names_end_with_total() -> None:
    for metric in CATALOGUE.values():
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total"), metric.name


def test_info_labels_do_not_clash_with_other_labels() -> None:
    beside = {"node", "uuid", "pci_address", "kind", "side", "name", "gpu", "profile", "gpu_instance"}
    beside |= {"compute_instance", "vm_id", "device_instance"}
    texts = [name for name, metric in CATALOGUE.items() if metric.kind is MetricKind.INFO]
    shown = {name.removeprefix("gpu_").removeprefix("host_") for name in texts if name not in DEVICE_LABEL_TEXTS}
    assert not shown & beside


def test_every_subject_has_reader_and_time_of_measurement() -> None:
    page = PrometheusExporter().render(example_snapshot())
    measured = "gpufleet_measured_timestamp_seconds"
    uuid = "GPU-00000000-0000"
    at = 1_767_225_600.0
    assert of(page, measured, uuid=uuid, reader="nvml", lane="fast", provenance="host_local_probe") == [at]
    assert of(page, measured, reader="pci", side="pci_only", provenance="unavailable") == [at]
    assert of(page, measured, reader="host", lane="slow", provenance="host_local_probe") == [at]


@given(st.text(max_size=40))
def test_any_text_can_be_a_label(value: str) -> None:
    page = MetricsPage()
    page.declare("x", "gauge", "a\\b\nc")
    page.add("x", format_labels({"label": value, "other": "y"}), 1)
    (family,) = text_string_to_metric_families(page.encode().decode())
    (sample,) = family.samples
    assert sample.labels == {"label": value.encode("utf-8", "replace").decode(), "other": "y"}


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (1, "1"), (0.1, "0.1")]
)
def test_numbers_are_written_in_the_text_format(value: float, text: str) -> None:
    assert format_number(value) == text
