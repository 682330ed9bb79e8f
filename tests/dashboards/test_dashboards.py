"""Dashboards: every queried series is exported, and Prometheus answers every query."""

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.dashboards.dcgm import dcgm_dashboard
from gpufleet.dashboards.grafana import COLUMNS, render_grafana
from gpufleet.dashboards.native import SECTIONS, native_dashboard
from gpufleet.dashboards.panel import Dashboard, Panel, PanelType
from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.catalogue import KUBERNETES_REPORTED, ROWS, Lane, Metric, MetricKind
from gpufleet.runtime import run_to_end
from tests.support.dashboard_queries import query_of_all
from tests.support.everything import snapshot_of_everything
from tests.support.grafana_schema import schema_violations
from tests.support.promtool import Expected, RuleCase, labelled, run_cases
from tests.support.serving import serving
from tests.support.tsdb import prometheus
from tests.support.waiting import wait_until

DASHBOARDS = {"native": native_dashboard(), "dcgm": dcgm_dashboard()}
EACH = pytest.mark.parametrize("dialect", DASHBOARDS)

NAME = re.compile(r"\b(?:gpufleet|DCGM)_[A-Za-z0-9_]+")


def page(growth: int = 0) -> bytes:
    pages = AgentPages(("gpufleet", "dcgm-exporter"))
    snapshot = snapshot_of_everything(dt.datetime.now(dt.UTC), growth)
    pages.take(snapshot)
    run_to_end(pages.update(snapshot, AgentStats(started_at=1, lanes={})))
    return pages.page(openmetrics=False)


def panels(dashboard: Dashboard) -> list[Panel]:
    return [panel for row in dashboard.rows for panel in row.panels]


def queries(dashboard: Dashboard) -> list[str]:
    """Return every query with each variable set to match all."""
    return [query_of_all(query.expression) for panel in panels(dashboard) for query in panel.queries]


def metrics_of(panel: Panel) -> list[str]:
    """Return the names of the metrics in the panel's queries, without the prefix."""
    return [name for query in panel.queries for name in re.findall(r"gpufleet_(\w+)\{", query.expression)]


def is_constant(metric: Metric) -> bool:
    return metric.lane is Lane.STATIC and metric.kind not in (MetricKind.COUNTER, MetricKind.INFO)


@EACH
def test_every_queried_series_is_exported(dialect: str) -> None:
    exported = {series.name for series in TextParser().parse(page()).series}
    dashboard = DASHBOARDS[dialect]
    expressions = " ".join([*queries(dashboard), *(variable.query for variable in dashboard.variables)])
    names = set(NAME.findall(expressions))
    assert len(names) > 15
    assert names - exported == set()


def test_native_dashboard_has_every_metric_once() -> None:
    agent_metrics = [metric for metric in ROWS if metric.name not in KUBERNETES_REPORTED]
    assert [metric for _, metrics in SECTIONS for metric in metrics] == agent_metrics
    sections = native_dashboard().rows[2:]
    assert [row.title for row in sections] == [title for title, _ in SECTIONS]
    for row, (_, metrics) in zip(sections, SECTIONS, strict=True):
        queried = sorted(name for panel in row.panels for name in metrics_of(panel))
        assert queried == sorted(metric.name for metric in metrics if metric.kind is not MetricKind.INFO)
    below = [panel for row in sections for panel in row.panels]
    assert len({panel.title for panel in below}) > 0.9 * len(below)


def test_overview_begins_with_the_main_readings() -> None:
    overview = native_dashboard().rows[0].panels
    stats = [panel for panel in overview if panel.type is PanelType.STAT]
    charts = [panel for panel in overview if panel.type is not PanelType.STAT]
    assert overview[: len(stats)] == tuple(stats)
    assert [metrics_of(panel)[0] for panel in charts[:4]] == [
        "gpu_utilization_ratio",
        "gpu_memory_used_bytes",
        "gpu_temperature_celsius",
        "gpu_power_watts",
    ]
    assert {panel.type for panel in charts[4:8]} == {PanelType.BARS}
    assert all(re.search(r"\b(top|bottom)k\(10, ", panel.queries[0].expression) for panel in charts[4:8])
    assert metrics_of(charts[8]) == ["gpu_xid_events_total"]
    assert metrics_of(charts[9]) == ["gpu_last_xid", "gpu_last_xid_timestamp_seconds"]


