"""HTTP transports to receivers of OTLP and Prometheus remote write, with their interpretation of responses.

Specifications: opentelemetry.io/docs/specs/otlp ("OTLP/HTTP Response"), prometheus.io/docs/specs/prw/remote_write_spec
and remote_write_spec_2_0. A remote-write transport falls back from 2.0 to 1.0.
"""

import logging
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import msgspec

from gpufleet.codecs.otlp.decode import decode_answer
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF
from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import CONTENT_TYPE_1, CONTENT_TYPE_2, WritePoint, encode_1
from gpufleet.codecs.remote_write.series_cache import NAME
from gpufleet.delivery.export_queue import ExportOutcome, ExportReply, ExportRequest
from gpufleet.delivery.pacing import parse_retry_after
from gpufleet.delivery.post import MAX_DETAIL
from gpufleet.delivery.session import REQUEST_ERRORS, Session, cause_of, describe_error, read_prefix
from gpufleet.model.errors import ConfigError, WireError

ANSWER_BYTES = 4096
"""Maximum number of bytes read of a response."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """An HTTP response, or the reason why there was none.

    Attributes:
        status: HTTP status; 0 for no response.
        content_type: without parameters.
        body: up to `ANSWER_BYTES` of the body.
        headers: by lower-case name.
        retry_after: seconds from Retry-After, or None.
        problem: the reason why there was no response.
        cause: the same without any text from the other side and without the URL.
    """

    status: int
    content_type: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = {}
    retry_after: float | None = None
    problem: str = ""
    cause: str = ""

    @property
    def is_html(self) -> bool:
        """Return whether this is an HTML page, as from a captive portal, which means that nothing was accepted."""
        return 200 <= self.status < 300 and self.content_type == "text/html"

    @property
    def detail(self) -> str:
        """Text of the response, or the reason why there is none, for logs."""
        if not self.status:
            return self.problem
        text = " ".join(self.body[:MAX_DETAIL].decode("utf-8", "replace").split())
        text = "".join(character for character in text if character.isprintable())
        return f"answers {self.status}: {text}" if text else f"answers {self.status}"


class HttpSender(Session):
    """Client of one URL that keeps its connection open while used as a context manager."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        headers: Callable[[], Mapping[str, str]],
        name: str = "gpufleet-agent",
        connections: int = 1,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Configure the client.

        Args:
            url: the complete URL.
            name, timeout_seconds, connections, tls: see `Session`.
            headers: returns headers to add, such as credentials; raises ConfigError if they are unavailable.
        """
        super().__init__(url, name=name, timeout_seconds=timeout_seconds, connections=connections, tls=tls)
        self._headers = headers

    async def post(self, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Post one body. Redirects are not followed, because credentials would be sent along."""
        try:
            combined = {**self._headers(), **headers}
            async with self.session.post(self.url, data=body, headers=combined, allow_redirects=False) as answer:
                return HttpAnswer(
                    answer.status,
                    answer.content_type if "Content-Type" in answer.headers else "",
                    await read_prefix(answer, ANSWER_BYTES),
                    {name.lower(): value for name, value in answer.headers.items()},
                    parse_retry_after(answer.headers.get("Retry-After", ""), datetime.now(UTC)),
                )
        except ConfigError as error:
            return HttpAnswer(0, problem=str(error), cause=str(error))
        except REQUEST_ERRORS as error:
            return HttpAnswer(0, problem=describe_error(error), cause=cause_of(error))


class HttpTransport:
    """Common part of the `ExportTransport` implementations over HTTP."""

    def __init__(self, sender: HttpSender) -> None:
        """Wrap an HTTP client."""
        self._sender = sender

    @property
    def address(self) -> str:
        """URL of the receiver, for logs."""
        return self._sender.url

    async def __aenter__(self) -> Self:
        """Open the session."""
        await self._sender.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self._sender.__aexit__(kind, error, trace)


_RETRIED = frozenset({0, 429, 502, 503, 504})
"""Statuses to retry, 0 for no response. By the OTLP specification, any other status from 400 on is permanent."""


class OtlpTransport(HttpTransport):
    """Transport to the metrics or the logs endpoint of an OTLP receiver."""

    def __init__(self, sender: HttpSender, *, logs: bool) -> None:
        """Wrap an HTTP client; `logs` selects logs instead of metrics."""
        super().__init__(sender)
        self._logs = logs

    async def post(self, request: ExportRequest) -> ExportReply:
        """Post one request, whose body is gzipped protobuf."""
        headers = {"Content-Type": PROTOBUF, "Content-Encoding": "gzip"}
        return otlp_reply(await self._sender.post(request.body, headers), logs=self._logs)


