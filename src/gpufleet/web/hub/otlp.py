"""`POST /v1/metrics` and `/v1/logs`: OTLP over HTTP, protobuf and JSON.

    200   durable; a partial success says how many points were not taken
    400, 413, 415   never sent again: google.rpc.Status, in the content type of the request
    403 foreign_cluster, other_cluster, too_many_senders
    503   with Retry-After: sent again

Whose it is, and what `?pod_labels=` says: `web/hub/imports.py`.
"""

from gpufleet.codecs.otlp.decode import decode_logs, decode_metrics
from gpufleet.codecs.otlp.encode import encode_answer, encode_status
from gpufleet.codecs.otlp.encodings import unpack
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.codecs.otlp.records import Answer as Counted
from gpufleet.hub.imports.otlp import READER
from gpufleet.hub.imports.otlp import read_logs_request as read_logs
from gpufleet.hub.imports.otlp import read_metrics_request as read_metrics
from gpufleet.hub.imports.request import Written
from gpufleet.hub.imports.writers import Writer
from gpufleet.model.time import NANOS
from gpufleet.web.hub.http import Headers, RefusedError, Scope, header
from gpufleet.web.hub.imports import Answer, Read, has_plain_pods

NAMES_SHOWN = 5
"""Names of metrics in the words of a partial success."""

_CODES = {400: 3, 413: 8, 415: 3, 403: 7, 503: 14}
"""HTTP status to the code of gRPC; 2 is unknown."""


class Otlp:
    """The format, of metrics or of logs; see `imports.Format`."""

    max_body_bytes = 8 << 20
    reader = READER
    unnamed_writer = "collector"
    together_ns = NANOS // 2  # SDKs look at the clock once for each metric

    def __init__(self, *, logs: bool = False) -> None:
        self._logs = logs

    def reading(self, scope: Scope) -> Read:
        """Return what reads a body of this content type."""
        content_type = _content_type(scope)
        encoding = next(iter(header(scope, b"content-encoding")), "").lower()
        plain = has_plain_pods(scope)

        def read(content: bytes, _: Writer) -> Written:
            message = unpack(content, encoding)
            if self._logs:
                return read_logs(decode_logs(message, content_type))
            return read_metrics(decode_metrics(message, content_type), plain_pods=plain)

        return read

    def answer(self, scope: Scope, written: Written) -> Answer:
        """Say that it is durable, and what was not taken."""
        content_type = _content_type(scope)
        words = encode_answer(_counted(written), content_type, logs=self._logs)
        return 200, _typed(content_type), words

    def refusal(self, scope: Scope, refused: RefusedError) -> Answer:
        """Say why nothing was taken, as gRPC says it, in JSON to whoever came with JSON."""
        words = f"{refused.answer.error}: {refused.answer.detail}"
        answered = JSON if _said_type(scope) == JSON else PROTOBUF
        status = 503 if refused.status == 408 else refused.status  # clients of OTLP let go at every 4xx but 429
        return status, _typed(answered), encode_status(_CODES.get(status, 2), words, answered)


def _content_type(scope: Scope) -> str:
    content_type = _said_type(scope)
    if content_type not in (PROTOBUF, JSON):
        words = f"{content_type[:100]!r}: OTLP comes as {PROTOBUF} or {JSON}"
        raise RefusedError(415, "bad_content_type", words, "Content-Type")
    return content_type


def _said_type(scope: Scope) -> str:
    return next(iter(header(scope, b"content-type")), "").partition(";")[0].strip().lower()


def _typed(content_type: str) -> Headers:
    return [(b"content-type", content_type.encode())]


def _counted(written: Written) -> Counted:
    """Say what was not taken. Metrics of no GPU are none of the hub's business: they are not rejected, only left."""
    rejected = written.samples - sum(written.others.values()) - written.taken
    if not rejected:
        return Counted()
    words = [f"{count} points: {why}" for why, count in written.problems.items()]
    if written.nameless:
        words.append(f"{written.nameless} points do not tell which device or host they are of (hw.id, host.name)")
    if written.drift:
        names = sorted(written.drift)
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        words.append(f"not known here: {', '.join(names[:NAMES_SHOWN])}{more}")
    return Counted(rejected, "; ".join(words))
