"""Routes of findings, their acknowledgements, and silences."""

import datetime as dt
from typing import Annotated, Any

from litestar import Controller, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta

from gpufleet.fleet.rules.table import RULES_BY_ID
from gpufleet.hub.query import Queries
from gpufleet.hub.query.findings import FindingFilters
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.query.paging import cut_page, parse_page_request
from gpufleet.model.access import Principal
from gpufleet.model.api.findings import (
    MAX_NOTE_BYTES,
    AcknowledgementSpec,
    FindingDetail,
    FindingPage,
    FindingRecord,
    FindingStatus,
    SilenceRecord,
    SilenceSpec,
)
from gpufleet.model.finding import RuleScope, Severity
from gpufleet.model.time import LATEST, NANOS, to_ns
from gpufleet.web.hub.allocations import Tenant
from gpufleet.web.hub.formats import list_response
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import Cursor, Limit, parse_duration, parse_instant

MAX_DAYS = 90
"""Longest acknowledgement or silence."""

FindingPlace = tuple[Annotated[int, Meta(ge=0, le=LATEST)], Annotated[str, Meta(pattern="^[0-9a-f]{24}$")]]
"""Page position: time of opening and id of a finding."""

Rules = Annotated[
    list[str] | None,
    QueryParameter(name="rule", description="Only findings of this rule, such as gpu.lost; may be repeated."),
]
Severities = Annotated[
    list[Severity] | None,
    QueryParameter(name="severity", description="Only findings of this severity; may be repeated."),
]
States = Annotated[
    list[FindingStatus] | None,
    QueryParameter(
        name="state",
        description="Only findings in this state; may be repeated. `acknowledged`: not closed, and an acknowledgement "
        "is in force; 400 for a tenant.",
    ),
]
Scopes = Annotated[
    list[RuleScope] | None,
    QueryParameter(name="scope", description="Only findings about subjects of this kind; may be repeated."),
]
Subject = Annotated[
    str | None,
    QueryParameter(
        description="Only findings about this subject and its parts, by key: `CLUSTER`, `CLUSTER/MACHINE_ID`, "
        "`CLUSTER/SENDER`, `CLUSTER/ALLOCATION_ID` or the id of a device; empty for the hub. A machine and a sender "
        "can have the same key: `scope` selects one kind."
    ),
]
Since = Annotated[str | None, QueryParameter(description="RFC 3339. Only findings that were open after it.")]
Until = Annotated[str | None, QueryParameter(description="RFC 3339, exclusive. Only findings that opened before it.")]

AnyRequest = Request[Any, Principal, Any]


class FindingRoutes(Controller):
    """Findings and their acknowledgements."""

    path = "/v1/findings"
    tags = ("findings",)

    @get(
        summary="List findings, newest opening first; a tenant sees those of its own allocations",
        description="`evaluation` states when the rules were last evaluated. A page can have fewer entries than "
        "`limit`; the last page has no `next`.",
        responses=errors(),
    )
    async def list_findings(
        self,
        queries: NamedDependency[Queries],
        tenant: Tenant,
        cluster: Annotated[str | None, QueryParameter(description="Only findings of this cluster.")] = None,
        rule: Rules = None,
        severity: Severities = None,
        states: States = None,
        scopes: Scopes = None,
        subject: Subject = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = None,
        cursor: Cursor = None,
    ) -> FindingPage:
        """Return a page."""
        for one in rule or ():
            check_rule(one)
        if subject:
            check_subject(subject)
        query = ("findings", tenant, cluster, rule, severity, states, scopes, subject, since, until)
        return await queries.findings.page(
            FindingFilters(
                cluster=cluster,
                rules=tuple(rule or ()),
                severities=tuple(severity or ()),
                statuses=tuple(states or ()),
                scopes=tuple(scopes or ()),
                subject=subject,
                start=parse_instant("since", since) if since is not None else 0,
                end=parse_instant("until", until) if until is not None else LATEST,
            ),
            parse_page_request(limit, cursor, *query, place=FindingPlace),
            tenant,
        )

    @get("/{finding_id:str}", summary="Get a finding with its timeline", responses=errors(404))
    async def get_finding(
        self, finding_id: FromPath[str], queries: NamedDependency[Queries], tenant: Tenant
    ) -> FindingDetail:
        """Return the finding."""
        return await queries.findings.get(finding_id, tenant)

    @put(
        "/{finding_id:str}/acknowledgement",
        summary="Acknowledge an open finding until a time",
        description="Replaces an earlier acknowledgement. The body has `until` or `duration`, at most 90 days; and "
        "`note`, at most 1 KiB. 409 if the finding is closed. Receivers get no notifications of the finding meanwhile.",
        responses=errors(404, 409, 413),
    )
    async def acknowledge(
        self,
        finding_id: FromPath[str],
        data: JSONBody[AcknowledgementSpec],
        request: AnyRequest,
        queries: NamedDependency[Queries],
    ) -> FindingRecord:
        """Store the acknowledgement."""
        check_note(data.note)
        until = parse_end(data.until, data.duration, queries.now_ns())
        return await queries.findings.acknowledge(finding_id, until, request.auth.id, data.note)

    @delete(
        "/{finding_id:str}/acknowledgement",
        summary="End the acknowledgement of a finding",
        status_code=200,
        responses=errors(404),
    )
    async def withdraw(
        self, finding_id: FromPath[str], request: AnyRequest, queries: NamedDependency[Queries]
    ) -> FindingRecord:
        """End the acknowledgement; without one, nothing changes."""
        return await queries.findings.withdraw(finding_id, request.auth.id)