def test_constants_and_times_are_tables() -> None:
    types = {
        name: panel.type for row in native_dashboard().rows[2:] for panel in row.panels for name in metrics_of(panel)
    }
    tables = {name for name, type_ in types.items() if type_ is PanelType.TABLE}
    assert {metric.name for metric in ROWS if metric.name in types and is_constant(metric)} <= tables
    assert {name for name in types if name.endswith("_timestamp_seconds")} <= tables
    assert {"gpu_memory_total_bytes", "host_memory_total_bytes", "host_cpus", "mig_multiprocessors"} <= tables
    assert not tables & {"gpu_power_watts", "gpu_memory_used_bytes", "gpu_state", "host_load_1m"}


def test_titles_write_acronyms_in_their_usual_form() -> None:
    usual = (
        "BAR1 CPU CUDA DCGM DRAM ECC FP16 FP32 FP64 GPU GPUs JPEG MIG MPS NUMA NVLink NVSwitch OFA PCIe SM SRAM VM vGPU"
    )
    forms = {form.lower(): form for form in [*usual.split(), "InfiniBand", "NVIDIA", "TPC", "XID", "XIDs"]}
    parts = {part for dashboard in DASHBOARDS.values() for panel in panels(dashboard) for part in panel.title.split()}
    assert {part for part in parts if forms.get(part.lower(), part) != part} == set()


@EACH
def test_utilization_has_one_spelling(dialect: str) -> None:
    text = render_grafana(DASHBOARDS[dialect])
    assert "tilization" in text
    assert "tilisation" not in text


@EACH
def test_rendered_dashboard_matches_the_schema_of_grafana(dialect: str) -> None:
    document = json.loads(render_grafana(DASHBOARDS[dialect]))
    assert schema_violations(document) == []
    document["graphTooltip"] = 7
    document["panels"][0]["options"]["bogus"] = 1
    document["panels"][0]["gridPos"]["w"] = "6"
    assert len(schema_violations(document)) == 3


def test_hidden_column_and_title_of_a_table() -> None:
    document = json.loads(render_grafana(native_dashboard()))
    (devices, _) = next(panel["panels"] for panel in document["panels"] if panel["title"] == "Inventory")
    organize = next(one["options"] for one in devices["transformations"] if one["id"] == "organize")
    assert organize["excludeByName"] == {"Time": True, "Value": True}
    assert organize["renameByName"]["name"] == "Model"
    xids = next(panel for panel in document["panels"] if panel["title"] == "Last XID of each GPU")
    assert [one["matcher"]["options"] for one in xids["fieldConfig"]["overrides"]] == ["Value #A", "Value #B"]
    assert {target["format"] for target in xids["targets"]} == {"table"}


@EACH
def test_rendered_dashboard_is_valid_for_grafana(dialect: str) -> None:
    document = json.loads(render_grafana(DASHBOARDS[dialect]))
    all_panels = [one for top in document["panels"] for one in (top, *top.get("panels", ()))]
    ids = [panel["id"] for panel in all_panels]
    assert len(ids) == len(set(ids))
    variables = {one["name"] for one in document["templating"]["list"]}
    for panel in all_panels:
        if panel["type"] == "row":
            continue
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(?!__|\d)(\w+)", target["expr"])) <= variables
    for group in (document["panels"], *(one["panels"] for one in document["panels"] if one.get("panels"))):
        assert_nothing_overlaps([one["gridPos"] for one in group])


