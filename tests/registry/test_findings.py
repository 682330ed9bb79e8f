"""Findings in the registry: state, transitions, queries, acknowledgements, silences and removal.

Tests with `registry` also run over the fake of the port, `MemoryFindings`.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.fleet.rules.tracker import finding_id
from gpufleet.model.errors import ConflictError, NotFoundError, RegistryError
from gpufleet.model.finding import Finding, FindingState, Severity
from gpufleet.model.stored.findings import (
    FindingAcknowledgement,
    FindingPhase,
    FindingQuery,
    FindingsState,
    FindingTransition,
    LateStart,
    NumberedTransition,
    Silence,
    TrackedFinding,
    TransitionKind,
    TransitionReason,
)
from gpufleet.ports.findings import FindingRegistry
from gpufleet.registry import tables
from gpufleet.registry.database import Database
from gpufleet.registry.findings import SLICE, SqlFindings
from tests.support.findings import MemoryFindings
from tests.support.profiles import examples

NUL = "a/m1/gpu/\0'%_"
SCOPES = (
    "",
    "a",
    "a/m1",
    "a/m1/gpu/x",
    NUL,
    "a/m10",
    "A/m1",
    "a0",
    "a%",
    "a_/m1",
    "ab/m1",
    "\N{GREEK SMALL LETTER MU}/m",
)
RULES = ("gpu.lost", "node.missing")


@contextlib.contextmanager
def opened_database(dsn: str) -> Iterator[Database]:
    database = Database.open(dsn)
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    with opened_database(dsn) as database:
        yield database


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def registry(request: pytest.FixtureRequest, make_dsn: Callable[[str], str]) -> Iterator[FindingRegistry]:
    if request.param == "memory":
        yield MemoryFindings()
        return
    with opened_database(make_dsn(request.param)) as database:
        yield SqlFindings(database)


def make_finding(scope: str, opened_at: int, rule: str = "gpu.lost", closed_at: int | None = None) -> Finding:
    return Finding(
        id=finding_id(rule, scope, opened_at),
        rule=rule,
        scope=scope,
        severity=Severity.WARNING,
        state=FindingState.OPEN if closed_at is None else FindingState.CLOSED,
        evidence={"text": "\0 \N{SNOWMAN}"},
        first=opened_at,
        last=opened_at,
        opened_at=opened_at,
        closed_at=closed_at,
    )


def opened(finding: Finding) -> FindingTransition:
    kind, reason = TransitionKind.OPENED, TransitionReason.FIRING
    return FindingTransition(kind=kind, at=finding.opened_at, reason=reason, finding=finding)


def escalated(finding: Finding, at: int) -> FindingTransition:
    kind, reason = TransitionKind.ESCALATED, TransitionReason.FIRING
    finding = msgspec.structs.replace(finding, severity=Severity.CRITICAL, last=at)
    return FindingTransition(kind=kind, at=at, reason=reason, finding=finding)


def closed(finding: Finding, at: int) -> FindingTransition:
    kind, reason = TransitionKind.CLOSED, TransitionReason.HEALTHY
    finding = msgspec.structs.replace(finding, state=FindingState.CLOSED, closed_at=at)
    return FindingTransition(kind=kind, at=at, reason=reason, finding=finding)


def state_at(at: int) -> FindingsState:
    tracked = TrackedFinding(rule="gpu.lost", scope=NUL, severity=Severity.INFO, phase=FindingPhase.OPEN, opened_at=at)
    return FindingsState(at=at, clock=at + 1, tracked=(tracked,))


def acknowledgement(finding: str, until: int, note: str = "") -> FindingAcknowledgement:
    return FindingAcknowledgement(finding=finding, at=1, until=until, actor="local", note=note)


def test_saved_state_and_transitions_are_read_back(registry: FindingRegistry) -> None:
    assert registry.findings_state() == FindingsState()
    first, second = make_finding(NUL, 10), make_finding("", 11)
    saved = [opened(first), opened(second), escalated(first, 20)]
    registry.save_findings(state_at(10), saved[:1])
    registry.save_findings(state_at(20), saved[1:])
    assert registry.findings_state() == state_at(20)
    assert registry.finding(first.id) == saved[2].finding
    assert registry.finding_timeline(first.id) == (saved[0], saved[2])
    numbered = registry.finding_transitions(0, 10)
    assert [one.transition for one in numbered] == saved
    assert registry.finding_transitions(numbered[0].number, 1) == numbered[1:2]
    assert registry.finding_transitions(numbered[-1].number, 1) == ()


def test_late_starts_are_replaced_and_deleted_by_sender(registry: FindingRegistry) -> None:
    assert registry.late_starts() == ()
    first, second, other = (
        LateStart(cluster=cluster, sender=sender, start=start)
        for cluster, sender, start in (("a", "s", 2**62), ("a", "t'%", 20), ("b", "s", 30))
    )
    registry.save_late_starts([first, second, other])
    earlier = msgspec.structs.replace(first, start=5)
    registry.save_late_starts([earlier], {("a", "t'%"), ("b", "unknown")})
    assert registry.late_starts() == (earlier, other)


def test_repeated_transitions_change_nothing_but_the_state(database: Database) -> None:
    registry = SqlFindings(database)
    finding = make_finding("a/m1", 10)
    registry.save_findings(state_at(10), [opened(finding), opened(finding)])
    registry.save_findings(state_at(30), [opened(finding), closed(finding, 30)])
    before = registry.finding_transitions(0, 10)
    registry.save_findings(state_at(40), [opened(finding)])
    assert [one.transition.kind for one in before] == [TransitionKind.OPENED, TransitionKind.CLOSED]
    assert registry.finding_transitions(0, 10) == before
    assert registry.finding(finding.id).closed_at == 30
    assert registry.findings_state() == state_at(40)


def test_failed_save_leaves_nothing(database: Database) -> None:
    registry = SqlFindings(database)
    kept, other = make_finding("a", 10), make_finding("b", 20)
    registry.save_findings(state_at(10), [opened(kept)])
    before = registry.finding_transitions(0, 10)
    with database.writing() as connection:  # the second insert of a transition with the same time fails
        connection.execute(sa.text("CREATE UNIQUE INDEX one_at_a_time ON finding_transitions (at)"))
    with pytest.raises(RegistryError):
        registry.save_findings(state_at(20), [escalated(kept, 20), opened(other)])
    assert registry.findings_state() == state_at(10)
    assert registry.findings(FindingQuery()) == (kept,)
    assert registry.finding_transitions(0, 10) == before
    with database.writing() as connection:
        connection.execute(sa.text("DROP INDEX one_at_a_time"))
    registry.save_findings(state_at(20), [escalated(kept, 20), opened(other)])
    assert registry.findings_state() == state_at(20)
    assert len(registry.finding_transitions(0, 10)) == 3


def test_numbers_increase_in_the_order_of_commits(dsn: str, database: Database) -> None:
    count, others = 20, (Database.open(dsn), Database.open(dsn))
    reader = SqlFindings(database)

    def save(scope: str, registry: FindingRegistry) -> None:
        for at in range(1, count + 1):
            registry.save_findings(state_at(at), [opened(make_finding(f"{scope}/{part}", at)) for part in range(20)])

    seen: list[NumberedTransition] = []
    with ThreadPoolExecutor(len(others)) as pool:
        writers = [pool.submit(save, str(at), SqlFindings(one)) for at, one in enumerate(others)]
        while wait(writers, timeout=0.005).not_done:  # a busy reader would keep the interpreter from the writers
            seen += reader.finding_transitions(seen[-1].number if seen else 0, 1000)
        for writer in writers:
            writer.result()
    seen += reader.finding_transitions(seen[-1].number if seen else 0, 1000)
    assert tuple(seen) == reader.finding_transitions(0, 10_000)
    assert len(seen) == 2 * 20 * count
    for other in others:
        other.close()


def test_removed_transitions_do_not_free_their_numbers(registry: FindingRegistry) -> None:
    finding = make_finding("a", 10)
    registry.save_findings(state_at(10), [opened(finding), closed(finding, 11)])
    newest = registry.finding_transitions(0, 10)[-1].number
    assert registry.remove_findings(12, 10) == 1
    registry.save_findings(state_at(20), [opened(make_finding("a", 20))])
    assert registry.finding_transitions(0, 10)[0].number > newest


def test_acknowledgement_replaces_an_earlier_one(registry: FindingRegistry) -> None:
    finding = make_finding("a", 10)
    registry.save_findings(state_at(10), [opened(finding)])
    for until in (100, 50):
        expected = msgspec.structs.replace(finding, acknowledged_until=until)
        given = acknowledgement(finding.id, until, "rack 7")
        assert registry.acknowledge_finding(given) == expected
        assert registry.finding(finding.id) == expected
        assert registry.findings(FindingQuery()) == (expected,)
        assert registry.finding_acknowledgements(["unknown", finding.id]) == {finding.id: given}
    registry.save_findings(state_at(20), [closed(finding, 20)])
    assert registry.finding(finding.id).acknowledged_until == 50
    with pytest.raises(ConflictError, match="closed"):
        registry.acknowledge_finding(acknowledgement(finding.id, 100))
    assert registry.finding(finding.id).acknowledged_until == 50


@pytest.mark.parametrize("id_", ["unknown", "", "\0"])
def test_unknown_ids_are_not_found(registry: FindingRegistry, id_: str) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: registry.finding(id_),
        lambda: registry.acknowledge_finding(acknowledgement(id_, 100)),
        lambda: registry.end_silence(id_, 1),
    )
    for call in calls:
        with pytest.raises(NotFoundError):
            call()
    assert registry.finding_timeline(id_) == ()
    assert registry.notified(id_) is None
    assert registry.findings(FindingQuery(rules=(id_,), after=(1, id_))) == ()


def test_silences_end_and_are_listed_oldest_first(registry: FindingRegistry) -> None:
    newer = Silence(id="a", rule="gpu.lost", at=20, until=100, actor="local", note="\0")
    older = Silence(id="b", scope=NUL, at=10, until=50, actor="t")
    for one in (newer, older):
        registry.add_silence(one)
    assert registry.silences(0) == registry.silences(49) == (older, newer)
    assert registry.silences(50) == (newer,)
    ended = registry.end_silence("a", 30)
    assert ended == msgspec.structs.replace(newer, until=30)
    assert registry.end_silence("a", 30) == registry.end_silence("a", 31) == ended
    assert registry.silences(0) == (older, ended)
    assert registry.silences(30) == (older,)


def test_findings_of_slow_receivers_are_not_removed(registry: FindingRegistry) -> None:
    findings = [make_finding("a", at) for at in range(1, 6)]
    registry.save_findings(state_at(9), [opened(one) for one in findings])
    registry.save_findings(state_at(9), [closed(one, 10 + one.opened_at) for one in findings[:4]])
    registry.acknowledge_finding(acknowledgement(findings[4].id, 100))
    numbers = {one.transition.finding.id: one.number for one in registry.finding_transitions(0, 100)}
    registry.set_notified("fast", 10**9)
    registry.set_notified("slow", numbers[findings[0].id])
    before = registry.finding_transitions(0, 100)
    assert registry.remove_findings(1000, 100) == 1
    kept = tuple(one for one in before if one.transition.finding.id != findings[0].id)
    assert registry.finding_transitions(0, 100) == kept
    registry.set_notified("slow", 10**6)
    assert registry.notified("slow") == 10**6
    assert registry.remove_findings(14, 1) == 1  # the oldest: the second
    assert [one.opened_at for one in registry.findings(FindingQuery())] == [5, 4, 3]
    assert registry.remove_findings(14, 100) == 1  # the fourth closed at 14
    assert registry.remove_findings(1000, 100) == 1
    assert registry.remove_findings(1000, 100) == 0
    (left,) = registry.findings(FindingQuery())
    assert (left.opened_at, left.acknowledged_until) == (5, 100)
    with pytest.raises(NotFoundError):
        registry.finding(findings[3].id)


def test_old_findings_are_removed_though_a_receiver_lags(registry: FindingRegistry) -> None:
    findings = [make_finding("a", at) for at in (1, 2, 3)]
    registry.save_findings(state_at(9), [opened(one) for one in findings])
    registry.save_findings(state_at(9), [closed(one, 10 + one.opened_at) for one in findings])
    registry.set_notified("slow", 0)
    assert registry.remove_findings(1000, 100) == 0
    assert registry.remove_findings(1000, 100, undelivered_before=12) == 1
    assert [one.opened_at for one in registry.findings(FindingQuery())] == [3, 2]


def test_numbers_of_other_receivers_are_removed(registry: FindingRegistry) -> None:
    for name in ("store", "webhook/a", "webhook/b\0"):
        registry.set_notified(name, 7)
    assert registry.keep_receivers(["store", "webhook/b\0", "webhook/new"]) == 1
    assert [registry.notified(one) for one in ("store", "webhook/a", "webhook/b\0")] == [7, None, 7]
    assert registry.keep_receivers([]) == 2


def test_ended_silences_are_removed_oldest_first(registry: FindingRegistry) -> None:
    for at in range(5):
        registry.add_silence(Silence(id=f"s{at}", at=at, until=10 + at, actor="local"))
    assert registry.remove_silences(13, 2) == 2
    assert registry.remove_silences(13, 2) == 1
    assert registry.remove_silences(13, 2) == 0
    assert [one.id for one in registry.silences(0)] == ["s3", "s4"]


def test_newest_transition_is_numbered(registry: FindingRegistry) -> None:
    assert registry.newest_transition() == 0
    finding = make_finding("a", 10)
    registry.save_findings(state_at(10), [opened(finding), closed(finding, 11)])
    assert registry.newest_transition() == registry.finding_transitions(0, 10)[-1].number


def test_notes_with_nul_are_stored(registry: FindingRegistry) -> None:
    finding = make_finding("a", 10)
    registry.save_findings(state_at(10), [opened(finding)])
    registry.acknowledge_finding(acknowledgement(finding.id, 100, "rack \0 7"))
    assert registry.finding_acknowledgements([finding.id])[finding.id].note.startswith("rack ")


def test_removal_includes_acknowledgements(registry: FindingRegistry) -> None:
    finding = make_finding("a", 10)
    registry.save_findings(state_at(10), [opened(finding)])
    registry.acknowledge_finding(acknowledgement(finding.id, 100))
    registry.save_findings(state_at(10), [closed(finding, 11)])
    assert registry.remove_findings(12, 10) == 1
    registry.save_findings(state_at(10), [opened(finding)])
    assert registry.finding(finding.id).acknowledged_until is None


def test_lists_exceed_the_parameters_of_a_statement(database: Database) -> None:
    registry = SqlFindings(database)
    scopes = [f"a/{number}" for number in range(7 * SLICE)]  # SQLite allows 32,766, PostgreSQL 65,535
    findings = [make_finding(scope, 10 + at % 7) for at, scope in enumerate(scopes[:: SLICE // 2])]
    registry.save_findings(state_at(10), [opened(one) for one in findings])
    expected = sorted(findings, key=lambda one: (-one.opened_at, one.id))
    subjects = (*scopes, *reversed(scopes))
    assert registry.findings(FindingQuery(subjects=subjects)) == tuple(expected)
    assert registry.findings(FindingQuery(subjects=subjects[: SLICE + 1], limit=2)) == tuple(
        [one for one in expected if one.scope in scopes[: SLICE + 1]][:2]
    )
    assert registry.findings(FindingQuery(subjects=())) == ()


def test_findings_of_several_slices_are_saved_and_removed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SqlFindings(database)
    monkeypatch.setattr("gpufleet.registry.findings.SLICE", 10)
    findings = [make_finding(f"a/{number}", 10) for number in range(25)]
    registry.save_findings(state_at(10), [opened(one) for one in findings])
    transitions = [closed(one, 20) for one in findings]
    registry.save_findings(state_at(20), [*map(opened, findings), *transitions])
    assert [one.transition for one in registry.finding_transitions(0, 100)] == [*map(opened, findings), *transitions]
    assert registry.remove_findings(21, 100) == len(findings)
    assert registry.finding_transitions(0, 10) == ()


def test_contract_history_is_read_back(registry: FindingRegistry) -> None:
    assert registry.contract_state() is None
    for state in (b"", b"\0history" * 1000):
        registry.save_contract_state(state)
        assert registry.contract_state() == state


def test_damaged_contract_history_is_a_registry_error(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(tables.CONTRACT_STATE.update().values(state=b"damaged"))
    with pytest.raises(RegistryError, match="backup"):
        SqlFindings(database).contract_state()


def test_damaged_state_is_a_registry_error(database: Database) -> None:
    registry = SqlFindings(database)
    registry.save_findings(state_at(10), [])
    for damaged in (b"", b"\0" * 20):
        with database.writing() as connection:
            connection.execute(tables.FINDINGS_STATE.update().values(state=damaged))
        with pytest.raises(RegistryError, match="backup"):
            registry.findings_state()


History = list[tuple[FindingTransition, ...]]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Draw the transitions of successive saves: openings, then escalations and closings of open findings."""
    history: History = []
    open_findings: dict[tuple[str, str], Finding] = {}
    key = st.tuples(st.sampled_from(RULES), st.sampled_from(SCOPES))
    for at in range(1, draw(st.integers(1, 8)) + 1):
        transitions = []
        for rule, scope in draw(st.lists(key, max_size=6, unique=True)):
            finding = open_findings.pop((rule, scope), None)
            if finding is None:
                transitions.append(opened(make_finding(scope, at, rule)))
            elif draw(st.booleans()):
                transitions.append(closed(finding, at))
                continue
            else:
                transitions.append(escalated(finding, at))
            open_findings[rule, scope] = transitions[-1].finding
        history.append(tuple(transitions))
        if draw(st.booleans()):  # as after an answer that was lost
            history.append(draw(st.sampled_from(history)))
    return history


