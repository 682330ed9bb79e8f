"""`POST /api/v1/write`: Prometheus remote write 1.0 and 2.0.

    204   durable. 2.0: how many samples were written stands in X-Prometheus-Remote-Write-Samples-Written; 0 if refused
    400 partial_write                 what can be taken is durable, the rest never will be; the count as with 204
    400 bad_request, too_large        nothing is taken, and never sent again
    403 foreign_cluster, other_cluster, too_many_senders
    415 bad_content_type
    503 overloaded, log_full, not_yet, degraded, slow_body   with Retry-After: sent again

Whose it is, and what `?pod_labels=` says: `web/hub/imports.py`.
"""

import contextlib

import msgspec

from gpufleet.hub.imports.remote_write import READER, read_request
from gpufleet.hub.imports.request import Written
from gpufleet.hub.imports.writers import Writer
from gpufleet.model.api.answer import ErrorAnswer
from gpufleet.web.hub.http import Headers, RefusedError, Scope, header
from gpufleet.web.hub.imports import MAX_NAME, Answer, Read, has_plain_pods

VERSION_2 = "io.prometheus.write.v2.Request"
STATUS = {413: 400, 408: 503}
"""vmagent sends again for ever whatever is not answered 400 or 409; Prometheus lets go at every 4xx but 429."""

_JSON = (b"content-type", b"application/json")

PROTOS = {"prometheus.WriteRequest": 1, VERSION_2: 2, "": 1}


class RemoteWrite:
    """The format; see `imports.Format`."""

    max_body_bytes = 16 << 20
    reader = READER
    unnamed_writer = "prometheus"
    together_ns = 0

    def reading(self, scope: Scope) -> Read:
        """Return what reads this version's body."""
        version, plain = _version(scope), has_plain_pods(scope)

        def read(content: bytes, writer: Writer) -> Written:
            decode = writer.decoder.decode_2 if version == 2 else writer.decoder.decode_1
            return read_request(decode(content), plain_pods=plain)

        return read

    def answer(self, scope: Scope, written: Written) -> Answer:
        """Say that it is durable, or that a part of it is, and in 2.0 how many samples were written."""
        counts = _counted(written) if _version(scope) == 2 else []
        if not written.problems:
            return 204, counts, b""
        # As both versions of the format have it: 400 is what a writer never sends again, and what it counts and logs.
        why = ", ".join(f"{name} {count}" for name, count in sorted(written.problems.items()))
        words = f"{sum(written.problems.values())} samples cannot be taken ({why}); what else came is durable"
        answer = ErrorAnswer(error="partial_write", detail=words)
        return 400, [_JSON, *counts], msgspec.json.encode(answer)

    def refusal(self, scope: Scope, refused: RefusedError) -> Answer:
        """Say why nothing was taken, as every error of the hub is said, and in 2.0 that none was written."""
        headers: Headers = [_JSON]
        with contextlib.suppress(RefusedError):  # what came in no version that is known
            headers += _counts(0) if _version(scope) == 2 else []
        return STATUS.get(refused.status, refused.status), headers, msgspec.json.encode(refused.answer)


def _counted(written: Written) -> Headers:
    """Say how many of each kind were written. What is none of the hub's business is left, which is no failure.

    Prometheus logs an error of each request of which less was written than it has, and counts that as lost (3.x).
    """
    samples = written.taken + sum(written.others.values()) - written.other_histograms
    return _counts(samples, written.other_histograms, written.other_exemplars)


def _counts(samples: int, histograms: int = 0, exemplars: int = 0) -> Headers:
    counts = {"samples": samples, "histograms": histograms, "exemplars": exemplars}
    return [(f"x-prometheus-remote-write-{what}-written".encode(), b"%d" % n) for what, n in counts.items()]


def _version(scope: Scope) -> int:
    content_type, _, parameters = next(iter(header(scope, b"content-type")), "").partition(";")
    if content_type.strip().lower() != "application/x-protobuf":
        words = f"{content_type[:MAX_NAME]!r}: remote write is application/x-protobuf"
        raise RefusedError(415, "bad_content_type", words, "Content-Type")
    said = (text.partition("=") for text in parameters.split(";"))
    proto = next((value.strip().strip('"') for name, _, value in said if name.strip().lower() == "proto"), "")
    if proto not in PROTOS:
        raise RefusedError(415, "bad_content_type", f"{proto[:MAX_NAME]!r}: not known here", "Content-Type")
    encoding = next(iter(header(scope, b"content-encoding")), "snappy").lower()
    if encoding != "snappy":
        raise RefusedError(415, "bad_content_type", "remote write is compressed with snappy", "Content-Encoding")
    return PROTOS[proto]
