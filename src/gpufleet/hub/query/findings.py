"""Finding queries: lists, details, acknowledgements and silences. A tenant sees findings of its allocations only."""

import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from gpufleet.fleet.rules.table import RULES
from gpufleet.hub.query.allocations import check_id
from gpufleet.hub.query.events import is_active_within
from gpufleet.hub.query.finding_records import (
    TENANT_RULES,
    LiveFindings,
    evaluation_record,
    finding_record,
    for_tenant,
    is_acknowledged,
    machine_of,
    silence_record,
    statuses_of,
    timeline_entry,
    with_live_values,
)
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.query.targets import QueryExecutor
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.answer import MachineRecord
from gpufleet.model.api.findings import (
    FindingDetail,
    FindingPage,
    FindingRecord,
    FindingStatus,
    SilenceRecord,
)
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.finding import Finding, RuleScope, Severity
from gpufleet.model.stored.findings import FindingAcknowledgement, FindingQuery, Silence, cluster_of
from gpufleet.model.time import LATEST, to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.ports.findings import FindingRegistry

MAX_SCANNED = 10_000
"""Maximum number of findings that are read for a page. Beyond it, the page has fewer entries than its limit."""

SCANNED_AT_ONCE = 1_000
"""Number of findings per query of the registry, if a page is filtered by state."""

MAX_ALLOCATIONS = 2_000
"""Maximum number of a tenant's allocations per page."""

MAX_SILENCES = 500
"""Maximum number of silences in force."""

_ID = re.compile(r"[0-9a-f]{24}")
_SILENCE_ID = re.compile(r"[0-9a-f]{16}")


class FindingFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Selection of findings.

    Attributes:
        cluster: only subjects of this cluster.
        rules, severities: only findings of these rules and severities; empty for all.
        statuses: only findings with one of these statuses; empty for all.
        scopes: only subjects of these kinds; empty for all.
        subject: only this subject and its parts, by key. Without `scopes`, of every kind: a machine and a sender can
            have the same key.
        start, end: only findings that were open in this interval, nanoseconds since 1970, `end` excluded.
    """

    cluster: str | None = None
    rules: tuple[str, ...] = ()
    severities: tuple[Severity, ...] = ()
    statuses: tuple[FindingStatus, ...] = ()
    scopes: tuple[RuleScope, ...] = ()
    subject: str | None = None
    start: int = 0
    end: int = LATEST


class SubjectRegistry(Protocol):
    """The part of the registry that `FindingQueries` needs."""

    def find_machines(self, cluster: str, name: str) -> tuple[MachineRecord, ...]:
        """Return the machine with this id, or the machines with this host name."""
        ...

    def allocation(self, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002 - the port's name
        """Return an allocation. Raises NotFoundError, also for an allocation of another tenant."""
        ...

    def allocations(self, tenant: str | None = None) -> tuple[Allocation, ...]:
        """Return every allocation (of one tenant), closed ones included."""
        ...


class FindingQueries:
    """Queries for findings, and their acknowledgements and silences."""

    def __init__(
        self,
        *,
        findings: FindingRegistry,
        live: LiveFindings,
        registry: SubjectRegistry,
        executor: QueryExecutor,
        clock: Clock,
    ) -> None:
        """Connect the queries to stored findings, live findings, and the registry of machines and allocations."""
        self._findings = findings
        self._live = live
        self._registry = registry
        self._executor = executor
        self._clock = clock

    async def page(self, filters: FindingFilters, requested: PageRequest, tenant: str | None) -> FindingPage:
        """Return a page of findings, newest opening first.

        Args:
            filters: the selection.
            requested: the page; a place is (opened_at, id) of a finding.
            tenant: only findings of this tenant's allocations.

        Raises:
            InvalidQueryError: if the interval is empty, the tenant has too many allocations, or a tenant selects by
                acknowledgement.
        """
        if filters.end <= filters.start:
            raise InvalidQueryError("until", "must be after since")
        if tenant is not None and FindingStatus.ACKNOWLEDGED in filters.statuses:
            raise InvalidQueryError("state", "acknowledged is for operators: use open, unknown or closed")

        def fetch() -> FindingPage:
            now = self._clock.now_ns()
            query = self._query(filters, requested, tenant)
            found: list[Finding] = []
            more = None
            if query is not None:
                found, more = self._scan(query, filters.statuses, requested.limit, now)
            return FindingPage(
                at=to_datetime(now),
                evaluation=evaluation_record(self._live.evaluation(), now, for_tenant=tenant is not None),
                items=self._records(found, now, tenant),
                next=None if more is None else requested.cursor((more.opened_at, more.id)),
            )

        return await self._executor.run(fetch)

    async def get(self, id: str, tenant: str | None) -> FindingDetail:  # noqa: A002 - the API's name
        """Return a finding with its timeline.

        Raises:
            NotFoundError: if there is no such finding, or the tenant may not see it. The message is the same in both
                cases.
        """

        def fetch() -> FindingDetail:
            now = self._clock.now_ns()
            found = self._find(id)
            if tenant is not None and not (found.rule in TENANT_RULES and self._is_own(found.scope, tenant)):
                raise _unknown(id)
            (record,) = self._records([found], now, tenant)
            timeline = self._findings.finding_timeline(found.id)
            return FindingDetail(
                **msgspec.structs.asdict(record),
                evaluation=evaluation_record(self._live.evaluation(), now, for_tenant=tenant is not None),
                timeline=tuple(timeline_entry(one, for_tenant=tenant is not None) for one in timeline),
            )

        return await self._executor.run(fetch)

    async def acknowledge(self, id: str, until: int, actor: str, note: str) -> FindingRecord:  # noqa: A002
        """Acknowledge an open finding until a time, in place of an earlier acknowledgement; return its record.

        Raises:
            NotFoundError: if there is no such finding.
            ConflictError: if it is closed.
        """

        def store() -> FindingRecord:
            return self._acknowledge(self._find(id), until, actor, note)

        return await self._executor.run(store)

    async def withdraw(self, id: str, actor: str) -> FindingRecord:  # noqa: A002
        """End the acknowledgement of an open finding; without one, nothing changes. Raises NotFoundError."""

        def store() -> FindingRecord:
            found, now = self._find(id), self._clock.now_ns()
            if not is_acknowledged(found, now):
                return self._records([found], now, None)[0]
            return self._acknowledge(found, now, actor, "")

        return await self._executor.run(store)

    async def add_silence(
        self, rule: str | None, subject: str | None, scopes: Sequence[RuleScope], until: int, actor: str, note: str
    ) -> SilenceRecord:
        """Store a silence; see `SilenceSpec`. Raises ConflictError if too many are in force."""

        def store() -> SilenceRecord:
            now = self._clock.now_ns()
            if len(self._findings.silences(now)) >= MAX_SILENCES:
                raise ConflictError(f"{MAX_SILENCES} silences are in force, the maximum: end some of them first")
            silence = Silence(
                id=secrets.token_hex(8),
                rule=rule or "",
                scope=subject or "",
                subject_kinds=tuple(one.value for one in scopes),
                at=now,
                until=until,
                actor=actor,
                note=note,
            )
            self._findings.add_silence(silence)
            return silence_record(silence)

        return await self._executor.run(store)

    async def silences(self) -> tuple[SilenceRecord, ...]:
        """Return the silences in force, oldest first."""
        return await self._executor.run(
            lambda: tuple(silence_record(one) for one in self._findings.silences(self._clock.now_ns()))
        )

    async def end_silence(self, id: str) -> SilenceRecord:  # noqa: A002
        """End a silence; an ended one is unchanged. Raises NotFoundError."""
        if not _SILENCE_ID.fullmatch(id):
            raise NotFoundError(f"there is no silence {id!r}")
        return await self._executor.run(lambda: silence_record(self._findings.end_silence(id, self._clock.now_ns())))

    def _query(self, filters: FindingFilters, requested: PageRequest, tenant: str | None) -> FindingQuery | None:
        """Return the query for the registry; None if nothing can match."""
        subjects: tuple[str, ...] | None = None
        rules = filters.rules
        if filters.scopes:
            of_scopes = [rule.id for rule in RULES if rule.scope in filters.scopes]
            rules = tuple(one for one in of_scopes if not rules or one in rules)
            if not rules:
                return None
        if tenant is not None:
            # By rule and by subject: a sender or machine with the name of an allocation has the same key.
            rules = tuple(one for one in TENANT_RULES if not rules or one in rules)
            subjects = self._subjects_of(tenant, filters) if rules else ()
            if not subjects:
                return None
        is_closed = None
        if filters.statuses:
            has_closed = FindingStatus.CLOSED in filters.statuses
            is_closed = None if has_closed and len(set(filters.statuses)) > 1 else has_closed
        return FindingQuery(
            clusters=None if filters.cluster is None else (filters.cluster,),
            rules=rules,
            severities=filters.severities,
            scope=filters.subject,
            subjects=subjects,
            is_closed=is_closed,
            start=filters.start,
            end=filters.end,
            after=requested.after,
        )

    def _subjects_of(self, tenant: str, filters: FindingFilters) -> tuple[str, ...]:
        """Return the keys of a tenant's allocations that the filters can select.

        Raises:
            InvalidQueryError: if there are too many.
        """
        clusters = {filters.cluster} - {None}
        if filters.subject is not None and "/" in filters.subject:
            is_own = self._is_own(filters.subject, tenant) and clusters <= {cluster_of(filters.subject)}
            return (filters.subject,) if is_own else ()
        if filters.subject is not None:
            clusters.add(filters.subject)
        mine = [one for one in self._registry.allocations(tenant) if clusters <= {one.spec.target.cluster}]
        if len(mine) > MAX_ALLOCATIONS:
            mine = [one for one in mine if is_active_within(one, filters.start, filters.end)]
        if len(mine) > MAX_ALLOCATIONS:
            reason = f"is missing: the filters select {len(mine)} allocations, the maximum is {MAX_ALLOCATIONS}. "
            raise InvalidQueryError("subject", f"{reason}Set subject to an allocation, or set since")
        return tuple(allocation_key(one.spec.target.cluster, one.id) for one in mine)

    def _scan(
        self, query: FindingQuery, statuses: Sequence[FindingStatus], limit: int, now: int
    ) -> tuple[list[Finding], Finding | None]:
        """Return up to `limit` matching findings, and the finding after which the next page begins.

        That is None on the last page.
        """
        found: list[Finding] = []
        last = None
        for one in self._read(query, limit + 1 if not statuses else SCANNED_AT_ONCE):
            if one is None:
                return found, last
            if not statuses or not statuses_of(one, now).isdisjoint(statuses):
                if len(found) == limit:
                    return found, found[-1]
                found.append(one)
            last = one
        return found, None

    def _read(self, query: FindingQuery, chunk: int) -> Iterator[Finding | None]:
        """Yield findings with live values, and None at the end if the limit on reading is reached."""
        live = {one.id: one for one in self._live.open_findings()}
        for _ in range(0, MAX_SCANNED, chunk):
            found = self._findings.findings(msgspec.structs.replace(query, limit=chunk))
            for one in found:
                yield with_live_values(one, live)
            if len(found) < chunk:
                return
            query = msgspec.structs.replace(query, after=(found[-1].opened_at, found[-1].id))
        yield None

    def _find(self, id: str) -> Finding:  # noqa: A002
        """Return a finding with live values. Raises NotFoundError."""
        if not _ID.fullmatch(id):
            raise _unknown(id)
        try:
            found = self._findings.finding(id)
        except NotFoundError:
            raise _unknown(id) from None
        return with_live_values(found, {one.id: one for one in self._live.open_findings() if one.id == id})

    def _is_own(self, key: str, tenant: str) -> bool:
        """Return whether the key is that of an allocation of the tenant."""
        cluster, _, id_ = key.partition("/")
        try:
            check_id(id_)
            found = self._registry.allocation(id_, tenant)
        except (InvalidQueryError, NotFoundError):
            return False
        return found.spec.target.cluster == cluster

    def _acknowledge(self, found: Finding, until: int, actor: str, note: str) -> FindingRecord:
        now = self._clock.now_ns()
        self._findings.acknowledge_finding(
            FindingAcknowledgement(finding=found.id, at=now, until=until, actor=actor, note=note)
        )
        return self._records([self._find(found.id)], now, None)[0]

    def _records(self, found: Sequence[Finding], now: int, tenant: str | None) -> tuple[FindingRecord, ...]:
        """Return the records of findings, for operators or for a tenant."""
        if not found:
            return ()
        of_tenant = tenant is not None
        silences = () if of_tenant else self._findings.silences(now)
        acknowledgements = {} if of_tenant else self._findings.finding_acknowledgements([one.id for one in found])
        machines = {place for one in found if (place := machine_of(one)) is not None}
        nodes = {
            id_: record.machine.name
            for cluster, id_ in machines
            for record in self._registry.find_machines(cluster, id_)
            if record.id == id_
        }
        records = (
            finding_record(one, now, nodes=nodes, acknowledgement=acknowledgements.get(one.id), silences=silences)
            for one in found
        )
        return tuple(for_tenant(one) if of_tenant else one for one in records)


def allocation_key(cluster: str, allocation: str) -> str:
    """Return the key of an allocation as a subject."""
    return f"{cluster}/{allocation}"


def _unknown(id: str) -> NotFoundError:  # noqa: A002
    return NotFoundError(f"there is no finding {id!r}")