def assert_nothing_overlaps(positions: list[dict[str, int]]) -> None:
    occupied: set[tuple[int, int]] = set()
    for position in positions:
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & occupied
        assert all(x < COLUMNS for x, _ in cells)
        occupied |= cells


@pytest.fixture(scope="module")
def query_prometheus(
    tmp_path_factory: pytest.TempPathFactory, peer: Callable[[str], Path]
) -> Iterator[Callable[[str], list[Any]]]:
    """Yield a query function of a real Prometheus that scrapes a page of all metrics with growing counters."""
    scrapes = iter(range(1, 1_000_000))
    folder = tmp_path_factory.mktemp("dashboards") / "prometheus"
    with (
        serving(lambda: page(next(scrapes))) as target,
        prometheus(peer("prometheus"), folder, target) as database,
    ):
        grown = 'count_over_time(gpufleet_gpu_energy_joules_total{uuid="GPU-1"}[1m]) >= 3'
        wait_until(lambda: database.query(grown), seconds=60, what="three scrapes")
        yield database.query


@pytest.mark.system
@pytest.mark.timeout(180)
@EACH
def test_prometheus_answers_every_query(dialect: str, query_prometheus: Callable[[str], list[Any]]) -> None:
    unanswered = [query for query in queries(DASHBOARDS[dialect]) if not query_prometheus(query)]
    assert unanswered == []


@pytest.mark.system
def test_share_of_memory_counts_gpus_with_a_total(peer: Callable[[str], Path], tmp_path: Path) -> None:
    sized, unsized = ({"node": "n1", "uuid": uuid, "kind": "gpu", "side": "host"} for uuid in ("GPU-a", "GPU-b"))
    used = {
        labelled("gpufleet_gpu_memory_used_bytes", one): f"{value}x10" for one, value in ((sized, 10), (unsized, 80))
    }
    stat, by_node = (one for one in native_dashboard().rows[0].panels if one.title.startswith("Memory in use"))
    results = ((stat, "{}"), (by_node, '{node="n1"}'))
    expected = [Expected(query_of_all(panel.queries[0].expression), {labels: 0.1}) for panel, labels in results]
    case = RuleCase("shares", used | {labelled("gpufleet_gpu_memory_total_bytes", sized): "100x10"}, expected)
    run_cases(peer("promtool"), "groups: []", [case], tmp_path)


@pytest.mark.system
def test_means_leave_out_nodes_without_values_of_idle_gpus(peer: Callable[[str], Path], tmp_path: Path) -> None:
    busy, idle, other = (
        {"node": node, "uuid": uuid, "kind": "gpu", "side": "host"}
        for node, uuid in (("n1", "GPU-a"), ("n1", "GPU-b"), ("n2", "GPU-c"))
    )
    series = {labelled("gpufleet_gpu_memory_total_bytes", one): "100x10" for one in (busy, idle, other)}
    for name, metric in (("gpu_utilization_ratio", 0.5), ("gpu_memory_used_bytes", 50)):
        series |= {labelled(f"gpufleet_{name}", one): f"{metric}x10" for one in (busy, other)}
        absent = {"metric": name, "reason": "ambiguous_zero", "reader": "exporter"}
        series[labelled("gpufleet_reading_absent", {**idle, **absent})] = "1x10"
        series[labelled("gpufleet_reading_absent", {**other, **absent})] = "1x10"  # another reader has the value
    titles = {"Utilization": "{}", "Memory in use": "{}"}
    titles |= {f"{title} by node": '{node="n2"}' for title in titles}
    shown = {panel.title: panel for panel in native_dashboard().rows[0].panels}
    expected = [Expected(query_of_all(shown[title].queries[0].expression), {of: 0.5}) for title, of in titles.items()]
    idle_only = {name: value for name, value in series.items() if "n2" not in name}
    none = [Expected(one.query, {}) for one in expected]
    cases = [RuleCase("two nodes", series, expected), RuleCase("no whole node", idle_only, none)]
    run_cases(peer("promtool"), "groups: []", cases, tmp_path)


