"""Faults by rule: every rule has one, and its fault fits the fleet and the rule."""

import pytest

from gpufleet.fleet.rules.table import RULES_BY_ID
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import FAULTS, FaultKind, parse_faults
from gpufleet.simulate.fleet.hub_faults import HUB_FAULTS
from gpufleet.simulate.fleet.rule_faults import (
    DETECTION_MINUTES,
    RULE_FAULTS,
    expected_findings,
    faults_by_family,
    fleet_size,
)


def test_every_rule_has_one_fault() -> None:
    assert not RULE_FAULTS.keys() & HUB_FAULTS.keys()
    assert RULE_FAULTS.keys() | HUB_FAULTS.keys() == RULES_BY_ID.keys()
    assert DETECTION_MINUTES.keys() == RULE_FAULTS.keys()


def test_findings_of_faults_are_rules() -> None:
    assert {rule for row in FAULTS.values() for rule in row.findings} <= RULES_BY_ID.keys()
    assert {kind for rows in faults_by_family().values() for kind in rows} == set(FaultKind)


@pytest.mark.parametrize("rule", RULE_FAULTS)
def test_fault_of_a_rule_fits_its_fleet_and_times(rule: str) -> None:
    faults = parse_faults(RULE_FAULTS[rule], 0)
    clusters, nodes, gpus = fleet_size(rule)
    assert rule in expected_findings(RULE_FAULTS[rule])
    assert all(one.cluster <= clusters and one.node <= nodes and one.gpu < gpus for one in faults)
    lasting = max(one.end - one.begin for one in faults) / NANOS
    assert lasting == 0 or lasting > RULES_BY_ID[rule].pending_seconds
