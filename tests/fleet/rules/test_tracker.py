"""Findings over time: openings, closings, unknown verdicts, causes and effects, flapping, export and restore."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.rules.facts import FactTable, FleetFacts
from gpufleet.fleet.rules.judgement import judge
from gpufleet.fleet.rules.rule import FindingRule, Thresholds
from gpufleet.fleet.rules.table import RULES, RULES_BY_ID
from gpufleet.fleet.rules.tracker import FLAP_SECONDS, GONE_SECONDS, Findings
from gpufleet.model.finding import FindingState, RuleScope, Severity
from gpufleet.model.stored.findings import (
    FindingPhase,
    FindingsState,
    FindingTransition,
    TransitionKind,
    TransitionReason,
)
from gpufleet.model.time import NANOS
from tests.support.profiles import examples

START = 1_800_000_000 * NANOS
FIRING, HEALTHY, UNKNOWN, RETIRED = 1.0, 0.0, None, "retired"
Verdict = float | str | None
LOST = RULES_BY_ID["gpu.lost"]  # opens at once
HUNG = RULES_BY_ID["gpu.hung"]  # opens after 120 s, closes after 120 s


class Fleet:
    """One cluster of two machines with two GPUs each, judged at successive instants."""

    def __init__(self, rules: Sequence[FindingRule] = RULES, state: FindingsState | None = None) -> None:
        self.rules = rules
        self.thresholds = Thresholds(rules)
        self.findings = Findings(rules, self.thresholds, state)
        self.at = START

    def judge(
        self,
        seconds: float,
        *,
        hub: Mapping[str, float] | None = None,
        cluster: Mapping[str, float] | None = None,
        machines: Mapping[str, Sequence[float | None]] | None = None,
        gpus: Mapping[str, Sequence[float | None]] | None = None,
        retired_machines: Sequence[bool] = (False, False),
    ) -> list[tuple[str, str, str]]:
        """Advance the clock and judge; return (kind, rule, subject) of each transition."""
        self.at += int(seconds * NANOS)
        facts = FleetFacts.of(
            FactTable(RuleScope.HUB, ("hub",), {name: [value] for name, value in (hub or {}).items()}),
            FactTable(RuleScope.CLUSTER, ("c",), {name: [value] for name, value in (cluster or {}).items()}),
            FactTable(
                *(RuleScope.MACHINE, ("c/a", "c/b"), machines),
                parents={RuleScope.CLUSTER: [0, 0]},
                retired=retired_machines,
            ),
            FactTable(
                *(RuleScope.DEVICE, ("c/a/1", "c/a/2", "c/b/1", "c/b/2"), gpus),
                parents={RuleScope.MACHINE: [0, 0, 1, 1]},
            ),
        )
        transitions = self.findings.update(judge(facts, self.rules, self.thresholds, self.at))
        return [(str(one.kind), one.finding.rule, one.finding.scope) for one in transitions]

    def hang(self, seconds: float, verdict: float | None) -> list[str]:
        """Judge the state `hung` of the first GPU only; return the kinds of the transitions."""
        return [kind for kind, _, _ in self.judge(seconds, gpus={"hung": [verdict, 0, 0, 0]})]


def test_finding_opens_after_pending_time_and_closes_after_health() -> None:
    fleet = Fleet([HUNG])
    assert [fleet.hang(60, FIRING) for _ in range(4)] == [[], [], ["opened"], []]
    assert [fleet.hang(60, HEALTHY) for _ in range(4)] == [[], [], ["closed"], []]
    assert fleet.findings.list_open() == ()


def test_finding_has_evidence_times_and_a_stable_id() -> None:
    fleet = Fleet()
    fleet.judge(0, gpus={"lost": [1, 0, 0, 0]})
    (opened,) = fleet.findings.list_open()
    fleet.judge(60, gpus={"lost": [1, 0, 0, 0]})
    (later,) = fleet.findings.list_open()
    assert (opened.rule, opened.scope, opened.severity) == ("gpu.lost", "c/a/1", Severity.CRITICAL)
    assert opened.evidence == {"lost": "1"}
    assert (opened.first, opened.last, opened.opened_at) == (START, START, START)
    assert later.id == opened.id
    assert (later.first, later.last) == (START, START + 60 * NANOS)


@pytest.mark.parametrize(
    ("rule", "firing", "partial", "healthy"),
    [
        (
            "node.gpu_count_mismatch",
            {"pci_gpus": 8, "nvml_gpus": 8, "kubernetes_gpus": 8, "allocatable_gpus": 7},
            {"kubernetes_gpus": None, "allocatable_gpus": None},
            {"allocatable_gpus": 8},
        ),
        (
            "gpu.throttled",
            {"hardware_slowdown": 1, "temperature_margin_celsius": 9, "slowdown_margin_celsius": 2},
            {"hardware_slowdown": None},
            {"hardware_slowdown": 0},
        ),
        ("gpu.used_unallocated", {"held": 0, "processes": 1, "utilization_ratio": 0}, {"processes": None}, {"held": 1}),
    ],
)
def test_finding_is_unknown_while_inputs_that_fired_are_missing(
    rule: str, firing: dict[str, float | None], partial: dict[str, float | None], healthy: dict[str, float | None]
) -> None:
    fleet = Fleet([RULES_BY_ID[rule]])

    def judge_hour(facts: Mapping[str, float | None]) -> list[str]:
        """Return the kinds of the transitions of the first subject."""
        scope, count = ("machines", 2) if rule.startswith("node.") else ("gpus", 4)
        table = {name: [value] + [None] * (count - 1) for name, value in facts.items()}
        return [kind for _ in range(60) for kind, _, _ in fleet.judge(60, **{scope: table})]  # type: ignore[arg-type]

    assert judge_hour(firing) == ["opened"]
    assert judge_hour(firing | partial) == []
    assert [one.state for one in fleet.findings.list_open()] == [FindingState.UNKNOWN]
    assert judge_hour(firing | partial | healthy) == ["closed"]


def test_short_fault_opens_nothing() -> None:
    fleet = Fleet([HUNG])
    verdicts = [FIRING, FIRING, HEALTHY] * 4
    assert [fleet.hang(60, verdict) for verdict in verdicts] == [[]] * 12


def test_short_health_does_not_close() -> None:
    fleet = Fleet([HUNG])
    for _ in range(3):
        fleet.hang(60, FIRING)
    assert [fleet.hang(60, verdict) for verdict in [HEALTHY, HEALTHY, FIRING] * 3] == [[]] * 9
    assert len(fleet.findings.list_open()) == 1


def test_unknown_neither_opens_nor_closes() -> None:
    fleet = Fleet([HUNG])
    fleet.hang(60, FIRING)
    assert [fleet.hang(600, UNKNOWN) for _ in range(3)] == [[]] * 3
    assert [fleet.hang(60, FIRING) for _ in range(3)] == [[], [], ["opened"]]
    assert [fleet.hang(600, UNKNOWN) for _ in range(3)] == [[]] * 3
    assert [one.state for one in fleet.findings.list_open()] == [FindingState.UNKNOWN]
    assert [fleet.hang(60, HEALTHY) for _ in range(3)] == [[], [], ["closed"]]


def test_pause_between_judgements_does_not_count() -> None:
    fleet = Fleet(state=FindingsState(at=START, clock=START))
    rule = RULES_BY_ID["gpu.allocated_idle"]
    gpus: dict[str, Sequence[float | None]] = {
        **dict.fromkeys(("held", "held_seconds", "memory_total_bytes"), [1e9] * 4),
        "held": [1] * 4,
        "memory_used_bytes": [0] * 4,
        "utilization_ratio": [0, 1, 1, 1],
    }
    assert rule.pending_seconds == 1800
    assert fleet.judge(60, gpus=gpus) == []
    assert fleet.judge(86400, gpus=gpus) == []
    assert [fleet.judge(180, gpus=gpus) for _ in range(9)][-1] == [("opened", rule.id, "c/a/1")]


def test_finding_escalates_once_by_threshold() -> None:
    fleet = Fleet()

    def judge_unseen(seconds: float) -> list[tuple[str, str, str]]:
        return fleet.judge(60, machines={"unseen_seconds": [seconds, 0], "interval_seconds": [30, 30]})

    found = [judge_unseen(seconds) for seconds in (100, 160, 220, 901, 960)]
    assert found == [[], [("opened", "node.missing", "c/a")], [], [("escalated", "node.missing", "c/a")], []]
    assert judge_unseen(200) == []
    assert [one.severity for one in fleet.findings.list_open()] == [Severity.CRITICAL]


def test_finding_escalates_by_time() -> None:
    rule = msgspec.structs.replace(HUNG, severity=Severity.WARNING, escalation_seconds=300)
    fleet = Fleet([rule])
    found = [fleet.hang(60, FIRING) for _ in range(7)]
    assert found == [[], [], ["opened"], [], [], ["escalated"], []]


def test_dead_machine_hides_the_findings_of_its_gpus() -> None:
    fleet = Fleet()
    gpus = {"lost": [1, 1, 0, 0]}
    dead = {"unseen_seconds": [100, 0], "interval_seconds": [30, 30]}
    assert fleet.judge(60, machines=dead, gpus=gpus) == []  # hidden before the finding of the machine opens
    assert fleet.judge(60, machines=dead, gpus=gpus) == [("opened", "node.missing", "c/a")]
    alive = {"unseen_seconds": [0, 0], "interval_seconds": [30, 30]}
    found = [fleet.judge(60, machines=alive, gpus=gpus) for _ in range(4)]
    assert found[2] == [("closed", "node.missing", "c/a")]
    assert found[3] == [("opened", "gpu.lost", "c/a/1"), ("opened", "gpu.lost", "c/a/2")]


def test_open_findings_of_a_dead_machine_are_unknown_and_name_the_cause() -> None:
    fleet = Fleet()
    fleet.judge(60, gpus={"lost": [1, 0, 0, 0]})
    dead = {"unseen_seconds": [100, 0], "interval_seconds": [30, 30]}
    for _ in range(5):
        fleet.judge(60, machines=dead, gpus={"lost": [0, 0, 0, 0]})
    found = {one.rule: (one.state, one.hidden_by) for one in fleet.findings.list_open()}
    assert found == {
        "node.missing": (FindingState.OPEN, ""),
        "gpu.lost": (FindingState.UNKNOWN, "node.missing"),
    }


def test_conflict_of_a_machine_that_no_longer_reports_closes() -> None:
    fleet = Fleet()
    assert fleet.judge(60, machines={"identity_conflict": [1, 1]}) == [
        ("opened", "node.identity_conflict", "c/a"),
        ("opened", "node.identity_conflict", "c/b"),
    ]
    dead = {"unseen_seconds": [0, 500], "interval_seconds": [30, 30], "identity_conflict": [0, 0]}
    found = [one for _ in range(4) for one in fleet.judge(60, machines=dead)]
    assert [one for one in found if one[1] == "node.identity_conflict"] == [
        ("closed", "node.identity_conflict", "c/a"),
        ("closed", "node.identity_conflict", "c/b"),
    ]


def test_dead_cluster_opens_one_finding() -> None:
    fleet = Fleet()
    opened = []
    for unseen in range(30, 1000, 60):
        opened += fleet.judge(
            60,
            cluster={"unseen_seconds": unseen, "late_after_seconds": 75, "stale_after_seconds": 300},
            machines={"unseen_seconds": [unseen, unseen + 29], "interval_seconds": [30, 30]},
            gpus={"failed_core_readings": [3] * 4},
        )
    assert opened == [("opened", "cluster.stale", "c")]


def test_cluster_without_gpu_values_is_one_finding() -> None:
    fleet = Fleet()
    opened = []
    for age in range(30, 1800, 60):
        opened += fleet.judge(
            60,
            cluster={"unseen_seconds": 20, "late_after_seconds": 75, "newest_value_seconds": age},
            machines={"gpu_value_seconds": [age, age], "gpu_interval_seconds": [10, 10]},
        )
    assert opened == [("opened", "cluster.collector_broken", "c")]


def test_machine_with_stale_gpus_is_one_finding() -> None:
    fleet = Fleet()
    opened = []
    for age in range(30, 900, 60):
        opened += fleet.judge(
            60,
            machines={"gpu_value_seconds": [age, 5], "gpu_interval_seconds": [10, 10], "unresolved_devices": [2, 0]},
            gpus={"contradicting_holders": [age > 120, 0, 0, 0]},
        )
    assert opened == [("opened", "node.gpus_stale", "c/a")]


def test_hub_that_does_not_ingest_hides_missing_reports_only() -> None:
    fleet = Fleet()
    found = []
    for _ in range(4):
        found += fleet.judge(
            60,
            hub={"ingesting": 0},
            cluster={"unseen_seconds": 900, "late_after_seconds": 75, "stale_after_seconds": 300},
            machines={"unseen_seconds": [900, 900], "interval_seconds": [30, 30]},
        )
    assert found == [("opened", "hub.not_ingesting", "hub")]
    fleet = Fleet()
    found = fleet.judge(60, hub={"ingesting": 0}, gpus={"lost": [1, 0, 0, 0]})
    assert found == [("opened", "gpu.lost", "c/a/1")]


def test_failure_of_many_clusters_opens_one_finding() -> None:
    fleet = Fleet()
    found = fleet.judge(
        60,
        hub={"jointly_late_clusters": 5, "clusters": 10},
        cluster={"unseen_seconds": 900, "late_after_seconds": 75, "stale_after_seconds": 300},
        gpus={"lost": [1, 0, 0, 0]},
    )
    assert found == [("opened", "hub.network", "hub")]


def test_lost_gpu_hides_its_own_effects_only() -> None:
    fleet = Fleet()
    found = []
    for _ in range(5):
        found += fleet.judge(
            60,
            machines={"driver_works": [1, 1]},
            gpus={"lost": [1, 0, 0, 0], "xids_reset": [1, 0, 0, 0], "failed_core_readings": [9, 9, 0, 0]},
        )
    assert found == [("opened", "gpu.lost", "c/a/1"), ("opened", "gpu.metrics_missing", "c/a/2")]


def test_findings_of_a_retired_machine_are_closed() -> None:
    fleet = Fleet()
    gpus = {"lost": [1, 0, 1, 0]}
    fleet.judge(60, gpus=gpus)
    assert fleet.judge(60, gpus=gpus, retired_machines=(True, False)) == [("closed", "gpu.lost", "c/a/1")]
    assert fleet.judge(60, gpus=gpus, retired_machines=(True, False)) == []


def test_flapping_finding_stays_open() -> None:
    fleet = Fleet([HUNG])
    found: list[str] = []
    for _ in range(10):
        for verdict in (FIRING, FIRING, FIRING, HEALTHY, HEALTHY, HEALTHY):
            found += fleet.hang(60, verdict)
    assert found == ["opened", "closed", "opened", "closed", "opened"]
    (finding,) = fleet.findings.list_open()
    assert finding.openings == 3
    found = [kind for _ in range(int(FLAP_SECONDS / 60)) for kind in fleet.hang(60, HEALTHY)]
    assert found == ["closed"]


def test_times_of_transitions_increase_if_the_clock_is_set_back() -> None:
    fleet = Fleet()
    transitions: list[FindingTransition] = []
    for seconds, lost in ((0, 1), (-3600, 0), (60, 0), (60, 0), (60, 1)):
        fleet.at += seconds * NANOS
        table = FactTable(RuleScope.DEVICE, ("g",), {"lost": [lost]})
        transitions += fleet.findings.update(judge(FleetFacts.of(table), RULES, fleet.thresholds, fleet.at))
    assert [one.kind for one in transitions] == ["opened", "closed", "opened"]
    assert transitions[0].at < transitions[1].at < transitions[2].at
    assert len({one.finding.id for one in transitions}) == 2


def test_finding_of_a_removed_rule_is_closed() -> None:
    fleet = Fleet()
    fleet.judge(60, gpus={"lost": [1, 0, 0, 0]})
    later = Fleet([HUNG], fleet.findings.export())
    assert later.judge(60, gpus={"hung": [0] * 4}) == [("closed", "gpu.lost", "c/a/1")]
    assert later.findings.export().tracked == ()


def test_number_of_findings_is_bounded() -> None:
    fleet = Fleet()
    fleet.findings = Findings(RULES, fleet.thresholds, max_tracked=2)
    assert len(fleet.judge(60, gpus={"lost": [1, 1, 1, 1]})) == 2
    assert fleet.findings.untracked == 2
    assert len(fleet.findings.export().tracked) == 2


def lost_gpus(findings: Findings, minute: int, gpus: Mapping[str, int], **tables: FactTable) -> set[str]:
    """Judge clusters with a number of lost GPUs each; return the subjects of all open findings."""
    keys = [f"{cluster}/m/gpu/{number}" for cluster, count in gpus.items() for number in range(count)]
    facts = FleetFacts.of(
        tables.get("hub", FactTable(RuleScope.HUB)),
        FactTable(
            RuleScope.CLUSTER, tuple(gpus), {"expected_gpus": [9] * len(gpus), "reporting_gpus": [0] * len(gpus)}
        ),
        tables.get("senders", FactTable(RuleScope.SENDER)),
        FactTable(RuleScope.DEVICE, keys, {"lost": [1] * len(keys)}),
    )
    rules = [rule for rule in RULES if rule.scope is not RuleScope.DEVICE or rule is LOST]
    findings.update(judge(facts, rules, Thresholds(rules), START + minute * 60 * NANOS))
    return {one.scope for one in findings.list_open()}


def test_cluster_cannot_displace_findings_of_others() -> None:
    findings = Findings(RULES, Thresholds(RULES), max_tracked=100)
    found = lost_gpus(findings, 0, {"evil": 1000, "good": 0, "other": 3})
    assert sum(one.startswith("evil/") for one in found) < 100
    assert sum(one.startswith("other/") for one in found) == 3
    assert findings.untracked == 1000 + 3 - len(found)
    found = lost_gpus(findings, 1, {"evil": 1000, "good": 1000, "other": 3})
    assert sum(one.startswith("good/") for one in found) == 100 // (2 * 3)
    assert len([one for one in found if "/" in one]) <= 100


def test_findings_of_hub_clusters_and_senders_are_always_tracked() -> None:
    findings = Findings(RULES, Thresholds(RULES), max_tracked=10)
    hub = FactTable(RuleScope.HUB, ("",), {"flush_failures": [1]})
    senders = FactTable(RuleScope.SENDER, ("evil/s", "evil/t"), {"dropped_batches": [1, 1]})
    for minute in range(7):
        found = lost_gpus(findings, minute, {"evil": 1000}, hub=hub, senders=senders)
    assert {"", "evil", "evil/s", "evil/t"} <= found
    assert len(found) == 10 + 4


def test_closed_findings_free_their_places() -> None:
    findings = Findings(RULES, Thresholds(RULES), max_tracked=10)
    lost_gpus(findings, 0, {"evil": 1000})
    facts = FleetFacts.of(
        FactTable(RuleScope.CLUSTER, ("evil",), retired=[True]),
        FactTable(RuleScope.DEVICE, [f"evil/m/gpu/{number}" for number in range(1000)], retired=[True] * 1000),
    )
    findings.update(judge(facts, RULES, Thresholds(RULES), START + 60 * NANOS))
    assert findings.export().tracked == ()
    assert len(lost_gpus(findings, 2, {"good": 1000})) == 10


def track_lost_gpu() -> Findings:
    """Return the findings of one rule, with an open finding about a GPU of cluster `c`."""
    findings = Findings([LOST], Thresholds([LOST]))
    assert lost_gpus(findings, 0, {"c": 1}) == {"c/m/gpu/0"}
    return findings


def gone(findings: Findings, minute: float, unread: Sequence[str] = ()) -> list[FindingTransition]:
    """Judge a fleet without the lost GPU of cluster `c`."""
    facts = FleetFacts.of(FactTable(RuleScope.DEVICE, ("c/m/gpu/other",), {"lost": [0]}), unread=frozenset(unread))
    return list(findings.update(judge(facts, [LOST], Thresholds([LOST]), START + int(minute * 60) * NANOS)))


def test_finding_without_its_subject_closes_after_a_week() -> None:
    findings = track_lost_gpu()
    week = int(GONE_SECONDS / 180)
    assert [one for step in range(1, week + 1) for one in gone(findings, 3 * step)] == []
    (closed,) = gone(findings, 3 * week + 3)
    assert (closed.kind, closed.reason) == (TransitionKind.CLOSED, TransitionReason.SUBJECT_GONE)
    assert findings.export().tracked == ()


def test_subject_that_returns_within_a_week_keeps_its_finding() -> None:
    findings = track_lost_gpu()
    week = int(GONE_SECONDS / 180)
    found = [one for step in range(1, week) for one in gone(findings, 3 * step)]
    assert lost_gpus(findings, 3 * week, {"c": 1}) == {"c/m/gpu/0"}
    found += [one for step in range(week + 1, 2 * week) for one in gone(findings, 3 * step)]
    assert found == []


def test_time_without_judgements_or_readings_is_not_time_without_the_subject() -> None:
    findings = track_lost_gpu()
    week = int(GONE_SECONDS / 60)
    found = [one for step in range(1, 20) for one in gone(findings, step * week)]
    found += [one for step in range(1, 4000) for one in gone(findings, 20 * week + 3 * step, unread=["c"])]
    assert found == []
    assert [one.phase for one in findings.export().tracked] == [FindingPhase.OPEN]


VERDICTS = st.lists(st.sampled_from([FIRING, FIRING, HEALTHY, HEALTHY, UNKNOWN, RETIRED]), min_size=3, max_size=3)
STEPS = st.lists(
    st.tuples(st.sampled_from([-600, 0, 1, 60, 60, 60, 120, 7200]), VERDICTS, st.booleans()), min_size=1, max_size=60
)


def facts_of(verdicts: Sequence[Verdict]) -> FleetFacts:
    numbers = [np.nan if one is None or isinstance(one, str) else one for one in verdicts]
    keys = tuple(str(number) for number in range(len(verdicts)))
    return FleetFacts.of(
        FactTable(RuleScope.DEVICE, keys, {"hung": numbers}, retired=[one == RETIRED for one in verdicts])
    )


@settings(max_examples=examples(60, 2000), deadline=None)
@given(steps=STEPS)
def test_random_histories(steps: list[tuple[int, list[Verdict], bool]]) -> None:
    """Openings and closings alternate, unknown changes nothing, and a restart at any point changes nothing."""
    thresholds = Thresholds([HUNG])
    kept = Findings([HUNG], thresholds)
    restarted = Findings([HUNG], thresholds)
    is_open: dict[str, str] = {}
    newest, at = 0, START
    for seconds, verdicts, restart in steps:
        at += seconds * NANOS
        judgement = judge(facts_of(verdicts), [HUNG], thresholds, at)
        transitions = kept.update(judgement)
        if restart:
            state = msgspec.msgpack.decode(msgspec.msgpack.encode(restarted.export()), type=FindingsState)
            restarted = Findings([HUNG], thresholds, state)
        assert restarted.update(judgement) == transitions
        assert restarted.list_open() == kept.list_open()
        for one in transitions:
            verdict = verdicts[int(one.finding.scope)]
            assert one.at > newest
            if one.kind is TransitionKind.OPENED:
                assert verdict == FIRING
                assert one.finding.scope not in is_open
                is_open[one.finding.scope] = one.finding.id
            else:
                assert one.kind is TransitionKind.CLOSED
                assert verdict in (HEALTHY, RETIRED)
                assert is_open.pop(one.finding.scope) == one.finding.id
        newest = max([newest, *(one.at for one in transitions)])
        assert {one.scope: one.id for one in kept.list_open()} == is_open


@settings(max_examples=examples(40, 1000), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([30, 60, 120]),
            st.lists(st.sampled_from([0, 0, 100, None]), min_size=2, max_size=2),
            st.lists(st.sampled_from([FIRING, HEALTHY, UNKNOWN]), min_size=4, max_size=4),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_effect_changes_nothing_while_its_cause_lasts(
    steps: list[tuple[int, list[float | None], list[float | None]]],
) -> None:
    """While a machine is missing, or its finding is open, no finding of its GPUs opens or closes."""
    rules = [RULES_BY_ID["node.missing"], RULES_BY_ID["gpu.lost"]]
    fleet = Fleet(rules)
    for seconds, unseen, lost in steps:
        before = {one.scope for one in fleet.findings.list_open() if one.rule == "node.missing"}
        found = fleet.judge(
            seconds, machines={"unseen_seconds": unseen, "interval_seconds": [30, 30]}, gpus={"lost": lost}
        )
        missing = before | {key for key, one in zip(("c/a", "c/b"), unseen, strict=True) if one == 100}
        changed = {scope.rsplit("/", 1)[0] for _, rule, scope in found if rule == "gpu.lost"}
        assert not changed & missing


@settings(max_examples=examples(60, 2000), deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([-(10**8), -600, 0, 1, 60, 60, 60, 180, 7200, 10**8]),
            st.sampled_from([FIRING, FIRING, FIRING, HEALTHY, HEALTHY, HEALTHY, UNKNOWN]),
        ),
        max_size=80,
    )
)
def test_healthy_subject_closes_after_any_clock_jumps(steps: list[tuple[int, float | None]]) -> None:
    fleet = Fleet([HUNG])
    for seconds, verdict in steps:
        fleet.hang(seconds, verdict)
    for _ in range(int((HUNG.closing_seconds + FLAP_SECONDS) / 60) + 2):
        fleet.hang(60, HEALTHY)
    assert fleet.findings.list_open() == ()
    assert fleet.findings.export().tracked == ()


def test_flapping_finding_closes_after_the_clock_was_set_back() -> None:
    fleet = Fleet([HUNG])
    for seconds in (0, 10**8, -(10**8)):
        fleet.hang(seconds, HEALTHY)
    found: list[str] = []
    for _ in range(3):
        for verdict in (FIRING, FIRING, FIRING, HEALTHY, HEALTHY, HEALTHY):
            found += fleet.hang(60, verdict)
    assert found == ["opened", "closed", "opened", "closed", "opened"]
    found = [kind for _ in range(int(FLAP_SECONDS / 60)) for kind in fleet.hang(60, HEALTHY)]
    assert found == ["closed"]
