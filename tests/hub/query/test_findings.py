"""Finding queries over findings in memory: pages, live values, acknowledgements, silences, tenants."""

import datetime as dt
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.query.finding_records import NOT_YET, RuleEvaluation
from gpufleet.hub.query.findings import MAX_ALLOCATIONS, MAX_SILENCES, FindingFilters, FindingQueries
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.paging import PageRequest, parse_page_request
from gpufleet.hub.query.targets import QueryExecutor
from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.findings import FindingPage, FindingStatus
from gpufleet.model.errors import ConflictError, NotFoundError, RegistryError
from gpufleet.model.finding import Finding, FindingState, RuleScope, Severity
from gpufleet.model.machine import Machine
from gpufleet.model.stored.findings import FindingsState
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.web.hub.findings import FindingPlace
from tests.fakes.clock import FakeClock
from tests.support.findings import EvaluatorStub, MemoryFindings, make_finding, transitions_of

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
AT = FakeClock().now_ns() - 3600 * NANOS
EMPTY = FindingFilters()


class Subjects:
    """Machines and allocations of the test."""

    def __init__(self) -> None:
        self.mine: list[Allocation] = []

    def find_machines(self, cluster: str, name: str) -> tuple[MachineRecord, ...]:
        machine = Machine(name=f"node of {name}")
        return (
            MachineRecord(id=name, cluster=cluster, machine=machine, sender="s", first_seen=START, last_seen=START),
        )

    def allocations(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        return tuple(one for one in self.mine if tenant in (None, one.spec.tenant))

    def allocation(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
        for one in self.allocations(tenant):
            if one.id == id:
                return one
        raise NotFoundError(f"there is no allocation {id!r}")

    def add(self, id_: str, valid_to: dt.datetime | None = None) -> None:
        spec = AllocationSpec(
            kind=AllocationKind.SLURM_JOB,
            target=Target(cluster="c", job_id=id_),
            tenant="acme",
            valid_from=START - dt.timedelta(days=2),
            valid_to=valid_to,
        )
        self.mine.append(Allocation(id=id_, generation=1, spec=spec, created_at=START))


class Site:
    """Queries over fakes."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.findings, self.live, self.subjects, self.clock = MemoryFindings(), EvaluatorStub(), Subjects(), FakeClock()
        self.queries = FindingQueries(
            findings=self.findings,
            live=self.live,
            registry=self.subjects,
            executor=QueryExecutor(threads),
            clock=self.clock,
        )

    def save(self, *found: Finding, is_live: bool = True) -> None:
        """Store findings; the evaluator has the open ones."""
        for one in found:
            self.findings.save_findings(FindingsState(), transitions_of(one))
        if is_live:
            self.live.found = (*self.live.found, *(one for one in found if one.closed_at is None))
            self.live.status = RuleEvaluation(at=self.clock.now_ns())

    async def pages(
        self, filters: FindingFilters = EMPTY, limit: int = 2, tenant: str | None = None
    ) -> list[list[str]]:
        """Return the ids of each page."""
        pages: list[list[str]] = []
        cursor = None
        while True:
            request = parse_page_request(limit, cursor, "findings", place=FindingPlace)
            page = await self.queries.page(filters, request, tenant)
            pages.append([one.id for one in page.items])
            cursor = page.next
            if cursor is None:
                return pages


@pytest.fixture
def site() -> Iterator[Site]:
    with ThreadPoolExecutor(1) as threads:
        yield Site(threads)


def gpu(number: int, at: int, **more: object) -> Finding:
    return make_finding("gpu.lost", f"c/m/gpu/{number}", at, **more)  # type: ignore[arg-type]


async def test_pages_join_in_the_order_of_opening(site: Site) -> None:
    found = [gpu(number, AT + number // 2) for number in range(5)]
    site.save(*found)
    expected = [one.id for one in sorted(found, key=lambda one: (-one.opened_at, one.id))]
    assert await site.pages() == [expected[:2], expected[2:4], expected[4:]]
    assert await site.pages(limit=5) == [expected]


async def test_filters_select_findings(site: Site) -> None:
    lost = gpu(1, AT, severity=Severity.CRITICAL)
    node = make_finding("node.missing", "d/m-2", AT + 1, closed_at=AT + 10)
    hub = make_finding("hub.network", "", AT + 2)
    sender = make_finding("sender.clock_skew", "d/m-2", AT + 3)
    site.save(lost, node, hub, sender)
    for filters, expected in (
        (FindingFilters(cluster="d"), [sender, node]),
        (FindingFilters(rules=("gpu.lost", "hub.network")), [hub, lost]),
        (FindingFilters(severities=(Severity.CRITICAL,)), [lost]),
        (FindingFilters(scopes=(RuleScope.MACHINE,)), [node]),
        (FindingFilters(scopes=(RuleScope.MACHINE, RuleScope.DEVICE)), [node, lost]),
        (FindingFilters(scopes=(RuleScope.MACHINE,), rules=("gpu.lost",)), []),
        (FindingFilters(subject="d/m-2"), [sender, node]),
        (FindingFilters(subject="d/m-2", scopes=(RuleScope.MACHINE, RuleScope.DEVICE)), [node]),
        (FindingFilters(subject="c/m"), [lost]),
        (FindingFilters(subject=""), [hub]),
        (FindingFilters(start=AT + 10), [sender, hub, lost]),
        (FindingFilters(end=AT + 1), [lost]),
        (FindingFilters(statuses=(FindingStatus.CLOSED,)), [node]),
        (FindingFilters(statuses=(FindingStatus.CLOSED, FindingStatus.OPEN)), [sender, hub, node, lost]),
        (FindingFilters(statuses=(FindingStatus.UNKNOWN,)), []),
    ):
        assert await site.pages(filters, limit=10) == [[one.id for one in expected]], filters


async def test_states_are_those_of_the_newest_evaluation(site: Site) -> None:
    known, unknown, missing = gpu(1, AT), gpu(2, AT + 1), gpu(3, AT + 2)
    site.save(known, unknown, missing)
    live = msgspec.structs.replace(unknown, state=FindingState.UNKNOWN, hidden_by="node.missing", last=AT + 5)
    site.live.found = (known, live)
    assert await site.pages(FindingFilters(statuses=(FindingStatus.UNKNOWN,))) == [[missing.id, unknown.id]]
    assert await site.pages(FindingFilters(statuses=(FindingStatus.OPEN,))) == [[known.id]]
    detail = await site.queries.get(unknown.id, None)
    assert (detail.state, detail.hidden_by, detail.last) == ("unknown", "node.missing", to_datetime(AT + 5))
    assert [one.kind for one in detail.timeline] == ["opened"]


async def test_page_is_cut_when_too_many_findings_were_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufleet.hub.query.findings.MAX_SCANNED", 4)
    monkeypatch.setattr("gpufleet.hub.query.findings.SCANNED_AT_ONCE", 2)
    found = [gpu(number, AT - number) for number in range(9)]
    site.save(*found)
    site.live.found = tuple(found[5:])  # the others are unknown
    pages = await site.pages(FindingFilters(statuses=(FindingStatus.OPEN,)), limit=3)
    assert pages == [[], [one.id for one in found[5:8]], [found[8].id]]


async def test_page_states_when_the_rules_were_evaluated(site: Site) -> None:
    for tenant in (None, "acme"):
        evaluation = (await site.queries.page(EMPTY, PageRequest(1), tenant)).evaluation
        assert (evaluation.evaluated_at, evaluation.is_current, evaluation.failure) == (None, False, NOT_YET)
    site.live.status = RuleEvaluation(at=site.clock.now_ns())
    assert (await site.queries.page(EMPTY, PageRequest(1), None)).evaluation.is_current
    site.clock.advance(181)
    evaluation = (await site.queries.page(EMPTY, PageRequest(1), None)).evaluation
    assert (evaluation.age_seconds, evaluation.is_current) == (181.0, False)


async def test_acknowledgement_ends_by_time_or_withdrawal(site: Site) -> None:
    found = gpu(1, AT)
    site.save(found)
    later = site.clock.now_ns() + 3600 * NANOS
    record = await site.queries.acknowledge(found.id, later, "alice", "in repair")
    assert record.acknowledgement is not None
    assert (record.acknowledged, record.acknowledgement.by, record.acknowledgement.note) == (True, "alice", "in repair")
    acknowledged = FindingFilters(statuses=(FindingStatus.ACKNOWLEDGED,))
    assert await site.pages(acknowledged) == [[found.id]]
    site.clock.advance(3600)
    assert await site.pages(acknowledged) == [[]]
    await site.queries.acknowledge(found.id, later + 3600 * NANOS, "alice", "")
    record = await site.queries.withdraw(found.id, "bob")
    assert record.acknowledgement is not None
    assert (record.acknowledged, record.acknowledgement.by) == (False, "bob")
    assert (await site.queries.withdraw(found.id, "carol")).acknowledgement == record.acknowledgement


async def test_closed_and_unknown_findings_cannot_be_acknowledged(site: Site) -> None:
    closed = gpu(1, AT, closed_at=AT + 1)
    site.save(closed)
    with pytest.raises(ConflictError):
        await site.queries.acknowledge(closed.id, AT + 10**15, "alice", "")
    assert not (await site.queries.withdraw(closed.id, "alice")).acknowledged
    for id_ in ("0" * 24, "x", "\x00"):
        with pytest.raises(NotFoundError):
            await site.queries.acknowledge(id_, AT + 10**15, "alice", "")
        with pytest.raises(NotFoundError):
            await site.queries.withdraw(id_, "alice")
        with pytest.raises(NotFoundError):
            await site.queries.get(id_, None)


async def test_silences_are_listed_until_they_end(site: Site) -> None:
    found = gpu(1, AT)
    site.save(found)
    later = site.clock.now_ns() + 3600 * NANOS
    made = await site.queries.add_silence("gpu.lost", "c/m", (RuleScope.DEVICE,), later, "alice", "window")
    assert (made.rule, made.subject, made.scopes, made.by) == ("gpu.lost", "c/m", ("device",), "alice")
    assert (await site.queries.get(found.id, None)).silenced_until == to_datetime(later)
    assert await site.queries.silences() == (made,)
    ended = await site.queries.end_silence(made.id)
    assert ended.until == to_datetime(site.clock.now_ns())
    assert await site.queries.end_silence(made.id) == ended
    assert (await site.queries.get(found.id, None)).silenced_until is None
    assert await site.queries.silences() == ()
    for id_ in ("0" * 16, "x"):
        with pytest.raises(NotFoundError):
            await site.queries.end_silence(id_)


async def test_number_of_silences_is_bounded(site: Site) -> None:
    later = site.clock.now_ns() + NANOS
    for _ in range(MAX_SILENCES):
        await site.queries.add_silence("gpu.lost", None, (), later, "alice", "")
    with pytest.raises(ConflictError):
        await site.queries.add_silence("gpu.lost", None, (), later, "alice", "")
    site.clock.advance(1)
    await site.queries.add_silence("gpu.lost", None, (), later + NANOS, "alice", "")


async def test_tenant_with_many_allocations_sees_those_of_the_interval(site: Site) -> None:
    for number in range(MAX_ALLOCATIONS):
        site.subjects.add(f"old-{number}", START - dt.timedelta(days=1))
    site.subjects.add("new")
    mine = make_finding("allocation.partial", "c/new", AT)
    old = make_finding("allocation.partial", "c/old-1", AT - 200_000 * NANOS)
    site.save(mine, old, make_finding("allocation.partial", "c/other", AT))
    with pytest.raises(InvalidQueryError) as caught:
        await site.pages(tenant="acme")
    assert caught.value.field == "subject"
    recent = FindingFilters(start=AT)
    assert await site.pages(recent, tenant="acme") == [[mine.id]]
    assert await site.pages(FindingFilters(subject="c/old-1"), tenant="acme") == [[old.id]]


async def test_tenant_cannot_detect_acknowledgements(site: Site) -> None:
    site.subjects.add("a")
    found = [make_finding("allocation.partial", "c/a", AT + number) for number in range(5)]
    ended = make_finding("allocation.partial", "c/a", AT - NANOS, closed_at=AT)
    site.save(*found, ended)
    statuses = [FindingStatus.OPEN, FindingStatus.UNKNOWN, FindingStatus.CLOSED]
    filters = [
        FindingFilters(statuses=one)
        for size in range(len(statuses) + 1)
        for one in itertools.combinations(statuses, size)
    ]

    async def answers() -> list[tuple[FindingPage, list[list[str]]]]:
        return [
            (await site.queries.page(one, PageRequest(2), "acme"), await site.pages(one, tenant="acme"))
            for one in filters
        ]

    before = await answers()
    later = site.clock.now_ns() + NANOS
    for one in found[1:4]:
        await site.queries.acknowledge(one.id, later, "alice", "")
    await site.queries.add_silence("allocation.partial", None, (), later, "alice", "")
    assert await answers() == before
    for more in ((), *itertools.combinations(statuses, 1), tuple(statuses)):
        with pytest.raises(InvalidQueryError) as caught:
            await site.pages(FindingFilters(statuses=(*more, FindingStatus.ACKNOWLEDGED)), tenant="acme")
        assert caught.value.field == "state"


async def test_tenant_sees_findings_of_listed_rules_only(site: Site) -> None:
    site.subjects.add("a")
    found = {rule.id: make_finding(rule.id, "c/a", AT, evidence={"overlapping_tenants": "1"}) for rule in RULES}
    site.save(*found.values())
    visible = [found["allocation.partial"].id, found["allocation.unavailable"].id]
    assert [sorted(one) for one in await site.pages(limit=100, tenant="acme")] == [sorted(visible)]
    for rule, one in found.items():
        by_rule = await site.pages(FindingFilters(rules=(rule,)), tenant="acme")
        assert by_rule == [[one.id] if one.id in visible else []], rule
        if one.id in visible:
            assert (await site.queries.get(one.id, "acme")).evidence == {}
        else:
            with pytest.raises(NotFoundError):
                await site.queries.get(one.id, "acme")


async def test_lookups_of_a_tenant_read_one_allocation(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.subjects.add("a")
    found = make_finding("allocation.partial", "c/a", AT)
    other = make_finding("allocation.partial", "d/a", AT)
    site.save(found, other)
    allocation = site.subjects.mine[0]
    monkeypatch.setattr(site.subjects, "allocations", None)
    monkeypatch.setattr(site.subjects, "allocation", lambda id_, tenant: allocation)
    assert await site.pages(FindingFilters(subject="c/a"), tenant="acme") == [[found.id]]
    assert await site.pages(FindingFilters(subject="d/a"), tenant="acme") == [[]]
    assert (await site.queries.get(found.id, "acme")).id == found.id
    with pytest.raises(NotFoundError):
        await site.queries.get(other.id, "acme")


async def test_registry_failure_is_reported(site: Site) -> None:
    site.findings.is_down = True
    with pytest.raises(RegistryError):
        await site.pages()


async def test_empty_interval_is_rejected(site: Site) -> None:
    with pytest.raises(InvalidQueryError):
        await site.pages(FindingFilters(start=AT, end=AT))