@pytest.mark.system
def test_gpus_without_a_state_are_counted(peer: Callable[[str], Path], tmp_path: Path) -> None:
    read = {"node": "n1", "uuid": "GPU-a", "pci_address": "0000:10:00.0", "kind": "gpu", "side": "host"}
    unread, bound = (
        {"node": "n1", "pci_address": f"0000:{slot}:00.0", "kind": "gpu", "side": "pci_only"} for slot in (11, 12)
    )
    guest = {"node": "n1", "uuid": "GPU-c", "kind": "gpu", "side": "guest", "vm_name": "vm-1"}
    imported = {"node": "n2", "uuid": "GPU-d", "kind": "gpu", "side": "host"}
    states = (("ok", 1), ("lost", 0))
    series = {labelled("gpufleet_gpu_info", one): "1x10" for one in (read, unread, bound, guest)}
    series |= {
        labelled("gpufleet_gpu_state", {**one, "state": state}): f"{value}x10"
        for one in (read, guest)
        for state, value in states
    }
    series |= {
        labelled("gpufleet_reading_absent", {**one, "metric": "gpu_state", "reason": reason}): "1x10"
        for one, reason in ((unread, "no_driver"), (bound, "bound_to_vfio"))
    }
    series[labelled("gpufleet_gpu_temperature_celsius", imported)] = "40x10"
    shown = {panel.title: panel for panel in native_dashboard().rows[0].panels}
    results = {
        "GPUs": {"{}": 4},
        "GPUs not ok": {"{}": 1},
        "GPUs by state": {'{state="ok"}': 2, '{state="no_driver"}': 1, '{state="bound_to_vfio"}': 1},
    }
    expected = [Expected(query_of_all(shown[title].queries[0].expression), result) for title, result in results.items()]
    run_cases(peer("promtool"), "groups: []", [RuleCase("states", series, expected)], tmp_path)


@pytest.mark.system
def test_each_gpu_of_dcgm_exporter_counts_once(peer: Callable[[str], Path], tmp_path: Path) -> None:
    split = {"Hostname": "n1", "gpu": "0", "UUID": "GPU-a"}
    integrated, shared = ({"Hostname": node, "gpu": "0", "UUID": f"GPU-{node}"} for node in ("n2", "n3"))
    parts = [{**split, "GPU_I_ID": number} for number in ("1", "2")]
    sharers = [{**shared, "vgpu": number} for number in ("0", "1")]
    guests = [{"Hostname": "n4", "gpu": "0", "UUID": f"GPU-{name}", "vm_name": name} for name in ("vm-1", "vm-2")]
    values = (
        ("FB_USED", [*parts, *sharers, *guests], 10),
        ("POWER_USAGE", [*parts, *sharers], 100),
        ("POWER_USAGE", [integrated], 20),
        ("GPU_TEMP", [integrated], 40),
        ("GPU_UTIL", [integrated], 90),
        ("GPU_UTIL", sharers, 30),
    )
    series = {
        labelled(f"DCGM_FI_DEV_{name}", labels): f"{value}x10" for name, devices, value in values for labels in devices
    }
    stats = {panel.title: panel for panel in panels(DASHBOARDS["dcgm"]) if panel.type is PanelType.STAT}
    results = {"GPUs": 5, "Power": 220, "Utilization": 90}
    expected = [
        Expected(query_of_all(stats[title].queries[0].expression), {"{}": value}) for title, value in results.items()
    ]
    run_cases(peer("promtool"), "groups: []", [RuleCase("stats", series, expected)], tmp_path)


