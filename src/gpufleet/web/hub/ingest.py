"""`POST /v1/batches` as a bare ASGI callable: the hub's hot path, without a framework.

    200 {"status": "accepted" | "duplicate", "seq"}    durable: the sender may forget it
    400 bad_batch, bad_version    the body is not a batch, `field` names where
    400 bad_waited                how long bodies waited at a relay is not told as it should be
    403 foreign_cluster           its cluster is not served here
    403 turned_away               a relay's next hub does not take what came of that sender before
    403 too_many_senders          its cluster has no room for another sender, or another epoch
    403 other_cluster             its cluster is not the one that the token is bound to
    409 epoch_conflict            two machines count under its epoch: post it again under a new one
    408 slow_body, 413 too_large, 415 bad_content_type
    503 overloaded, log_full      with Retry-After: send it again

Nothing but 200 is an acknowledgement. A bundle is one body of several batches; each has its own answer in there.
"""

import asyncio
from collections.abc import Sequence

from gpufleet.codecs.batch import CONTENT_TYPE, weigh
from gpufleet.codecs.bundle import (
    BUNDLE_CONTENT_TYPE,
    WAITED_HEADER,
    BodyAnswer,
    BundleAnswer,
    parse_waited,
    unpack,
)
from gpufleet.hub.liveness.uptime import Listening
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ingest import (
    EpochConflictError,
    ForeignClusterError,
    Ingest,
    OtherClusterError,
    Taken,
    TooManySendersError,
    TurnedAwayError,
    groups,
)
from gpufleet.hub.receive.limits import Pressure
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import GpufleetError, SpoolError, WireError, WireLimitError, WireVersionError
from gpufleet.ports.clock import Clock
from gpufleet.web.hub.http import Body, GoneError, Receive, RefusedError, Scope, Send, header, respond

RETRY_AFTER_SECONDS = 2

_CONTENT_TYPES = {CONTENT_TYPE, "application/msgpack", "application/x-msgpack", BUNDLE_CONTENT_TYPE}

_WAITED = WAITED_HEADER.lower().encode()

BUNDLE_MESSAGE_BYTES = 256 << 20
"""What the bodies of a bundle may unpack to together. One that does not tell counts for all that a body may."""


