"""Audit log of the hub, and its route. Each write by an operator or admin is recorded before its response is sent."""

import asyncio
import logging
from typing import Annotated, Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from msgspec import Meta

from gpufleet.hub.query.paging import ResultPage, parse_page_request
from gpufleet.model.access import AuditEntry, AuditRecord, Principal, Role
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import RegistryError
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Audit
from gpufleet.web.hub.access import QUERY
from gpufleet.web.hub.formats import list_response
from gpufleet.web.hub.http import Message, Receive, Scope, Send, respond
from gpufleet.web.hub.ingest import RETRY_AFTER_SECONDS
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import Cursor

log = logging.getLogger(__name__)

PATH_CHARACTERS, DETAIL_BYTES = 500, 2_000
"""Maximum recorded length of a path, in characters, and of a body."""

MAX_BODY_BYTES_BY_PATH = {QUERY: 64_000}
"""Maximum recorded body by path, where it differs: more than any encoding of a permitted SQL statement needs."""

FORBIDDEN = 403
"""Status of a request that is rejected for its role."""

_READS = frozenset({"GET", "HEAD", "OPTIONS"})

_WRITERS = frozenset({Role.OPERATOR, Role.ADMIN})
"""Roles with write access to the API."""


class AuditRecorder:
    """AuditRecorder and reader of audit entries."""

    def __init__(self, audit: Audit, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock

    async def newest(self, before: int | None, limit: int) -> tuple[AuditRecord, ...]:
        """Return entries, newest first; see `ports.registry.Audit`."""
        return await asyncio.to_thread(self._audit.newest, before, limit)

    def wrap(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> tuple[Receive, Send]:
        """Return `receive` and `send`, wrapped if the request is to be recorded unless its role is rejected."""
        if scope["method"] in _READS or _WRITERS.isdisjoint(principal.roles):
            return receive, send
        recorded = _RecordedRequest(self._audit, self._clock, scope, receive, send, principal)
        return recorded.receive, recorded.send


class _RecordedRequest:
    def __init__(
        self, audit: Audit, clock: Clock, scope: Scope, receive: Receive, send: Send, principal: Principal
    ) -> None:
        self._audit, self._clock = audit, clock
        self._method, self._path, self._actor = scope["method"], scope["path"], principal.id
        self._receive, self._send = receive, send
        self._body = b""
        self._replaced = False

    async def receive(self) -> Message:
        message = await self._receive()
        most = MAX_BODY_BYTES_BY_PATH.get(self._path, DETAIL_BYTES)
        if len(self._body) < most:
            self._body = (self._body + message.get("body", b""))[:most]
        return message

    async def send(self, message: Message) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start" and not await self._record(message["status"]):
            self._replaced = True
            detail = "the change may have been made, but is not in the audit log: check it, and repeat the request"
            headers = [(b"retry-after", str(RETRY_AFTER_SECONDS).encode())]
            await respond(self._send, 503, ErrorAnswer(error="not_recorded", detail=detail), headers)
            return
        await self._send(message)

    async def _record(self, status: int) -> bool:
        """Record the request, unless its role was rejected; return whether the response can be sent."""
        if status == FORBIDDEN:
            return True
        entry = AuditEntry(
            at=to_datetime(self._clock.now_ns()),
            actor=self._actor,
            method=self._method,
            path=_storable(self._path[:PATH_CHARACTERS]),
            status=status,
            detail=_storable(self._body.decode("utf-8", "replace")),
        )
        try:
            await asyncio.to_thread(self._audit.append, entry)
        except RegistryError as error:
            log.error(
                "cannot write to the audit log: %s %s by %s, %d: %s",
                entry.method,
                entry.path,
                entry.actor,
                status,
                error,
            )
            return False
        return True


def _storable(text: str) -> str:
    """Replace characters that not every database can store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "�")


Before = Annotated[int | None, QueryParameter(description="Only entries with lower numbers.", ge=0, le=2**62)]
Limit = Annotated[int, QueryParameter(description="Maximum number of entries.", ge=1, le=1000)]


AuditPlace = tuple[Annotated[int, Meta(ge=0, le=2**62)]]
"""Page position: number of an entry."""


class AuditRoutes(Controller):
    """Entries of the audit log."""

    path = "/v1/audit"
    tags = ("hub",)

    @get(summary="List writes with their actors, newest first", responses=errors())
    async def list_audit(
        self,
        request: Request[Any, Any, Any],
        recorder: NamedDependency[AuditRecorder],
        before: Before = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response[tuple[AuditRecord, ...]]:
        """Return a page. The last number of a page, passed as `before`, also gives the next page."""
        place = parse_page_request(limit, cursor, "audit", before, place=AuditPlace)
        found = await recorder.newest(place.after[0] if place.after else before, limit + 1)
        items = found[:limit]
        return list_response(
            request, ResultPage(items, place.cursor((items[-1].number,)) if len(found) > limit else None)
        )
