"""Verdicts over facts: declared inputs, evidence, and the logic of unknown inputs."""

import numpy as np
import pytest

from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.judgement import MAX_EVIDENCE_TEXT, RuleVerdict, judge
from gpufleet.fleet.rules.logic import all_of, any_known, any_of, negate, over
from gpufleet.fleet.rules.rule import FindingRule, RuleFamily, Thresholds
from gpufleet.fleet.rules.table import RULES
from gpufleet.model.finding import RuleScope, Severity

UNKNOWN = np.nan


def test_condition_reads_declared_inputs_only() -> None:
    rule = FindingRule(
        id="gpu.test",
        scope=RuleScope.DEVICE,
        family=RuleFamily.FAULTS,
        severity=Severity.INFO,
        inputs=("lost",),
        condition=lambda facts, _: facts["hung"],
        explanation="",
        action="",
    )
    with pytest.raises(KeyError, match="hung"):
        judge(FleetFacts.of(FactTable(RuleScope.DEVICE, ("a",))), [rule], Thresholds([rule]), 0)


def test_fleet_without_subjects_has_no_verdicts() -> None:
    verdicts = judge(FleetFacts.of(), RULES, Thresholds(RULES), 0).verdicts
    assert [rule_id for rule_id, found in verdicts.items() if len(found.firing) or len(found.unknown)] == []
    assert verdicts["gpu.lost"].verdict("a") is RuleVerdict.UNKNOWN


def test_evidence_is_bounded_and_of_the_subject_only() -> None:
    table = FactTable(
        RuleScope.DEVICE,
        ("a", "b"),
        {"xids_reset": [2, 1], "power_watts": [70.25, 1]},
        texts={"xid_codes": ["x" * 1000, "62"]},
    )
    verdicts = judge(FleetFacts.of(table), RULES, Thresholds(RULES), 0).verdicts["gpu.xid.reset"]
    assert verdicts.evidence(0) == {"xids_reset": "2", "xid_codes": "x" * MAX_EVIDENCE_TEXT}
    assert verdicts.evidence(1) == {"xids_reset": "1", "xid_codes": "62"}


def test_logic_of_unknown_inputs() -> None:
    left = np.array([1, 1, 1, 0, 0, UNKNOWN])
    right = np.array([1, 0, UNKNOWN, 0, UNKNOWN, UNKNOWN])
    for found, expected in (
        (all_of(left, right), [1, 0, UNKNOWN, 0, 0, UNKNOWN]),
        (any_of(left, right), [1, 1, 1, 0, UNKNOWN, UNKNOWN]),
        (any_known(left, right), [1, 1, 1, 0, 0, UNKNOWN]),
        (negate(left), [0, 0, 0, 1, 1, UNKNOWN]),
        (over(left, right), [0, 1, UNKNOWN, 0, UNKNOWN, UNKNOWN]),
    ):
        assert np.array_equal(found, expected, equal_nan=True)
