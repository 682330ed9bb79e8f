"""`POST /v1/metrics` and `/v1/logs`: OTLP over HTTP, protobuf and JSON.

    200   durable; a partial success contains the number of rejected points
    400, 413, 415   not retried by clients: google.rpc.Status, in the content type of the request
    403 foreign_cluster, other_cluster, too_many_senders, too_many_machines
    503   with Retry-After: retried by clients

See `web/hub/imports.py` for the query parameters.
"""

from gpufleet.codecs.otlp.decode import decode_logs, decode_metrics
from gpufleet.codecs.otlp.encode import encode_answer, encode_status
from gpufleet.codecs.otlp.encodings import unpack
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.codecs.otlp.records import Answer as Counted
from gpufleet.hub.imports.otlp import READER
from gpufleet.hub.imports.otlp import read_logs_request as read_logs
from gpufleet.hub.imports.otlp import read_metrics_request as read_metrics
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.writers import ImportWriter
from gpufleet.model.time import NANOS
from gpufleet.web.hub.http import Headers, RequestRejectedError, Scope, header
from gpufleet.web.hub.imports import ImportResponse, ReadBody, has_workload_pod_labels

MAX_NAMES_IN_MESSAGE = 5
"""Maximum number of metric names in the message of a partial success."""

_CODES = {400: 3, 413: 8, 415: 3, 403: 7, 503: 14}
"""gRPC code by HTTP status; the default is 2, unknown."""


class OtlpFormat:
    """OTLP metrics or logs; see `imports.Format`."""

    max_body_bytes = 8 << 20
    reader = READER
    unnamed_writer = "collector"
    merge_window_ns = NANOS // 2  # SDKs read the clock once per metric

    def __init__(self, *, logs: bool = False) -> None:
        self._logs = logs

    def reading(self, scope: Scope) -> ReadBody:
        """Return the function for a body of this content type and encoding."""
        content_type = _content_type(scope)
        encoding = next(iter(header(scope, b"content-encoding")), "").lower()
        plain = has_workload_pod_labels(scope)

        def read(content: bytes, _: ImportWriter) -> ImportedRequest:
            message = unpack(content, encoding)
            if self._logs:
                return read_logs(decode_logs(message, content_type))
            return read_metrics(decode_metrics(message, content_type), plain_pods=plain)

        return read

    def answer(self, scope: Scope, written: ImportedRequest) -> ImportResponse:
        """Return success, or partial success with the rejected points."""
        content_type = _content_type(scope)
        return 200, _typed(content_type), encode_answer(_partial_success(written), content_type, logs=self._logs)

    def refusal(self, scope: Scope, refused: RequestRejectedError) -> ImportResponse:
        """Return the error as google.rpc.Status, in JSON if the request is JSON."""
        message = f"{refused.answer.error}: {refused.answer.detail}"
        content_type = JSON if _header_type(scope) == JSON else PROTOBUF
        status = 503 if refused.status == 408 else refused.status  # OTLP clients drop data on any 4xx except 429
        return status, _typed(content_type), encode_status(_CODES.get(status, 2), message, content_type)


def _content_type(scope: Scope) -> str:
    content_type = _header_type(scope)
    if content_type not in (PROTOBUF, JSON):
        detail = f"{content_type[:100]!r} is not supported: send {PROTOBUF} or {JSON}"
        raise RequestRejectedError(415, "bad_content_type", detail, "Content-Type")
    return content_type


def _header_type(scope: Scope) -> str:
    return next(iter(header(scope, b"content-type")), "").partition(";")[0].strip().lower()


def _typed(content_type: str) -> Headers:
    return [(b"content-type", content_type.encode())]


def _partial_success(written: ImportedRequest) -> Counted:
    """Count rejected points with their reasons. Metrics unrelated to GPUs are ignored, and do not count as rejected."""
    rejected = written.samples - sum(written.others.values()) - written.accepted
    if not rejected:
        return Counted()
    details = [f"{count} points: {why}" for why, count in written.problems.items()]
    if written.unattributed:
        details.append(
            f"{written.unattributed} points do not identify a device or host (hw.id, host.name), or are of a virtual "
            "machine, which the batches of its host's agent report"
        )
    if written.drift:
        names = sorted(written.drift)
        more = f" and {len(names) - MAX_NAMES_IN_MESSAGE} more" if len(names) > MAX_NAMES_IN_MESSAGE else ""
        details.append(f"unknown metrics: {', '.join(names[:MAX_NAMES_IN_MESSAGE])}{more}")
    return Counted(rejected, "; ".join(details))
