"""Records of findings: subjects, live values, tenants, silences, counts."""

import pytest

from gpufleet.fleet.rules.inputs import INPUTS
from gpufleet.fleet.rules.rule import ID_PREFIX
from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.query.finding_records import (
    NOT_YET,
    TENANT_EVIDENCE,
    TENANT_RULES,
    NotEvaluated,
    RuleEvaluation,
    count_open,
    evaluation_record,
    finding_record,
    for_tenant,
    is_silenced,
    machine_of,
    scope_of,
    statuses_of,
    tenant_evidence,
    with_live_values,
)
from gpufleet.model.api.findings import FindingStatus
from gpufleet.model.finding import Finding, FindingState, RuleScope, Severity
from gpufleet.model.stored.findings import FindingAcknowledgement, Silence
from gpufleet.model.time import NANOS
from tests.support.findings import EvaluatorStub, make_finding

AT = 1_700_000_000 * NANOS
NOW = AT + 60 * NANOS


def record_of(found: Finding, **more: object) -> dict[str, object]:
    given: dict[str, object] = {"nodes": {"m-1": "node-a"}, "acknowledgement": None, "silences": (), **more}
    record = finding_record(found, NOW, **given)  # type: ignore[arg-type]
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_every_rule_has_the_scope_of_its_id() -> None:
    assert {rule.id: scope_of(rule.id) for rule in RULES} == {rule.id: rule.scope for rule in RULES}
    assert set(ID_PREFIX.values()) >= {rule.id.partition(".")[0] for rule in RULES}


@pytest.mark.parametrize(
    ("rule", "key", "expected"),
    [
        ("hub.network", "", {}),
        ("cluster.stale", "west", {"cluster": "west"}),
        ("node.missing", "west/m-1", {"cluster": "west", "machine": "m-1", "node": "node-a"}),
        ("node.missing", "west/m-2", {"cluster": "west", "machine": "m-2"}),
        ("sender.clock_skew", "west/a/b", {"cluster": "west", "sender": "a/b"}),
        ("allocation.partial", "west/job-1", {"cluster": "west", "allocation": "job-1"}),
        (
            "gpu.lost",
            "west/m-1/gpu/pci/0000:1b:00.0",
            {"cluster": "west", "machine": "m-1", "node": "node-a", "device": "west/m-1/gpu/pci/0000:1b:00.0"},
        ),
    ],
)
def test_key_of_a_subject_names_its_parts(rule: str, key: str, expected: dict[str, str]) -> None:
    found = make_finding(rule, key, AT)
    record = record_of(found)
    parts = ("cluster", "machine", "node", "device", "sender", "allocation")
    assert {name: record[name] for name in parts if record[name] is not None} == expected
    assert record["subject"] == key
    assert machine_of(found) == ((expected["cluster"], expected["machine"]) if "machine" in expected else None)


def test_rule_of_another_version_has_no_texts() -> None:
    record = record_of(make_finding("gpu.former", "west/m-1/gpu/GPU-1", AT))
    assert (record["scope"], record["family"], record["explanation"], record["action"]) == ("device", "", "", "")


def test_live_values_replace_those_of_the_newest_transition() -> None:
    stored = make_finding("gpu.lost", "c/m/gpu/1", AT, evidence={"lost": "1"})
    live = make_finding(
        "gpu.lost", "c/m/gpu/1", AT, evidence={"lost": "2"}, state=FindingState.UNKNOWN, hidden_by="node.missing"
    )
    merged = with_live_values(stored, {live.id: live})
    assert (merged.evidence, merged.state, merged.hidden_by) == ({"lost": "2"}, FindingState.UNKNOWN, "node.missing")
    assert with_live_values(stored, {}).state is FindingState.UNKNOWN
    closed = make_finding("gpu.lost", "c/m/gpu/1", AT, closed_at=NOW)
    assert with_live_values(closed, {live.id: live}) == closed


def test_statuses_of_open_and_closed_findings() -> None:
    found = make_finding("gpu.lost", "c/m/gpu/1", AT)
    assert statuses_of(found, NOW) == {FindingStatus.OPEN}
    acknowledged = make_finding("gpu.lost", "c/m/gpu/1", AT, state=FindingState.UNKNOWN, acknowledged_until=NOW + 1)
    assert statuses_of(acknowledged, NOW) == {FindingStatus.UNKNOWN, FindingStatus.ACKNOWLEDGED}
    assert statuses_of(acknowledged, NOW + 1) == {FindingStatus.UNKNOWN}
    closed = make_finding("gpu.lost", "c/m/gpu/1", AT, closed_at=NOW, acknowledged_until=NOW + 1)
    assert statuses_of(closed, NOW) == {FindingStatus.CLOSED}


def test_duration_ends_with_the_finding() -> None:
    assert record_of(make_finding("hub.network", "", AT))["duration_seconds"] == 60.0
    assert record_of(make_finding("hub.network", "", AT, closed_at=AT + NANOS))["duration_seconds"] == 1.0


@pytest.mark.parametrize(
    ("rule", "scope", "applies"),
    [
        ("gpu.lost", "", True),
        ("gpu.frozen", "", False),
        ("", "c", True),
        ("", "c/m", True),
        ("", "c/m/gpu/1", True),
        ("gpu.lost", "c/m", True),
        ("", "c/m2", False),
        ("", "c/", False),
        ("gpu.frozen", "c/m", False),
    ],
)
def test_silence_applies_to_a_subject_and_its_parts(rule: str, scope: str, applies: bool) -> None:
    silence = Silence(id="s", rule=rule, scope=scope, at=AT, until=NOW + 1, actor="a")
    found = make_finding("gpu.lost", "c/m/gpu/1", AT)
    assert is_silenced(found, silence) is applies
    assert (record_of(found, silences=[silence])["silenced_until"] is not None) is applies


