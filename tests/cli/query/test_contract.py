"""`gpufleet query contract`."""

import datetime as dt

import msgspec

from gpufleet.cli.query.contract import judged_text, report_tables, verdict_table
from gpufleet.cli.table import Layout, TextTable, render
from gpufleet.fleet.contract.facts import ClusterFacts, GpuSource, MachineGroup
from gpufleet.fleet.contract.history import ClusterHistory, update_history
from gpufleet.fleet.contract.judge import judge_cluster
from gpufleet.fleet.contract.report import ConformanceReport, conformance_report
from gpufleet.model.cluster import Cluster, ClusterRecord
from gpufleet.model.contract import ClusterVisibility, ContractSummary, ContractWaiver, Tier
from gpufleet.model.liveness import State
from gpufleet.wiring.contract import load_contract
from tests.support.contract_facts import AT, SPEC, cluster, coverage, machine

CONTRACT = load_contract()
NOTHING = ClusterFacts(cluster="east", at=1, hub_version="0.6.0")


def report() -> ConformanceReport:
    """Return the report of a cluster without a contact, and with a GPU that does not report."""
    facts = cluster(
        MachineGroup(machine(reporting_gpus=7, identified_gpus=7, usage_gpus=7, condition_gpus=7), ("node-1",)),
        MachineGroup(machine(), ("node-2",)),
        spec=msgspec.structs.replace(SPEC, contact=None),
        coverage=coverage(16, 15),
    )
    verdict = judge_cluster(CONTRACT, facts)
    return conformance_report(CONTRACT, verdict, update_history(ClusterHistory(), verdict)[0], age_seconds=42.0)


def test_items_that_hide_gpus_come_first_with_a_summary() -> None:
    table, summary, judged, *remarks = report_tables(report())
    assert isinstance(table, TextTable)
    lines = render([table], Layout(wide=True), width=None, colour=False).text.splitlines()
    assert [line.split("\t")[1] for line in lines[1:3]] == ["ownership.contact", "exposition.gpus_report"]
    assert "node-1: 7 of 8 GPUs reporting" in lines[2]
    assert "gpufleet cluster put --contact" in lines[1]
    assert isinstance(summary, str)
    assert summary.startswith("east: partly visible; 91.3 % of MUST items met (21 met, 2 not met")
    assert "; tier 3, as observed, reached none; 1 GPU not visible" in summary
    assert judged == "Judged 42 s ago."
    assert sorted(map(str, remarks), reverse=True) == [
        (
            "Not visible by ownership.contact: the cluster, with 1 GPU without values: the registration has no "
            "contact; 15 GPUs report. The team of the cluster cannot be reached."
        ),
        (
            "Not visible by exposition.gpus_report: 1 machine, 1 GPU: 7 of 8 GPUs reporting. "
            "The GPUs without values are listed as not visible. They are not counted as idle."
        ),
    ]


def test_statuses_are_those_of_the_contract() -> None:
    facts = cluster(
        MachineGroup(machine(xids_watched=None), ("node-1",)),
        MachineGroup(machine(usage_gpus=7), ("node-2",)),
        spec=msgspec.structs.replace(SPEC, contact=None),
    )
    waiver = ContractWaiver(item="ownership.contact", until=AT + dt.timedelta(days=1), reason="ticket 4711")
    table = report_tables(conformance_report(CONTRACT, judge_cluster(CONTRACT, facts, [waiver])))[0]
    assert isinstance(table, TextTable)
    lines = render([table], Layout(wide=True), width=None, colour=False).text.splitlines()[1:]
    found = {line.split("\t")[1]: line.split("\t")[2] for line in lines}
    assert [found[one] for one in ("exposition.usage", "node.xids", "ownership.contact", "ownership.team")] == [
        *("not met", "unknown", "waived", "met")
    ]


def test_report_without_a_verdict_is_not_judged_yet() -> None:
    head = report_tables(conformance_report(CONTRACT, judge_cluster(CONTRACT, NOTHING)))[1:3]
    assert "; tier not known yet, reached none; " in str(head[0])
    assert str(head[1]).startswith("Not judged yet")


def test_gpus_of_unknown_number_are_not_counted_as_none() -> None:
    unsized = machine(state=State.NEVER_SEEN, source=GpuSource.NONE, expected_gpus=None, reporting_gpus=None)
    groups = MachineGroup(machine(), ("node-1",)), MachineGroup(unsized, ("node-2",))
    verdict = judge_cluster(CONTRACT, cluster(*groups))
    found = conformance_report(CONTRACT, verdict)
    assert any(str(one).startswith("Not visible by freshness.machines: 1 machine, GPUs of unknown number: ")
               for one in report_tables(found))  # fmt: skip
    lines = render([verdict_table([record("east", ClusterVisibility.PARTLY, gpus=0, uncounted=1)])], Layout(),
                   width=None, colour=False).text.splitlines()  # fmt: skip
    assert lines[1].split("\t")[5] == "0, and those of 1 machine"


def record(name: str, visibility: ClusterVisibility | None, *, gpus: int = 8, uncounted: int = 0) -> ClusterRecord:
    """Return a cluster with a verdict, or without one; the cluster `closed` is not served."""
    summary = ContractSummary(
        at=AT,
        visibility=visibility or ClusterVisibility.UNKNOWN,
        tier=Tier.AGENT,
        reached_tier=None,
        percent=90.0,
        not_visible=("node.agent",),
        gpus_not_visible=gpus,
        machines_without_count=uncounted,
    )
    return ClusterRecord(
        cluster=Cluster(id=name, known_since=AT),
        served=name != "closed",
        configured=False,
        contract=summary if visibility else None,
    )


def test_clusters_that_are_not_visible_come_first() -> None:
    records = [
        record("a", ClusterVisibility.VISIBLE),
        record("b", None),
        record("c", ClusterVisibility.NOT_VISIBLE),
        record("closed", None),
    ]
    lines = render([verdict_table(records)], Layout(), width=None, colour=False).text.splitlines()
    assert [line.split("\t")[:3] for line in lines[1:]] == [
        ["c", "not visible", "90 %"],
        ["a", "visible", "90 %"],
        ["b", "not judged yet", "-"],
    ]
    assert judged_text(records, AT + dt.timedelta(seconds=50)) == "Judged 50 s ago."
    assert judged_text(records[1:2], AT) == ""