@pytest.mark.system
def test_zero_of_a_family_that_has_no_value_is_not_drawn(peer: Callable[[str], Path], tmp_path: Path) -> None:
    parsed = TextParser().parse(Path("tests/data/exposition/dcgm-exporter-h100-vgpu-guest.txt").read_bytes())
    labels = {"Hostname": "n1", "gpu": "0", "UUID": "GPU-a", "modelName": "NVIDIA L40S"}
    series = {
        labelled(one.name, labels): f"{value:g}x10" for one, value in zip(parsed.series, parsed.values, strict=True)
    }
    assert {series[labelled(f"DCGM_FI_DEV_{name}", labels)] for name in ("MEMORY_TEMP", "XID_ERRORS")} == {"0x10"}
    drawn = {panel.title: panel.queries[0].expression for panel in panels(DASHBOARDS["dcgm"])}
    results: dict[str, dict[str, float]] = {
        "Newest XID": {},
        "Memory temperature": {},
        "Encoder": {labelled("DCGM_FI_DEV_ENC_UTIL", labels): 0},  # a measured zero
    }
    expected = [Expected(query_of_all(drawn[title]), result) for title, result in results.items()]
    run_cases(peer("promtool"), "groups: []", [RuleCase("zeros", series, expected)], tmp_path)


@pytest.mark.system
def test_encoder_zero_of_chips_without_one_is_not_drawn(peer: Callable[[str], Path], tmp_path: Path) -> None:
    without = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA H200", "GRID A100D-80C", "NVIDIA A30", "")
    having = ("NVIDIA L40S", "Tesla T4", "NVIDIA A10G", "NVIDIA RTX 6000 Ada Generation", "Quadro RTX 6000")

    def of(product: str, use: str) -> str:
        labels = {"Hostname": "n1", "gpu": "0", "UUID": f"{use} {product}", "modelName": product}
        return labelled("DCGM_FI_DEV_ENC_UTIL", labels)

    drawn = {of(product, "idle"): 0.0 for product in having} | {of(one, "used"): 7.0 for one in (*having, *without)}
    series = {name: f"{value:g}x10" for name, value in drawn.items()}
    series |= {of(product, "idle"): "0x10" for product in without}
    (panel,) = (one for one in panels(DASHBOARDS["dcgm"]) if one.title == "Encoder")
    expected = [Expected(query_of_all(panel.queries[0].expression), drawn)]
    run_cases(peer("promtool"), "groups: []", [RuleCase("encoders", series, expected)], tmp_path)


@pytest.mark.system
def test_uses_of_zero_of_mig_devices_are_not_drawn(peer: Callable[[str], Path], tmp_path: Path) -> None:
    """dcgm-exporter 3 writes 0 for MIG devices at any load. GB10 has no memory of its own."""
    names = {"Utilization": "GPU_UTIL", "Memory copy utilization": "MEM_COPY_UTIL", "Decoder": "DEC_UTIL"}
    gpu, part = ({"Hostname": "n1", "gpu": "0", "UUID": "GPU-a", **of} for of in ({}, {"GPU_I_ID": "1"}))
    gb10 = {"Hostname": "n2", "gpu": "0", "UUID": "GPU-b", "modelName": "NVIDIA GB10"}
    drawn = {panel.title: panel.queries[0].expression for panel in panels(DASHBOARDS["dcgm"])}
    series = {labelled(f"DCGM_FI_DEV_{name}", of): "0x10" for name in names.values() for of in (gpu, part, gb10)}
    expected = []
    for title, name in names.items():
        measured = [gpu] if title == "Memory copy utilization" else [gpu, gb10]
        results = {labelled(f"DCGM_FI_DEV_{name}", of): 0.0 for of in measured}
        expected.append(Expected(query_of_all(drawn[title]), results))
    run_cases(peer("promtool"), "groups: []", [RuleCase("MIG", series, expected)], tmp_path)


def test_variables_of_dcgm_list_gpus_without_memory() -> None:
    queries = [variable.query for variable in DASHBOARDS["dcgm"].variables]
    assert [query for query in queries if "DCGM_FI_DEV_GPU_TEMP" not in query] == []
