"""Report of a cluster: golden files in Markdown and JSON, and texts from outside."""

import datetime as dt
import json
import re
from pathlib import Path

import msgspec

from gpufleet.fleet.contract.facts import ClusterFacts, GpuSource, group_machines
from gpufleet.fleet.contract.history import ClusterHistory, update_history
from gpufleet.fleet.contract.judge import judge_cluster
from gpufleet.fleet.contract.report import ConformanceReport, conformance_report
from gpufleet.fleet.contract.report_page import render_report
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.contract import ContractWaiver
from gpufleet.model.liveness import State
from gpufleet.model.time import NANOS
from gpufleet.wiring.contract import load_contract
from tests.support.contract_facts import AT, MACHINE, NOW, cluster, coverage, machine
from tests.support.golden import check_golden

GOLDEN = Path(__file__).parents[2] / "data" / "contract"
CONTRACT = load_contract()
HOUR = 3600 * NANOS


def facts(at: int) -> ClusterFacts:
    machines = group_machines(
        [
            ("node-1", MACHINE),
            ("node-2", MACHINE),
            ("node-3", machine(state=State.LOST, unseen_days=1, reporting_gpus=0, value_age_seconds=86_400)),
            ("node-4", machine(source=GpuSource.EXPORTER, clock_ahead_seconds=None, xids_watched=None)),
            ("node-5", machine(usage_gpus=7, region=None, heartbeat_seconds=120)),
        ]
    )
    return cluster(*machines, at=at, coverage=coverage(48, pci=40), spec=ClusterSpec(
        environment="production", team="training", contact="gpu@example", expected={"H200": 48}
    ))  # fmt: skip


def report() -> ConformanceReport:
    """Return the report of a cluster with faults, two hours after a complete one."""
    waivers = [
        ContractWaiver(item="freshness.heartbeat", until=AT + dt.timedelta(days=30), reason="slow link, ticket 4711"),
        ContractWaiver(item="exposition.usage", until=AT - dt.timedelta(days=1), reason="ticket 4712"),
    ]
    history, _ = update_history(ClusterHistory(), judge_cluster(CONTRACT, cluster(at=NOW - 2 * HOUR)))
    history, _ = update_history(history, judge_cluster(CONTRACT, facts(NOW - HOUR), waivers))
    verdict = judge_cluster(CONTRACT, facts(NOW), waivers)
    history, _ = update_history(history, verdict)
    return conformance_report(CONTRACT, verdict, history, age_seconds=12.0)


def test_report_in_json_is_the_golden_file() -> None:
    content = msgspec.json.format(msgspec.json.encode(report()), indent=2) + b"\n"
    check_golden(GOLDEN / "report.json", content)
    assert msgspec.json.decode(content, type=ConformanceReport) == report()


def test_report_in_markdown_is_the_golden_file() -> None:
    check_golden(GOLDEN / "report.md", render_report(report()).encode())


def test_every_item_of_the_contract_is_in_the_report() -> None:
    items = {one.id: one for area in report().spec.values() for one in area}
    assert items.keys() == {one.id for one in CONTRACT.items}


def test_items_have_the_fields_of_cncf() -> None:
    """Each item has the six fields of k8s-ai-conformance, and an inapplicable one has notes."""
    without_gpus = machine(expected_gpus=0, reporting_gpus=0, source=GpuSource.NONE)
    idle = conformance_report(CONTRACT, judge_cluster(CONTRACT, cluster(*group_machines([("a", without_gpus)]))))
    for found in (report(), idle):
        document = json.loads(msgspec.json.encode(found))
        items = [one for area in document["spec"].values() for one in area]
        assert all({"id", "description", "level", "status", "evidence", "notes"} <= one.keys() for one in items)
        inapplicable = [one for one in items if one["status"] == "N/A"]
        assert [one["id"] for one in inapplicable if not one["notes"]] == []
        assert inapplicable


def test_report_without_history_has_no_times() -> None:
    found = conformance_report(CONTRACT, judge_cluster(CONTRACT, cluster()))
    assert found.metadata.visible_since is None
    assert {one.since for area in found.spec.values() for one in area} == {None}


def test_hostile_names_add_no_markup() -> None:
    name = "n|1\n# <b>x</b> [a](https://evil.example) `c` \x1b[2J \u202e"
    lost = machine(state=State.LOST, zone="z|<i>\n\n# x")
    spec = ClusterSpec(environment="e", team="a|b\n# c", contact="<script>", expected={"x`|": 8})
    one = cluster(*group_machines([(name, lost)]), cluster=name, spec=spec)
    page = render_report(conformance_report(CONTRACT, judge_cluster(CONTRACT, one)))
    for part in ("<b>", "<i>", "<script>", "https://", "\x1b", "\u202e", "\n# x", "\n# c"):
        assert part not in page
    assert re.search(r"(?<!\\)\]\(", page) is None
    tables = [line for line in page.splitlines() if line.startswith("|")]
    widths = {len(line.replace("\\|", "").split("|")) for line in tables}
    assert widths <= {4, 7, 8}