class SilenceRoutes(Controller):
    """Silences: intervals without notifications of some findings."""

    path = "/v1/silences"
    tags = ("findings",)

    @get(summary="List the silences in force", responses=errors())
    async def list_silences(
        self, request: AnyRequest, queries: NamedDependency[Queries], limit: Limit = None, cursor: Cursor = None
    ) -> Response[tuple[SilenceRecord, ...]]:
        """Return a page, sorted by id."""
        place = parse_page_request(limit, cursor, "silences", place=tuple[str])
        return list_response(request, cut_page(await queries.findings.silences(), lambda one: (one.id,), place))

    @post(
        summary="Silence findings until a time: no notifications; their records do not change",
        description="The body has `rule`, `subject` or both; `until` or `duration`, at most 90 days; and `note`, at "
        "most 1 KiB. `scopes` limits it to kinds of subjects, and is required for a subject within a cluster unless "
        "`rule` is set. 409 if the maximum number of silences is in force.",
        responses=errors(409, 413),
    )
    async def add_silence(
        self, data: JSONBody[SilenceSpec], request: AnyRequest, queries: NamedDependency[Queries]
    ) -> SilenceRecord:
        """Store the silence."""
        check_note(data.note)
        if data.rule is None and data.subject is None:
            raise InvalidQueryError("rule", "is missing: set rule, subject or both")
        if data.rule is not None:
            check_rule(data.rule)
        if data.subject is not None:
            check_subject(data.subject)
        scopes = parse_scopes(data)
        until = parse_end(data.until, data.duration, queries.now_ns())
        return await queries.findings.add_silence(data.rule, data.subject, scopes, until, request.auth.id, data.note)

    @delete("/{silence_id:str}", summary="End a silence", status_code=200, responses=errors(404))
    async def end_silence(self, silence_id: FromPath[str], queries: NamedDependency[Queries]) -> SilenceRecord:
        """End the silence; an ended one is unchanged."""
        return await queries.findings.end_silence(silence_id)


def parse_end(until: dt.datetime | None, duration: str | None, now: int) -> int:
    """Return the end of an acknowledgement or silence, nanoseconds since 1970.

    Raises:
        InvalidQueryError: unless exactly one of them is given, and the end is within 90 days after now.
    """
    if (until is None) == (duration is None):
        raise InvalidQueryError("until", "must be set, or else duration: set one of them")
    if duration is not None:
        field, end = "duration", now + parse_duration("duration", duration)
    else:
        assert until is not None
        try:
            field, end = "until", to_ns(until)
        except ValueError as error:
            raise InvalidQueryError("until", str(error)) from error
    if not now < end <= now + MAX_DAYS * 86_400 * NANOS:
        raise InvalidQueryError(field, f"must end within {MAX_DAYS} days after now")
    return end


def check_rule(rule: str) -> None:
    """Raise InvalidQueryError if no rule has this id."""
    if rule not in RULES_BY_ID:
        raise InvalidQueryError("rule", f"{rule[:100]!r} is not the id of a rule, such as gpu.lost")


def check_subject(subject: str) -> None:
    """Raise InvalidQueryError if the key of a subject has an empty part."""
    if not all(subject.split("/")):
        reason = "has an empty part: use a key such as CLUSTER or CLUSTER/MACHINE_ID, without a slash at either end"
        raise InvalidQueryError("subject", f"{subject[:100]!r} {reason}")


def parse_scopes(spec: SilenceSpec) -> tuple[RuleScope, ...]:
    """Return the kinds of subjects of a silence, each once.

    Raises:
        InvalidQueryError: if a kind does not exist, if the rule judges another kind, or if none is given for a key that
            subjects of several kinds can have.
    """
    try:
        scopes = tuple(dict.fromkeys(map(RuleScope, spec.scopes)))
    except ValueError as error:
        raise InvalidQueryError("scopes", f"must be of {', '.join(RuleScope)}") from error
    if spec.rule is not None:
        own = RULES_BY_ID[spec.rule].scope
        if scopes and own not in scopes:
            raise InvalidQueryError("scopes", f"must contain {own}, the kind of subject of {spec.rule}")
    elif not scopes and spec.subject is not None and "/" in spec.subject:
        reason = 'such as ["machine", "device"]: subjects of several kinds can have this key'
        raise InvalidQueryError("scopes", f"is missing: set the kinds of subjects, {reason}")
    return scopes


def check_note(note: str) -> None:
    """Raise InvalidQueryError if a note is too long."""
    if len(note.encode()) > MAX_NOTE_BYTES:
        raise InvalidQueryError("note", f"must not exceed {MAX_NOTE_BYTES} bytes of UTF-8")
