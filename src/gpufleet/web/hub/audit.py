"""Route of the audit log.

The audit log: every write of somebody who may write goes there before it is answered.
"""

import asyncio
import logging
from typing import Annotated, Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from msgspec import Meta

from gpufleet.hub.query.paging import Page, asked
from gpufleet.model.access import AuditEntry, AuditRecord, Principal, Role
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import RegistryError
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Audit
from gpufleet.web.hub.access import QUERY
from gpufleet.web.hub.formats import listed
from gpufleet.web.hub.http import Message, Receive, Scope, Send, respond
from gpufleet.web.hub.ingest import RETRY_AFTER_SECONDS
from gpufleet.web.hub.openapi import errors
from gpufleet.web.hub.parameters import Cursor

log = logging.getLogger(__name__)

PATH_CHARACTERS, DETAIL_BYTES = 500, 2_000
"""What is kept of a path and of a body."""

WHOLE = {QUERY: 64_000}
"""Of which paths so much of the body is kept: more than a statement may have, however it is written."""

_READS = frozenset({"GET", "HEAD", "OPTIONS"})


class Recorder:
    """Puts itself between a request and its answer where that is to be recorded, and shows what was."""

    def __init__(self, audit: Audit, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock

    async def newest(self, before: int | None, limit: int) -> tuple[AuditRecord, ...]:
        """Return entries, newest first; see `ports.Audit`."""
        return await asyncio.to_thread(self._audit.newest, before, limit)

    def between(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> tuple[Receive, Send]:
        """Return what to receive from and send to instead."""
        if scope["method"] in _READS or Role.ADMIN not in principal.roles:
            return receive, send
        recorded = _Recorded(self._audit, self._clock, scope, receive, send, principal)
        return recorded.receive, recorded.send


class _Recorded:
    def __init__(
        self, audit: Audit, clock: Clock, scope: Scope, receive: Receive, send: Send, principal: Principal
    ) -> None:
        self._audit, self._clock = audit, clock
        self._method, self._path, self._actor = scope["method"], scope["path"], principal.id
        self._receive, self._send = receive, send
        self._asked = b""
        self._replaced = False

    async def receive(self) -> Message:
        message = await self._receive()
        most = WHOLE.get(self._path, DETAIL_BYTES)
        if len(self._asked) < most:
            self._asked = (self._asked + message.get("body", b""))[:most]
        return message

    async def send(self, message: Message) -> None:
        if self._replaced:
            return
        if message["type"] == "http.response.start" and not await self._record(message["status"]):
            self._replaced = True
            words = "it may be done, but could not be recorded: look, and ask again"
            later = [(b"retry-after", str(RETRY_AFTER_SECONDS).encode())]
            await respond(self._send, 503, ErrorAnswer(error="not_recorded", detail=words), later)
            return
        await self._send(message)

    async def _record(self, status: int) -> bool:
        entry = AuditEntry(
            at=to_datetime(self._clock.now_ns()),
            actor=self._actor,
            method=self._method,
            path=_plain(self._path[:PATH_CHARACTERS]),
            status=status,
            detail=_plain(self._asked.decode("utf-8", "replace")),
        )
        try:
            await asyncio.to_thread(self._audit.append, entry)
        except RegistryError as error:
            log.error("not in the audit log: %s %s by %s, %d: %s", entry.method, entry.path, entry.actor, status, error)
            return False
        return True


def _plain(text: str) -> str:
    """Take out what not every database can keep."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "�")


Before = Annotated[int | None, QueryParameter(description="Only entries of lower numbers than this.", ge=0, le=2**62)]
Limit = Annotated[int, QueryParameter(description="At most this many.", ge=1, le=1000)]


Place = tuple[Annotated[int, Meta(ge=0, le=2**62)]]
"""Number of an entry."""


class AuditRoutes(Controller):
    """Who wrote what."""

    path = "/v1/audit"
    tags = ("hub",)

    @get(summary="What was written, and by whom, newest first", responses=errors())
    async def list_audit(
        self,
        request: Request[Any, Any, Any],
        recorder: NamedDependency[Recorder],
        before: Before = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response[tuple[AuditRecord, ...]]:
        """Return one page; `before` the last number of this is the next one too."""
        place = asked(limit, cursor, "audit", before, place=Place)
        found = await recorder.newest(place.after[0] if place.after else before, limit + 1)
        items = found[:limit]
        return listed(request, Page(items, place.cursor((items[-1].number,)) if len(found) > limit else None))