INSTANTS = st.integers(0, 10)
QUERIES = st.builds(
    FindingQuery,
    clusters=st.none() | st.lists(st.sampled_from(("a", "A", "ab", "a%", "")), max_size=2).map(tuple),
    rules=st.lists(st.sampled_from((*RULES, "\0")), max_size=2).map(tuple),
    severities=st.lists(st.sampled_from(Severity), max_size=2).map(tuple),
    scope=st.none() | st.sampled_from((*SCOPES, "a/m", "a/m1/gpu", "%", "a/")),
    subjects=st.none() | st.lists(st.sampled_from((*SCOPES, "b")), max_size=5).map(tuple),
    is_closed=st.none() | st.booleans(),
    start=INSTANTS,
    end=INSTANTS | st.just(2**63 - 1),
    after=st.none() | st.tuples(INSTANTS, st.sampled_from(("", "7", "f"))),
    limit=st.integers(1, 20),
)


def expected_findings(findings: Sequence[Finding], query: FindingQuery) -> tuple[Finding, ...]:
    """Return the answer of a query by the definition of its fields."""

    def matches(one: Finding) -> bool:
        cluster = one.scope.split("/")[0] or None
        return (
            (query.clusters is None or (cluster is not None and cluster in query.clusters))
            and (not query.rules or one.rule in query.rules)
            and (not query.severities or one.severity in query.severities)
            and (query.scope is None or one.scope == query.scope or one.scope.startswith(query.scope + "/"))
            and (query.subjects is None or one.scope in query.subjects)
            and (query.is_closed is None or query.is_closed == (one.closed_at is not None))
            and one.opened_at < query.end
            and (one.closed_at is None or one.closed_at > query.start)
            and (query.after is None or (-one.opened_at, one.id) > (-query.after[0], query.after[1]))
        )

    return tuple(sorted(filter(matches, findings), key=lambda one: (-one.opened_at, one.id))[: query.limit])


