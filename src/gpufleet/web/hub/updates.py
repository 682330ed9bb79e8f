"""Route of live updates: a stream of server-sent events that mark what has changed.

A mark has no data. A client that receives one requests the data from the other routes, which check its access.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Litestar, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpufleet.hub.query import Queries
from gpufleet.hub.query.history import InvalidQueryError
from gpufleet.hub.receive.credentials import UnauthenticatedError
from gpufleet.hub.updates.marks import (
    FINDINGS,
    FLEET,
    ChangeMarks,
    TooManyStreamsError,
    UpdateStream,
    allocation_key,
    allocations_key,
    machine_key,
)
from gpufleet.model.access import Principal
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import GpufleetError, NotFoundError
from gpufleet.web.hub.access import Authenticator, ForbiddenError
from gpufleet.web.hub.allocations import Tenant
from gpufleet.web.hub.http import Receive, Scope, Send, respond
from gpufleet.web.hub.openapi import errors

HEARTBEAT_SECONDS = 10.0
"""Interval of comments in a stream without marks. A revoked token is noticed after at most this time."""

RESOLVE_SECONDS = 30.0
"""Interval at which the machines of an allocation are looked up again."""

MAX_SECONDS = 3600.0
"""Maximum duration of a stream; the client then opens another one."""

MEDIA_TYPE = "text/event-stream"

HEADERS = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
"""Headers of a stream: neither caches nor nginx buffer it."""

RETRY_SECONDS = 60
"""Value of `Retry-After` if there are too many streams."""

HEARTBEAT, CHANGED = b": heartbeat\n\n", b"event: changed\ndata: {}\n\n"

Resolve = Callable[[], Awaitable[Iterable[str]]]
"""Returns the keys that a stream follows."""


Topic = Literal["fleet", "findings", "machine", "allocations", "allocation"]
"""Subject of a stream."""

TENANT_TOPICS = frozenset({"allocations", "allocation"})
"""Topics that a tenant can follow: its own allocations."""

NAMED_TOPICS = frozenset({"machine", "allocation"})
"""Topics that need an id."""

TopicParameter = Annotated[
    Topic, QueryParameter(name="topic", description="What to follow; a tenant: its own allocations.")
]
IdParameter = Annotated[
    str | None, QueryParameter(name="id", description="Id of the allocation, or id or name of the machine.")
]


class UpdateRoutes(Controller):
    """Stream of updates."""

    path = "/v1/updates"
    tags = ("hub",)

    @get(
        summary="Stream of server-sent events that mark what has changed",
        description="An event `changed` states that the subject has new data; it has no data itself. A comment is sent "
        f"every {HEARTBEAT_SECONDS:g} s. An event `end` has the reason if the token is no longer valid. 429 "
        "if there are too many streams.",
        media_type=MEDIA_TYPE,
        responses=errors(404, 429),
    )
    async def stream_updates(
        self,
        request: Request[Any, Principal, Any],
        marks: NamedDependency[ChangeMarks],
        authenticator: NamedDependency[Authenticator],
        queries: NamedDependency[Queries],
        tenant: Tenant,
        topic: TopicParameter,
        id: IdParameter = None,  # noqa: A002 - the API's name
    ) -> Response[None]:
        """Return the stream."""
        if (id is not None) != (topic in NAMED_TOPICS):
            raise InvalidQueryError("id", f"is {'required' if topic in NAMED_TOPICS else 'not used'} for {topic}")
        if tenant is not None and topic not in TENANT_TOPICS:
            raise ForbiddenError("this needs a token of the role admin or operator")
        resolve = _resolver(queries, topic, id or "", tenant)
        keys = await resolve()
        follow = _Follower(marks, resolve, lambda: _end_reason(authenticator, request))
        return _UpdateResponse(functools.partial(follow.respond, request.auth.id, keys))


class _UpdateResponse(Response[None]):
    """Response that an ASGI application sends."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        super().__init__(None)
        self._app = app

    def to_asgi_response(  # type: ignore[override]  # returns an ASGI application, as the framework expects
        self, app: Litestar | None, request: Request[Any, Any, Any], **more: Any
    ) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        """Return the ASGI application."""
        return self._app


def _resolver(queries: Queries, topic: Topic, id_: str, tenant: str | None) -> Resolve:
    async def resolve() -> Iterable[str]:
        match topic:
            case "fleet":
                return (FLEET,)
            case "findings":
                return (FINDINGS,)
            case "allocations":
                return (allocations_key(tenant),)
            case "machine":
                return (machine_key((await queries.fleet.machine(id_)).id),)
            case "allocation":
                return (allocation_key(id_), *map(machine_key, await queries.allocations.machines(id_, tenant)))

    return resolve


def _end_reason(authenticator: Authenticator, request: Request[Any, Principal, Any]) -> str | None:
    """Return the error of the request's token if it is no longer valid."""
    try:
        authenticator.authenticate(request.scope)  # type: ignore[arg-type]  # Litestar's name for the same ASGI type
    except UnauthenticatedError as error:
        return error.reason
    return None


class _Follower:
    """ASGI application that sends the events of a stream until the client disconnects."""

    def __init__(self, marks: ChangeMarks, resolve: Resolve, end_reason: Callable[[], str | None]) -> None:
        self._marks = marks
        self._monotonic = marks.monotonic
        self._resolve = resolve
        self._end_reason = end_reason

    async def respond(self, token: str, keys: Iterable[str], _: Scope, receive: Receive, send: Send) -> None:
        """Send the stream of a token, or 429."""
        try:
            with self._marks.stream(token) as stream:
                stream.follow(keys)
                sending = asyncio.ensure_future(self._send(stream, send))
                leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
                try:
                    await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    sending.cancel()
                    leaving.cancel()
                    await asyncio.gather(sending, leaving, return_exceptions=True)
        except TooManyStreamsError as error:
            retry = (b"retry-after", str(RETRY_SECONDS).encode())
            await respond(send, 429, ErrorAnswer(error="too_many_streams", detail=str(error)), [retry])

    async def _send(self, stream: UpdateStream, send: Send) -> None:
        headers = [(b"content-type", MEDIA_TYPE.encode()), *HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in self._events(stream):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _events(self, stream: UpdateStream) -> AsyncIterator[bytes]:
        yield b": open\n\n"
        ends_at = self._monotonic() + MAX_SECONDS
        resolve_at = self._monotonic() + RESOLVE_SECONDS
        while self._monotonic() < ends_at:
            is_marked = await stream.wait(HEARTBEAT_SECONDS)
            if stream.is_closed:
                return
            reason = self._end_reason()
            if reason is not None:
                yield b"event: end\ndata: " + msgspec.json.encode({"error": reason}) + b"\n\n"
                return
            if self._monotonic() >= resolve_at:
                resolve_at = self._monotonic() + RESOLVE_SECONDS
                is_marked = await self._follow_again(stream) or is_marked
            yield CHANGED if is_marked else HEARTBEAT

    async def _follow_again(self, stream: UpdateStream) -> bool:
        """Look up the keys again; return whether they differ. While the lookup fails, the keys stay."""
        try:
            return stream.follow(await self._resolve())
        except NotFoundError:
            return stream.follow(())
        except GpufleetError:
            return False


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
