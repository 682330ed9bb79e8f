"""Findings become visible once they are durable, and are never recorded twice."""

from collections.abc import Sequence

import pytest

from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.judgement import Judgement, judge
from gpufleet.fleet.rules.rule import Thresholds
from gpufleet.fleet.rules.table import RULES, RULES_BY_ID
from gpufleet.hub.findings import durable
from gpufleet.hub.findings.durable import DurableFindings
from gpufleet.model.errors import RegistryError
from gpufleet.model.finding import RuleScope
from gpufleet.model.stored.findings import (
    FindingQuery,
    FindingsState,
    FindingTransition,
    TransitionKind,
    TransitionReason,
)
from gpufleet.model.time import NANOS
from gpufleet.ports.findings import FindingRegistry
from tests.support.findings import MemoryFindings

T0 = 1_700_000_000 * NANOS
THRESHOLDS = Thresholds(RULES)
RULE = RULES_BY_ID["gpu.lost"]


def judgement(minute: int, *, lost: bool, gpus: int = 1) -> Judgement:
    keys = [f"c/m/gpu/{number}" for number in range(gpus)]
    facts = FleetFacts.of(FactTable(RuleScope.DEVICE, keys, {"lost": [float(lost)] * gpus}))
    return judge(facts, RULES, THRESHOLDS, T0 + minute * 60 * NANOS)


class UncertainRegistry(MemoryFindings):
    """Registry that reports saves as failed after their commit, and ignores transitions that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.is_uncertain = False
        self._stored: set[tuple[str, str, int]] = set()

    def save_findings(self, state: FindingsState, transitions: Sequence[FindingTransition]) -> None:
        keys = {(one.finding.id, one.kind, one.at): one for one in transitions}
        super().save_findings(state, [one for key, one in keys.items() if key not in self._stored])
        self._stored |= keys.keys()
        if self.is_uncertain:
            raise RegistryError("the connection was lost")


def findings_of(registry: FindingRegistry) -> DurableFindings:
    found = DurableFindings(registry, RULES, THRESHOLDS)
    found.load()
    return found


def kinds(registry: MemoryFindings) -> list[TransitionKind]:
    return [one.transition.kind for one in registry.finding_transitions(0, 1000)]


def test_failed_save_shows_nothing_and_is_repeated() -> None:
    registry = UncertainRegistry()
    found = findings_of(registry)
    registry.is_uncertain = True
    with pytest.raises(RegistryError):
        found.update(judgement(0, lost=True))
    assert found.open_findings() == ()
    assert found.saved_at is None
    registry.is_uncertain = False
    found.update(judgement(1, lost=True))
    assert [one.rule for one in found.open_findings()] == ["gpu.lost"]
    assert kinds(registry) == [TransitionKind.OPENED]
    assert found.saved_at == T0 + 60 * NANOS


def test_judgements_during_an_outage_are_saved_with_their_times() -> None:
    registry = MemoryFindings()
    found = findings_of(registry)
    for minute, lost in enumerate((True, False, False, False)):
        with pytest.raises(RegistryError):
            found.update(judgement(minute, lost=lost), "the registry is down")
    found.update(judgement(4, lost=False))
    transitions = [one.transition for one in registry.finding_transitions(0, 100)]
    assert [(one.kind, one.at) for one in transitions] == [
        (TransitionKind.OPENED, T0),
        (TransitionKind.CLOSED, T0 + 180 * NANOS),
    ]


def test_too_many_unsaved_transitions_return_to_the_saved_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "MAX_UNSAVED", 3)
    registry = MemoryFindings()
    found = findings_of(registry)
    with pytest.raises(RegistryError):
        found.update(judgement(0, lost=True, gpus=4), "the registry is down")
    found.update(judgement(1, lost=True, gpus=2))
    assert kinds(registry) == [TransitionKind.OPENED] * 2


def test_defect_in_an_update_returns_to_the_saved_state() -> None:
    registry = MemoryFindings()
    found = findings_of(registry)
    found.update(judgement(0, lost=True))
    broken = Judgement(T0 + 60 * NANOS, FleetFacts.of(), {RULE.id: None})  # type: ignore[dict-item]
    with pytest.raises(AttributeError):
        found.update(broken)
    found.update(judgement(2, lost=True))
    assert kinds(registry) == [TransitionKind.OPENED]


def test_saved_findings_are_open_after_a_restart() -> None:
    registry = MemoryFindings()
    findings_of(registry).update(judgement(0, lost=True))
    restarted = findings_of(registry)
    assert [one.rule for one in restarted.open_findings()] == ["gpu.lost"]
    for minute in range(1, 5):
        restarted.update(judgement(minute, lost=False))
    assert kinds(registry) == [TransitionKind.OPENED, TransitionKind.CLOSED]


def open_ids(registry: MemoryFindings) -> list[str]:
    return [one.id for one in registry.findings(FindingQuery(is_closed=False))]


def test_open_finding_that_the_state_lacks_is_closed_once() -> None:
    registry = MemoryFindings()
    findings_of(registry).update(judgement(0, lost=True))
    registry.save_findings(FindingsState(), ())  # the state is lost
    restarted = findings_of(registry)
    assert restarted.open_findings() == ()
    assert len(open_ids(registry)) == 1, "nothing is closed before it is durable"
    with pytest.raises(RegistryError):
        restarted.update(judgement(1, lost=False), "the registry is down")
    for minute in range(2, 5):
        restarted.update(judgement(minute, lost=False))
        findings_of(registry).update(judgement(minute, lost=False))
    (_, closed) = [one.transition for one in registry.finding_transitions(0, 10)]
    assert (closed.kind, closed.reason) == (TransitionKind.CLOSED, TransitionReason.NOT_TRACKED)
    assert closed.finding.closed_at == closed.at == T0 + 60 * NANOS
    assert open_ids(registry) == []


def test_firing_subject_without_state_opens_a_new_finding() -> None:
    registry = MemoryFindings()
    findings_of(registry).update(judgement(0, lost=True))
    registry.save_findings(FindingsState(), ())
    restarted = findings_of(registry)
    restarted.update(judgement(1, lost=True))
    assert kinds(registry) == [TransitionKind.OPENED, TransitionKind.CLOSED, TransitionKind.OPENED]
    assert open_ids(registry) == [one.id for one in restarted.open_findings()]


def test_open_finding_that_the_table_lacks_is_recorded_again() -> None:
    registry = MemoryFindings()
    findings_of(registry).update(judgement(0, lost=True))
    state = registry.findings_state()
    registry = MemoryFindings()
    registry.save_findings(state, ())
    for minute in range(1, 5):
        findings_of(registry).update(judgement(minute, lost=True))
    assert kinds(registry) == [TransitionKind.OPENED]
    assert open_ids(registry) == [one.id for one in state.tracked]
    assert registry.finding_transitions(0, 1)[0].transition.at == T0 + 60 * NANOS
    restarted = findings_of(registry)
    for minute in range(5, 9):
        restarted.update(judgement(minute, lost=False))
    assert kinds(registry) == [TransitionKind.OPENED, TransitionKind.CLOSED]


def test_open_findings_of_several_pages_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "PAGE", 2)
    registry = MemoryFindings()
    findings_of(registry).update(judgement(0, lost=True, gpus=5))
    findings_of(registry).update(judgement(1, lost=True, gpus=5))
    assert kinds(registry) == [TransitionKind.OPENED] * 5
    registry.save_findings(FindingsState(), ())
    findings_of(registry).update(judgement(2, lost=False, gpus=5))
    assert open_ids(registry) == []
