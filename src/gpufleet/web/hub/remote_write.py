"""`POST /api/v1/write`: Prometheus remote write 1.0 and 2.0.

    204   durable. 2.0: X-Prometheus-Remote-Write-Samples-Written is the number of written samples; 0 if rejected
    400 partial_write                 valid samples are durable, the rest is rejected permanently; header as with 204
    400 bad_request, too_large        all samples are rejected; not retried by clients
    403 foreign_cluster, other_cluster, too_many_senders, too_many_machines
    415 bad_content_type
    503 overloaded, log_full, catching_up, degraded, slow_body   with Retry-After: retried by clients

See `web/hub/imports.py` for the query parameters.
"""

import contextlib

import msgspec

from gpufleet.hub.imports.remote_write import READER, read_request
from gpufleet.hub.imports.request import ImportedRequest
from gpufleet.hub.imports.writers import ImportWriter
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.web.hub.http import Headers, RequestRejectedError, Scope, header
from gpufleet.web.hub.imports import MAX_NAME, ImportResponse, ReadBody, has_workload_pod_labels

VERSION_2 = "io.prometheus.write.v2.Request"
STATUS = {413: 400, 408: 503}
"""Status overrides. vmagent retries forever unless it gets 400 or 409; Prometheus drops data on 4xx except 429."""

_JSON = (b"content-type", b"application/json")

PROTOS = {"prometheus.WriteRequest": 1, VERSION_2: 2, "": 1}


class RemoteWriteFormat:
    """Prometheus remote write; see `imports.Format`."""

    max_body_bytes = 16 << 20
    reader = READER
    unnamed_writer = "prometheus"
    merge_window_ns = 0

    def reading(self, scope: Scope) -> ReadBody:
        """Return the function for a body of this protocol version."""
        version, plain = _version(scope), has_workload_pod_labels(scope)

        def read(content: bytes, writer: ImportWriter) -> ImportedRequest:
            decode = writer.decoder.decode_2 if version == 2 else writer.decoder.decode_1
            return read_request(decode(content), plain_pods=plain)

        return read

    def answer(self, scope: Scope, written: ImportedRequest) -> ImportResponse:
        """Return success or partial success, in 2.0 with the number of written samples."""
        counts = _written_headers(written) if _version(scope) == 2 else []
        if not written.problems:
            return 204, counts, b""
        # Both versions of the specification: a writer does not retry on 400, but counts and logs it.
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(written.problems.items()))
        detail = f"{sum(written.problems.values())} samples are rejected ({reasons}); the others are durable"
        answer = ErrorAnswer(error="partial_write", detail=detail)
        return 400, [_JSON, *counts], msgspec.json.encode(answer)

    def refusal(self, scope: Scope, refused: RequestRejectedError) -> ImportResponse:
        """Return the error as ErrorAnswer, in 2.0 with 0 written samples."""
        headers: Headers = [_JSON]
        with contextlib.suppress(RequestRejectedError):  # the version is unknown
            headers += _count_headers(0) if _version(scope) == 2 else []
        return STATUS.get(refused.status, refused.status), headers, msgspec.json.encode(refused.answer)


def _written_headers(written: ImportedRequest) -> Headers:
    """Return the counts of written samples. Ignored samples of unknown projects count as written.

    Prometheus 3.x logs an error for each request with fewer written samples than it sent, and counts the rest as lost.
    """
    samples = written.accepted + sum(written.others.values()) - written.other_histograms
    return _count_headers(samples, written.other_histograms, written.other_exemplars)


def _count_headers(samples: int, histograms: int = 0, exemplars: int = 0) -> Headers:
    counts = {"samples": samples, "histograms": histograms, "exemplars": exemplars}
    return [(f"x-prometheus-remote-write-{what}-written".encode(), b"%d" % n) for what, n in counts.items()]


def _version(scope: Scope) -> int:
    content_type, _, parameters = next(iter(header(scope, b"content-type")), "").partition(";")
    if content_type.strip().lower() != "application/x-protobuf":
        detail = f"{content_type[:MAX_NAME]!r} is not supported: send application/x-protobuf"
        raise RequestRejectedError(415, "bad_content_type", detail, "Content-Type")
    pairs = (text.partition("=") for text in parameters.split(";"))
    proto = next((value.strip().strip('"') for name, _, value in pairs if name.strip().lower() == "proto"), "")
    if proto not in PROTOS:
        raise RequestRejectedError(
            415, "bad_content_type", f"proto {proto[:MAX_NAME]!r} is not supported", "Content-Type"
        )
    encoding = next(iter(header(scope, b"content-encoding")), "snappy").lower()
    if encoding != "snappy":
        raise RequestRejectedError(415, "bad_content_type", "not supported: send snappy", "Content-Encoding")
    return PROTOS[proto]
