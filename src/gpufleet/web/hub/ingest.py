"""`POST /v1/batches`, the hot path of the hub. It bypasses the framework.

    200 {"status": "accepted" | "duplicate", "seq"}    durable: the sender may delete it
    400 bad_batch, bad_version    the body is not a batch; `field` names the location
    400 bad_request               the URL has a query parameter
    400 bad_waited                the header Gpufleet-Waited is invalid
    403 foreign_cluster           the cluster is not served here
    403 upstream_refused          the relay's next hub rejects earlier batches of this sender
    403 too_many_senders          the cluster has reached its limit of senders or epochs
    403 too_many_machines         the cluster or this sender has reached its limit of machines
    403 other_cluster             the token is bound to another cluster
    409 epoch_conflict            two machines use this epoch: post it again under a new one
    408 slow_body, 413 too_large, 415 bad_content_type
    503 overloaded, log_full      with Retry-After: send it again

Only 200 is an acknowledgement. A bundle is a body of several batches, and its response has an answer to each.
"""

import asyncio
from collections.abc import Sequence

from gpufleet.codecs.batch import CONTENT_TYPE, content_bytes
from gpufleet.codecs.bundle import (
    BUNDLE_CONTENT_TYPE,
    WAITED_HEADER,
    BodyAnswer,
    BundleAnswer,
    parse_waited,
    unpack,
)
from gpufleet.hub.liveness.uptime import IngestClock
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.ingest import (
    Acknowledgement,
    EpochConflictError,
    ForeignClusterError,
    Ingest,
    OtherClusterError,
    TooManySendersError,
    UpstreamRefusalError,
    group_bodies,
)
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.hub.receive.machines import TooManyMachinesError
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.model.errors import GpufleetError, SpoolError, WireError, WireLimitError, WireVersionError
from gpufleet.ports.clock import Clock
from gpufleet.web.hub.http import (
    BoundedBody,
    ClientDisconnectedError,
    Receive,
    RequestRejectedError,
    Scope,
    Send,
    header,
    respond,
)
from gpufleet.web.query_string import ParameterError, parse_query_string

RETRY_AFTER_SECONDS = 2

_CONTENT_TYPES = {CONTENT_TYPE, "application/msgpack", "application/x-msgpack", BUNDLE_CONTENT_TYPE}

_WAITED = WAITED_HEADER.lower().encode()

BUNDLE_MESSAGE_BYTES = 256 << 20
"""Limit on the total uncompressed size of a bundle's bodies. A body that does not declare its size counts as the
maximum of a body."""


