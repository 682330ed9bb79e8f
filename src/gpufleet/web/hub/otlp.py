"""`POST /v1/metrics` and `/v1/logs`: OTLP over HTTP, protobuf and JSON, as bare ASGI callables.

    200   durable; a partial success says how many points were not taken
    400, 413, 415   never sent again: google.rpc.Status, in the content type of the request
    403 foreign_cluster, other_cluster, too_many_senders; 405; 408
    503   with Retry-After: sent again

Whose it is, the token says, or `?cluster=` and `?sender=`, as for remote write (`web/hub/write.py`).
"""

from collections.abc import Callable, Sequence

from gpufleet.codecs.otlp.decode import decode_logs, decode_metrics, unpack
from gpufleet.codecs.otlp.encode import encode_answer, encode_status
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.codecs.otlp.records import Answer
from gpufleet.hub.counters import Counters
from gpufleet.hub.imported.logs import read_request as read_logs
from gpufleet.hub.imported.points import READER
from gpufleet.hub.imported.points import read_request as read_metrics
from gpufleet.hub.imported.writes import Writer, Writes
from gpufleet.hub.imported.written import Written
from gpufleet.hub.liveness.listening import Listening
from gpufleet.hub.pressure import Pressure
from gpufleet.model.time import NANOS
from gpufleet.web.hub.body import Body, GoneError, RefusedError
from gpufleet.web.hub.ingest import RETRY_AFTER_SECONDS
from gpufleet.web.hub.respond import Headers, Receive, Scope, Send, header
from gpufleet.web.hub.write import explained, whose

MAX_BODY_BYTES = 8 << 20

TOGETHER_NS = NANOS // 2
"""Points of one device that are no further apart are of one instant: SDKs look at the clock once for each metric."""

UNNAMED_WRITER = "collector"

NAMES_SHOWN = 5
"""Names of metrics in the words of a partial success."""

_CODES = {400: 3, 413: 8, 415: 3, 403: 7, 503: 14}
"""HTTP status to the code of gRPC; 2 is unknown."""


class OtlpEndpoint:
    """The endpoint of metrics, or of logs."""

    def __init__(
        self,
        *,
        logs: bool = False,
        writes: Writes,
        served: Callable[[], Sequence[str]],
        pressure: Pressure,
        counters: Counters,
        listening: Listening,
        body_timeout_seconds: float,
    ) -> None:
        self._logs = logs
        self._writes = writes
        self._served = served
        self._pressure = pressure
        self._counters = counters
        self._listening = listening
        self._timeout = body_timeout_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send, bound_to: str | None = None) -> None:
        """Answer one request; `bound_to` is the only cluster that who asks may write for, if there is one."""
        body = Body(self._pressure, MAX_BODY_BYTES)
        content_type = next(iter(header(scope, b"content-type")), "").partition(";")[0].strip().lower()
        try:
            _check_head(scope, content_type)
            cluster, writer = whose(scope, bound_to, self._served(), UNNAMED_WRITER)
            content = await body.read_whole(scope, receive, self._timeout)
            self._counters.received_bodies += 1
            self._counters.received_bytes += len(content)
            encoding = next(iter(header(scope, b"content-encoding")), "").lower()

            def read(_: Writer) -> Written:
                message = unpack(content, encoding)
                if self._logs:
                    return read_logs(decode_logs(message, content_type))
                return read_metrics(decode_metrics(message, content_type))

            with explained():
                written = await self._writes.take(cluster, f"{READER}/{writer}", read, together_ns=TOGETHER_NS)
        except GoneError:
            self._counters.rejected["client_gone"] += 1
            return
        except RefusedError as refused:
            self._counters.rejected[refused.answer.error] += 1
            if refused.status == 503:
                self._listening.turned_away()
            await _refuse(send, refused)
            return
        finally:
            body.close()
        self._listening.took()
        answer = encode_answer(_answer(written), content_type, logs=self._logs)
        await _send(send, 200, content_type, answer)


def _check_head(scope: Scope, content_type: str) -> None:
    if scope["method"] != "POST":
        raise RefusedError(405, "method_not_allowed", "OTLP is posted")
    if content_type not in (PROTOBUF, JSON):
        words = f"{content_type[:100]!r}: OTLP comes as {PROTOBUF} or {JSON}"
        raise RefusedError(415, "bad_content_type", words, "Content-Type")


def _answer(written: Written) -> Answer:
    """Say what was not taken. Metrics of no GPU are none of the hub's business: they are not rejected, only left."""
    rejected = written.samples - written.others - written.taken
    if not rejected:
        return Answer()
    words = [f"{count} points: {why}" for why, count in written.problems.items()]
    if written.nameless:
        words.append(f"{written.nameless} points do not tell which device or host they are of (hw.id, host.name)")
    if written.drift:
        names = sorted(written.drift)
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        words.append(f"not known here: {', '.join(names[:NAMES_SHOWN])}{more}")
    return Answer(rejected, "; ".join(words))


async def _refuse(send: Send, refused: RefusedError) -> None:
    more: Headers = [(b"retry-after", str(RETRY_AFTER_SECONDS).encode())] if refused.status == 503 else []
    if refused.status in (408, 413, 503):
        more.append((b"connection", b"close"))
    status = encode_status(_CODES.get(refused.status, 2), f"{refused.answer.error}: {refused.answer.detail}")
    await _send(send, refused.status, PROTOBUF, status, more)


async def _send(send: Send, status: int, content_type: str, body: bytes, more: Headers | None = None) -> None:
    headers: Headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers + (more or [])})
    await send({"type": "http.response.body", "body": body})