def clear(database: Database) -> None:
    with database.writing() as connection:
        for table in (tables.FINDING_ACKNOWLEDGEMENTS, tables.FINDING_TRANSITIONS, tables.FINDINGS):
            connection.execute(table.delete())


def pages(registry: FindingRegistry, limit: int) -> Iterator[tuple[Finding, ...]]:
    after = None
    for _ in range(100):
        page = registry.findings(FindingQuery(after=after, limit=limit))
        if not page:
            return
        yield page
        after = (page[-1].opened_at, page[-1].id)


@settings(max_examples=examples(30, 500), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=histories(), queries=st.lists(QUERIES, min_size=15, max_size=25), acknowledged=st.sets(st.integers(0, 30))
)
def test_random_histories_match_a_model(
    database: Database, history: History, queries: list[FindingQuery], acknowledged: set[int]
) -> None:
    clear(database)
    registry: FindingRegistry = SqlFindings(database)
    for number, transitions in enumerate(history):
        registry.save_findings(state_at(number), transitions)
    stored = list(dict.fromkeys((one.finding.id, one.kind, one.at) for one in itertools.chain(*history)))
    by_key = {(one.finding.id, one.kind, one.at): one for one in itertools.chain(*history)}
    numbered = registry.finding_transitions(0, 1000)
    assert [one.transition for one in numbered] == [by_key[key] for key in stored]
    findings = {by_key[key].finding.id: by_key[key].finding for key in stored}
    for index, (id_, finding) in enumerate(findings.items()):
        if index in acknowledged and finding.closed_at is None:
            findings[id_] = registry.acknowledge_finding(acknowledgement(id_, 100 + index))
            assert findings[id_].acknowledged_until == 100 + index
    for query in queries:
        assert registry.findings(query) == expected_findings(list(findings.values()), query)
    listed = tuple(itertools.chain(*pages(registry, limit=4)))
    assert listed == expected_findings(list(findings.values()), FindingQuery(limit=1000))