class BatchEndpoint:
    """Ingestion endpoint of batches and bundles."""

    def __init__(
        self,
        *,
        ingest: Ingest,
        pressure: ByteBudget,
        counters: Counters,
        clock: Clock,
        max_body_bytes: int,
        body_timeout_seconds: float,
        ingest_clock: IngestClock,
    ) -> None:
        self._ingest_clock = ingest_clock
        self._ingest = ingest
        self._pressure = pressure
        self._counters = counters
        self._clock = clock
        self._max_body = max_body_bytes
        self._timeout = body_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send, bound_to: str | None = None) -> None:
        """Answer a request; `bound_to` is the cluster that the token is bound to, or None."""
        body = BoundedBody(self._pressure, self._max_body)
        try:
            content_type = self._check_head(scope)
            content = await body.read_whole(scope, receive, self._timeout)
            answer: Acknowledgement | BundleAnswer
            if content_type == BUNDLE_CONTENT_TYPE:
                answer = await self._take_bundle(content, bound_to, _header(scope, _WAITED))
            else:
                answer = await self._take(content, bound_to, _header(scope, _WAITED))
        except ClientDisconnectedError:
            self._counters.rejected["client_gone"] += 1
            return
        except RequestRejectedError as refused:
            self._refuse(refused)
            await _respond(send, refused.status, refused.answer)
            return
        finally:
            body.close()
        await _respond(send, 200, answer)

    def _check_head(self, scope: Scope) -> str:
        try:
            parse_query_string(scope["query_string"], scope["path"], {})
        except ParameterError as error:
            raise RequestRejectedError(400, "bad_request", error.reason, error.field) from error
        content_type = _header(scope, b"content-type").partition(";")[0].strip().lower()
        if content_type not in _CONTENT_TYPES:
            raise RequestRejectedError(
                415, "bad_content_type", f"{content_type!r} is not supported: send {CONTENT_TYPE}", "Content-Type"
            )
        if _header(scope, b"content-encoding").lower() not in ("", "identity"):
            raise RequestRejectedError(
                415, "bad_content_type", "not supported: batches have their own compression", "Content-Encoding"
            )
        return content_type

    async def _take_bundle(self, content: bytes, bound_to: str | None, waited_header: str) -> BundleAnswer:
        try:
            bodies = unpack(content)
            weight = sum(map(content_bytes, bodies))
            if weight > BUNDLE_MESSAGE_BYTES:
                detail = (
                    f"its bodies have {weight} bytes uncompressed, more than {BUNDLE_MESSAGE_BYTES}: post them singly"
                )
                raise WireLimitError("bundle", detail)
        except WireLimitError as error:
            raise RequestRejectedError(413, "too_large", str(error), error.field) from error
        except WireError as error:
            raise RequestRejectedError(400, "bad_bundle", str(error), error.field) from error
        # Older relays do not send the header.
        waited = list(_waited(waited_header, len(bodies)) or [0] * len(bodies))
        tasks: list[asyncio.Task[list[BodyAnswer]]] = []
        async with asyncio.TaskGroup() as parts:
            for group in group_bodies(bodies):
                tasks.append(parts.create_task(self._take_group(group, bound_to, waited[: len(group)])))
                del waited[: len(group)]
                await asyncio.sleep(0)  # let other requests run
        return BundleAnswer([answer for task in tasks for answer in task.result()])

    async def _take_group(self, bodies: list[bytes], bound_to: str | None, waited: Sequence[int]) -> list[BodyAnswer]:
        return [self._answer(one) for one in await self._take_all(bodies, bound_to, waited)]

    def _answer(self, outcome: Acknowledgement | RequestRejectedError) -> BodyAnswer:
        if isinstance(outcome, Acknowledgement):
            return BodyAnswer(status=200, result=outcome.status, seq=outcome.seq)
        self._refuse(outcome)
        answer = outcome.answer
        return BodyAnswer(
            status=outcome.status,
            error=answer.error,
            detail=answer.detail,
            field=answer.field,
            retry_after=float(RETRY_AFTER_SECONDS) if outcome.status == 503 else None,
        )

    def _refuse(self, refused: RequestRejectedError) -> None:
        self._counters.rejected[refused.answer.error] += 1
        if refused.status == 503:
            self._ingest_clock.note_rejected()

    async def _take(self, content: bytes, bound_to: str | None, waited_header: str) -> Acknowledgement:
        (outcome,) = await self._take_all([content], bound_to, _waited(waited_header, 1))
        if isinstance(outcome, RequestRejectedError):
            raise outcome
        return outcome

    async def _take_all(
        self, bodies: list[bytes], bound_to: str | None, waited: Sequence[int] | None
    ) -> list[Acknowledgement | RequestRejectedError]:
        self._counters.received_bodies += len(bodies)
        self._counters.received_bytes += sum(map(len, bodies))
        outcomes = await self._ingest.receive_all(bodies, self._clock.now_ns(), bound_to, waited=waited)
        if any(isinstance(one, Acknowledgement) for one in outcomes):
            self._ingest_clock.note_accepted()
        return [one if isinstance(one, Acknowledgement) else _rejection(one) for one in outcomes]


def _waited(text: str, count: int) -> Sequence[int] | None:
    """Return how long each body waited at relays, or None without the header. Raises RequestRejectedError."""
    if not text:
        return None
    try:
        return parse_waited(text, count)
    except WireError as error:
        raise RequestRejectedError(400, "bad_waited", str(error), error.field) from error


def _rejection(error: GpufleetError) -> RequestRejectedError:
    """Return the response to a rejected body. Errors without a response are raised again."""
    match error:
        case WireVersionError():
            return RequestRejectedError(400, "bad_version", str(error), error.field)
        case WireLimitError():
            return RequestRejectedError(413, "too_large", str(error), error.field)
        case WireError():
            return RequestRejectedError(400, "bad_batch", str(error), error.field)
        case OtherClusterError():
            return RequestRejectedError(403, "other_cluster", str(error), "cluster")
        case ForeignClusterError():
            return RequestRejectedError(403, "foreign_cluster", str(error), "cluster")
        case TooManySendersError():
            return RequestRejectedError(403, "too_many_senders", str(error), error.field)
        case TooManyMachinesError():
            return RequestRejectedError(403, "too_many_machines", str(error), "machines")
        case UpstreamRefusalError():
            return RequestRejectedError(403, "upstream_refused", str(error))
        case EpochConflictError():
            return RequestRejectedError(409, "epoch_conflict", str(error), "epoch")
        case SpoolError():
            return RequestRejectedError(503, "log_full", str(error))
        case _:
            raise error


def _header(scope: Scope, name: bytes) -> str:
    return next(iter(header(scope, name)), "")


async def _respond(send: Send, status: int, answer: Acknowledgement | BundleAnswer | ErrorAnswer) -> None:
    more: list[tuple[bytes, bytes]] = []
    if status == 503:
        more.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    if status in (408, 413, 503):
        more.append((b"connection", b"close"))  # the rest of the body is not read
    await respond(send, status, answer, more)