@pytest.mark.parametrize(
    ("scopes", "rules"),
    [
        ((), {"node.missing", "gpu.lost", "sender.clock_skew"}),
        (("machine", "device"), {"node.missing", "gpu.lost"}),
        (("sender",), {"sender.clock_skew"}),
        (("allocation",), set()),
    ],
)
def test_silence_applies_to_rules_of_its_scopes(scopes: tuple[str, ...], rules: set[str]) -> None:
    silence = Silence(id="s", scope="c/m", subject_kinds=scopes, at=AT, until=NOW + 1, actor="a")
    subjects = {"node.missing": "c/m", "gpu.lost": "c/m/gpu/1", "sender.clock_skew": "c/m"}
    assert {one for one, key in subjects.items() if is_silenced(make_finding(one, key, AT), silence)} == rules


def test_tenant_sees_no_text_of_others() -> None:
    acknowledgement = FindingAcknowledgement(finding="x", at=AT, until=NOW + 1, actor="bob", note="of rival")
    found = make_finding(
        "allocation.partial", "c/a", AT, hidden_by="node.missing", acknowledged_until=NOW + 1, evidence={"devices": "7"}
    )
    silence = Silence(id="s", at=AT, until=NOW + 1, actor="a")
    whole = finding_record(found, NOW, nodes={}, acknowledgement=acknowledgement, silences=[silence])
    assert whole.acknowledged
    seen = for_tenant(whole)
    assert (seen.hidden_by, seen.acknowledged, seen.acknowledgement, seen.silenced_until) == ("", False, None, None)
    assert (seen.allocation, seen.evidence, seen.action) == ("a", {"devices": "7"}, whole.action)


def test_tenant_evidence_has_numbers_and_known_reasons_only() -> None:
    own = {"devices": "7", "expected_devices": "1.5e+06", "answers": "inf"}
    assert tenant_evidence({**own, "reason": "stale"}) == {**own, "reason": "stale"}
    assert tenant_evidence({"overlapping_tenants": "2"}) == {}
    foreign = {"devices": "rival", "answers": "1 rival", "overlapping_tenants": "", "reason": "rival", "tenants": "1"}
    assert tenant_evidence(foreign) == {}


def test_each_rule_is_for_tenants_or_for_operators_only() -> None:
    of_allocations = {rule.id for rule in RULES if rule.scope is RuleScope.ALLOCATION}
    assert set(TENANT_RULES) == of_allocations - {"allocation.tenant_overlap"}
    assert INPUTS[RuleScope.ALLOCATION].keys() - {"overlapping_tenants"} == TENANT_EVIDENCE


@pytest.mark.parametrize(("age", "is_current"), [(0, True), (180, True), (181, False), (-5, True)])
def test_old_evaluation_is_not_current(age: int, is_current: bool) -> None:
    status = RuleEvaluation(at=NOW - age * NANOS, failure="the store is down", untracked=3)
    record = evaluation_record(status, NOW)
    assert (record.is_current, record.age_seconds, record.failure) == (is_current, max(0, age), "the store is down")
    seen = evaluation_record(status, NOW, for_tenant=True)
    assert (seen.is_current, seen.failure, seen.untracked) == (is_current, "", None)
    never = evaluation_record(RuleEvaluation(), NOW)
    assert (never.is_current, never.untracked) == (False, None)


def test_interval_determines_when_an_evaluation_is_old() -> None:
    ages = (30, 31, 540, 541)
    for interval, expected in ((10.0, [True, False, False, False]), (180.0, [True, True, True, False])):
        evaluations = [RuleEvaluation(at=NOW - age * NANOS, interval_seconds=interval) for age in ages]
        assert [evaluation_record(one, NOW).is_current for one in evaluations] == expected


def test_missing_evaluation_is_stated() -> None:
    for status, failure in (
        (NotEvaluated().evaluation(), "`[findings] enabled` is false in the configuration of the hub"),
        (RuleEvaluation(failure="the registry is down"), "the registry is down"),
        (RuleEvaluation(), NOT_YET),
    ):
        record = evaluation_record(status, NOW)
        assert (record.evaluated_at, record.is_current, record.failure) == (None, False, failure)
        seen = evaluation_record(status, NOW, for_tenant=True)
        assert (seen.evaluated_at, seen.is_current, seen.failure) == (None, False, NOT_YET)


def test_counts_are_unknown_before_the_first_evaluation() -> None:
    live = EvaluatorStub()
    live.found = (
        make_finding("hub.network", "", AT, severity=Severity.CRITICAL),
        make_finding("cluster.stale", "c", AT, severity=Severity.CRITICAL),
        make_finding("gpu.lost", "c/m/gpu/1", AT),
    )
    assert (count_open(live).total, count_open(live).of_cluster("c")) == (None, None)
    live.status = RuleEvaluation(at=AT)
    counts = count_open(live)
    assert counts.total == {Severity.CRITICAL: 2, Severity.WARNING: 1, Severity.INFO: 0}
    assert counts.of_cluster("c") == {Severity.CRITICAL: 1, Severity.WARNING: 1, Severity.INFO: 0}
    assert counts.of_cluster("d") == dict.fromkeys(Severity, 0)