def otlp_reply(answer: HttpAnswer, *, logs: bool) -> ExportReply:
    """Interpret a response to OTLP. A redirect or an HTML page neither accepts nor rejects the request."""
    status = answer.status
    if status in _RETRIED or 300 <= status < 400 or answer.is_html:
        return ExportReply(outcome=ExportOutcome.RETRY, detail=answer.detail, retry_after=answer.retry_after)
    if not 200 <= status < 300:
        return ExportReply(outcome=ExportOutcome.REJECTED, detail=answer.detail)
    if answer.content_type not in (PROTOBUF, JSON) or not answer.body:
        return ExportReply(outcome=ExportOutcome.ACCEPTED)
    try:
        decoded = decode_answer(answer.body, answer.content_type, logs=logs)
    except WireError as error:
        return ExportReply(outcome=ExportOutcome.ACCEPTED, detail=f"the response cannot be read: {error}")
    return ExportReply(outcome=ExportOutcome.ACCEPTED, detail=decoded.detail, rejected=decoded.rejected)


log = logging.getLogger(__name__)

WRITTEN_HEADER = "x-prometheus-remote-write-samples-written"
"""Response header of remote write 2.0 with the number of samples written."""

_UNSUPPORTED = 415
_TOO_MANY = 429


class RemoteWriteTransport(HttpTransport):
    """Transport to a remote-write receiver. Bodies of 2.0 are converted to 1.0 if the receiver does not support 2.0."""

    def __init__(self, sender: HttpSender, version: str) -> None:
        """Wrap an HTTP client; `version` of the bodies is `1.0` or `2.0`."""
        super().__init__(sender)
        self._version = version
        self._falls_back = False

    async def post(self, request: ExportRequest) -> ExportReply:
        """Post one request."""
        if self._version == "2.0" and not self._falls_back:
            answer = await self._post(request.body, CONTENT_TYPE_2, "2.0.0")
            if not lacks_version_2(answer):
                return remote_write_2_reply(answer, request.points)
            log.info("%s does not support remote write 2.0, falling back to 1.0", self.address)
            self._falls_back = True
        body = convert_to_version_1(request.body) if self._falls_back else request.body
        return remote_write_1_reply(await self._post(body, CONTENT_TYPE_1, "0.1.0"))

    async def _post(self, body: bytes, content_type: str, version: str) -> HttpAnswer:
        headers = {
            "Content-Type": content_type,
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": version,
        }
        return await self._sender.post(body, headers)


def lacks_version_2(answer: HttpAnswer) -> bool:
    """Return whether a response to 2.0 comes from a receiver that supports 1.0 only.

    A receiver that checks the content type returns 415. A receiver that does not decodes the message as an empty 1.0
    request and returns 2xx without the header of written samples.
    """
    lacks_header = 200 <= answer.status < 300 and not answer.is_html and WRITTEN_HEADER not in answer.headers
    return lacks_header or answer.status == _UNSUPPORTED


def remote_write_1_reply(answer: HttpAnswer) -> ExportReply:
    """Interpret a response to remote write 1.0."""
    status = answer.status
    if 200 <= status < 300 and not answer.is_html:
        return ExportReply(outcome=ExportOutcome.ACCEPTED)
    if 400 <= status < 500 and status != _TOO_MANY:
        return ExportReply(outcome=ExportOutcome.REJECTED, detail=answer.detail)
    return ExportReply(outcome=ExportOutcome.RETRY, detail=answer.detail, retry_after=answer.retry_after)


def remote_write_2_reply(answer: HttpAnswer, points: int) -> ExportReply:
    """Interpret a response to remote write 2.0, whose header has the number of points written."""
    reply = remote_write_1_reply(answer)
    text = answer.headers.get(WRITTEN_HEADER, "")
    written = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    missing = max(0, points - written)
    if reply.outcome is ExportOutcome.ACCEPTED and missing:
        return ExportReply(
            outcome=ExportOutcome.ACCEPTED, rejected=missing, detail=f"{written} of {points} samples were written"
        )
    if reply.outcome is ExportOutcome.REJECTED:
        return ExportReply(outcome=ExportOutcome.REJECTED, rejected=missing, detail=answer.detail)
    return reply


def convert_to_version_1(body: bytes) -> bytes:
    """Convert a body of remote write 2.0 encoded here to 1.0."""
    request = WriteDecoder().decode_2(body)
    stale = set(request.stale)
    return encode_1(
        WritePoint({NAME: series.name, **series.labels}, None if number in stale else value, at)
        for number, (series, value, at) in enumerate(zip(request.series, request.values, request.times, strict=True))
    )
