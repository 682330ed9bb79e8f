"""`gpufleet query contract`."""

import msgspec

from gpufleet.cli.query.contract import report_tables, verdict_table
from gpufleet.cli.table import Layout, TextTable, render
from gpufleet.fleet.contract.facts import MachineGroup
from gpufleet.fleet.contract.history import ClusterHistory, update_history
from gpufleet.fleet.contract.judge import judge_cluster
from gpufleet.fleet.contract.report import ConformanceReport, conformance_report
from gpufleet.model.cluster import Cluster, ClusterRecord
from gpufleet.model.contract import ClusterVisibility, ContractSummary, Tier
from gpufleet.wiring.contract import load_contract
from tests.support.contract_facts import AT, SPEC, cluster, machine

CONTRACT = load_contract()


def report() -> ConformanceReport:
    """Return the report of a cluster without a contact, and with a GPU that does not report."""
    facts = cluster(
        MachineGroup(machine(reporting_gpus=7, identified_gpus=7, usage_gpus=7, condition_gpus=7), ("node-1",)),
        MachineGroup(machine(), ("node-2",)),
        spec=msgspec.structs.replace(SPEC, contact=None),
    )
    verdict = judge_cluster(CONTRACT, facts)
    return conformance_report(CONTRACT, verdict, update_history(ClusterHistory(), verdict)[0])


def test_items_that_hide_gpus_come_first_with_a_summary() -> None:
    table, summary, *remarks = report_tables(report())
    assert isinstance(table, TextTable)
    lines = render([table], Layout(wide=True), width=None, colour=False).text.splitlines()
    assert [line.split("\t")[1] for line in lines[1:3]] == ["ownership.contact", "exposition.gpus_report"]
    assert "node-1: 7 of 8 GPUs reporting" in lines[2]
    assert "gpufleet cluster put --contact" in lines[1]
    assert isinstance(summary, str)
    assert summary.startswith("east: not visible; 91.3 % of MUST items met (21 met, 2 not met")
    assert len(remarks) == 2


def test_clusters_that_are_not_visible_come_first() -> None:
    def record(name: str, visibility: ClusterVisibility | None) -> ClusterRecord:
        summary = ContractSummary(
            at=AT,
            visibility=visibility or ClusterVisibility.UNKNOWN,
            tier=Tier.AGENT,
            reached_tier=None,
            percent=90.0,
            not_visible=("node.agent",),
            gpus_not_visible=8,
        )
        return ClusterRecord(
            cluster=Cluster(id=name, known_since=AT),
            served=name != "closed",
            configured=False,
            contract=summary if visibility else None,
        )

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
