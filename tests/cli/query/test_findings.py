"""`gpufleet query findings`."""

import pytest

from gpufleet.cli.query.findings import evaluation_text, findings_tables, subject_cell
from gpufleet.cli.table import Layout, render
from gpufleet.hub.query.finding_records import finding_record
from gpufleet.model.api.findings import EvaluationRecord, FindingPage, FindingRecord
from gpufleet.model.finding import Finding, FindingState, Severity
from gpufleet.model.time import NANOS, to_datetime
from tests.support.findings import make_finding

AT = 1_700_000_000 * NANOS
UUID = "GPU-5a61abb5-f88e-4df2-8e2f-bd67b3cf7a55"
CURRENT = EvaluationRecord(evaluated_at=to_datetime(AT), age_seconds=5.0, is_current=True)


def record(found: Finding) -> FindingRecord:
    return finding_record(found, AT + 90 * NANOS, nodes={"m-1": "node-a"}, acknowledgement=None, silences=())


@pytest.mark.parametrize(
    ("rule", "key", "text", "full"),
    [
        ("hub.network", "", "hub", ""),
        ("cluster.stale", "west", "west", ""),
        ("node.missing", "west/m-1", "node-a", ""),
        ("node.missing", "west/m-2", "m-2", ""),
        ("sender.clock_skew", "west/agent", "agent", ""),
        ("allocation.partial", "west/job-1", "job-1", ""),
        ("gpu.lost", f"west/m-1/gpu/{UUID}", "node-a/GPU-5a61abb5", f"node-a/{UUID}"),
        ("gpu.lost", "west/m-1/gpu/pci/0000:1b:00.0", "node-a/1b:00.0", "node-a/1b:00.0"),
    ],
)
def test_subjects_are_shown_by_name(rule: str, key: str, text: str, full: str) -> None:
    cell = subject_cell(record(make_finding(rule, key, AT)))
    assert (cell.text, cell.full) == (text, full)


def test_rows_have_severity_rule_subject_age_and_evidence() -> None:
    found = make_finding(
        "gpu.lost", f"west/m-1/gpu/{UUID}", AT, severity=Severity.CRITICAL, evidence={"lost": "1", "xid_codes": "79"}
    )
    hidden = make_finding("node.missing", "west/m-1", AT, state=FindingState.UNKNOWN, hidden_by="cluster.stale")
    page = FindingPage(
        at=to_datetime(AT + 90 * NANOS), evaluation=CURRENT, items=(record(found), record(hidden)), next=None
    )
    lines = render(findings_tables(page), Layout(), width=150, colour=False).text.splitlines()
    assert lines[1].split() == [
        *("critical", "gpu.lost", "west", "node-a/GPU-5a61abb5", "open", "90", "s", "lost=1,", "xid_codes=79"),
        found.id[:8],
    ]
    assert "unknown, hidden by cluster.stale" in lines[2]
    by_severity = render(
        findings_tables(page), Layout(sort="severity", columns=("severity",)), width=None, colour=False
    )
    assert by_severity.text.split() == ["severity", "critical", "warning"]


def test_old_evaluation_is_stated() -> None:
    assert evaluation_text(CURRENT) == "Rules evaluated 5 s ago."
    old = EvaluationRecord(evaluated_at=to_datetime(AT), age_seconds=600.0, is_current=False, failure="x", untracked=3)
    assert evaluation_text(old) == (
        "The rules were last evaluated 10 min ago: newer findings are unknown. Incomplete: x. "
        "3 more subjects exceed the limit on tracked findings."
    )
    never = EvaluationRecord(evaluated_at=None, age_seconds=None, is_current=False, failure="x")
    assert evaluation_text(never) == "The rules are not evaluated: x. States are unknown."
