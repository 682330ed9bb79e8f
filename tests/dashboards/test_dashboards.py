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
from gpufleet.dashboards.panel import Dashboard, Panel
from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.catalogue import KUBERNETES_REPORTED, ROWS, MetricKind
from gpufleet.runtime import run_to_end
from tests.support.everything import snapshot_of_everything
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
    found = [query.expression for panel in panels(dashboard) for query in panel.queries]
    return [re.sub(r"\$(cluster|node|gpu)\b", ".*", text).replace("$__rate_interval", "1m") for text in found]


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
    below = [panel for row in native_dashboard().rows[1:] for panel in row.panels]
    queried = [re.findall(r"gpufleet_(\w+)\{", panel.queries[0].expression)[0] for panel in below]
    assert queried == [metric.name for metric in agent_metrics if metric.kind is not MetricKind.INFO]
    assert len({panel.title for panel in below}) > 0.9 * len(below)


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
            assert set(re.findall(r"\$(?!__)(\w+)", target["expr"])) <= variables
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