class BatchEndpoint:
    """The endpoint."""

    def __init__(
        self,
        *,
        ingest: Ingest,
        pressure: Pressure,
        counters: Counters,
        clock: Clock,
        max_body_bytes: int,
        body_timeout_seconds: float,
        listening: Listening,
    ) -> None:
        self._listening = listening
        self._ingest = ingest
        self._pressure = pressure
        self._counters = counters
        self._clock = clock
        self._max_body = max_body_bytes
        self._timeout = body_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send, bound_to: str | None = None) -> None:
        """Answer one request; `bound_to` is the only cluster that who asks may post for, if there is one."""
        body = Body(self._pressure, self._max_body)
        try:
            content_type = self._check_head(scope)
            content = await body.read_whole(scope, receive, self._timeout)
            taken: Taken | BundleAnswer
            if content_type == BUNDLE_CONTENT_TYPE:
                taken = await self._take_bundle(content, bound_to, _header(scope, _WAITED))
            else:
                taken = await self._take(content, bound_to, _header(scope, _WAITED))
        except GoneError:
            self._counters.rejected["client_gone"] += 1
            return
        except RefusedError as refused:
            self._refuse(refused)
            await _respond(send, refused.status, refused.answer)
            return
        finally:
            body.close()
        await _respond(send, 200, taken)

    def _check_head(self, scope: Scope) -> str:
        content_type = _header(scope, b"content-type").partition(";")[0].strip().lower()
        if content_type not in _CONTENT_TYPES:
            raise RefusedError(415, "bad_content_type", f"{content_type!r}: a batch is {CONTENT_TYPE}", "Content-Type")
        if _header(scope, b"content-encoding").lower() not in ("", "identity"):
            raise RefusedError(415, "bad_content_type", "a batch compresses itself", "Content-Encoding")
        return content_type

    async def _take_bundle(self, content: bytes, bound_to: str | None, told: str) -> BundleAnswer:
        try:
            bodies = unpack(content)
            weight = sum(map(weigh, bodies))
            if weight > BUNDLE_MESSAGE_BYTES:
                words = f"its bodies unpack to {weight} bytes, more than {BUNDLE_MESSAGE_BYTES}: post them one by one"
                raise WireLimitError("bundle", words)
        except WireLimitError as error:
            raise RefusedError(413, "too_large", str(error), error.field) from error
        except WireError as error:
            raise RefusedError(400, "bad_bundle", str(error), error.field) from error
        waited = list(_waited(told, len(bodies)) or [0] * len(bodies))  # a relay that tells nothing is an older one
        tasks: list[asyncio.Task[list[BodyAnswer]]] = []
        async with asyncio.TaskGroup() as parts:
            for group in groups(bodies):
                tasks.append(parts.create_task(self._take_group(group, bound_to, waited[: len(group)])))
                del waited[: len(group)]
                await asyncio.sleep(0)  # other requests have a turn
        return BundleAnswer([answer for task in tasks for answer in task.result()])

    async def _take_group(self, bodies: list[bytes], bound_to: str | None, waited: Sequence[int]) -> list[BodyAnswer]:
        return [self._answer(one) for one in await self._take_all(bodies, bound_to, waited)]

    def _answer(self, taken: Taken | RefusedError) -> BodyAnswer:
        if isinstance(taken, Taken):
            return BodyAnswer(status=200, result=taken.status, seq=taken.seq)
        self._refuse(taken)
        answer = taken.answer
        return BodyAnswer(
            status=taken.status,
            error=answer.error,
            detail=answer.detail,
            field=answer.field,
            retry_after=float(RETRY_AFTER_SECONDS) if taken.status == 503 else None,
        )

    def _refuse(self, refused: RefusedError) -> None:
        self._counters.rejected[refused.answer.error] += 1
        if refused.status == 503:
            self._listening.turned_away()

    async def _take(self, content: bytes, bound_to: str | None, told: str) -> Taken:
        (taken,) = await self._take_all([content], bound_to, _waited(told, 1))
        if isinstance(taken, RefusedError):
            raise taken
        return taken

    async def _take_all(
        self, bodies: list[bytes], bound_to: str | None, waited: Sequence[int] | None
    ) -> list[Taken | RefusedError]:
        self._counters.received_bodies += len(bodies)
        self._counters.received_bytes += sum(map(len, bodies))
        taken = await self._ingest.take_all(bodies, self._clock.now_ns(), bound_to, waited=waited)
        if any(isinstance(one, Taken) for one in taken):
            self._listening.took()
        return [one if isinstance(one, Taken) else _refusal(one) for one in taken]


def _waited(told: str, count: int) -> Sequence[int] | None:
    """Return for how long each body waited at relays, or None where nothing is told of that. Raises RefusedError."""
    if not told:
        return None
    try:
        return parse_waited(told, count)
    except WireError as error:
        raise RefusedError(400, "bad_waited", str(error), error.field) from error


def _refusal(error: GpufleetError) -> RefusedError:
    """Return how a body that is not taken is answered. Raises what has no answer."""
    match error:
        case WireVersionError():
            return RefusedError(400, "bad_version", str(error), error.field)
        case WireLimitError():
            return RefusedError(413, "too_large", str(error), error.field)
        case WireError():
            return RefusedError(400, "bad_batch", str(error), error.field)
        case OtherClusterError():
            return RefusedError(403, "other_cluster", str(error), "cluster")
        case ForeignClusterError():
            return RefusedError(403, "foreign_cluster", str(error), "cluster")
        case TooManySendersError():
            return RefusedError(403, "too_many_senders", str(error), error.field)
        case TurnedAwayError():
            return RefusedError(403, "turned_away", str(error))
        case EpochConflictError():
            return RefusedError(409, "epoch_conflict", str(error), "epoch")
        case SpoolError():
            return RefusedError(503, "log_full", str(error))
        case _:
            raise error


def _header(scope: Scope, name: bytes) -> str:
    return next(iter(header(scope, name)), "")


async def _respond(send: Send, status: int, answer: Taken | BundleAnswer | ErrorAnswer) -> None:
    more: list[tuple[bytes, bytes]] = []
    if status == 503:
        more.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    if status in (408, 413, 503):
        more.append((b"connection", b"close"))  # what is left of the body is not waited for
    await respond(send, status, answer, more)
