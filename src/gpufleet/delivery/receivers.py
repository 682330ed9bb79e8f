"""Posts bodies to one address that is no hub, over a kept connection.

OTLP over HTTP: what a receiver's answers mean (opentelemetry.io/docs/specs/otlp, "OTLP/HTTP Response").

Prometheus remote write: what a receiver's answers mean, and falling back from 2.0 to 1.0.

Specifications: prometheus.io/docs/specs/prw/remote_write_spec and remote_write_spec_2_0.
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
from gpufleet.codecs.remote_write.encode import CONTENT_TYPE_1, CONTENT_TYPE_2, Point, encode_1
from gpufleet.codecs.remote_write.known import NAME
from gpufleet.delivery.outlet import Fate, Parcel, Reply
from gpufleet.delivery.pacing import parse_retry_after
from gpufleet.delivery.post import WORDS
from gpufleet.delivery.session import NO_ANSWER, Session, beginning_of, words_of
from gpufleet.model.errors import ConfigError, WireError

ANSWER_BYTES = 4096
"""What is read of an answer."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """An answer, or why there was none.

    Attributes:
        status: of HTTP; 0 for no answer.
        content_type: without parameters.
        body: its beginning.
        headers: by lower-case name.
        retry_after: seconds that it asks to be left alone, or None.
        problem: why there was no answer.
    """

    status: int
    content_type: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = {}
    retry_after: float | None = None
    problem: str = ""

    @property
    def is_a_page(self) -> bool:
        """Whether this is a page for people, as a captive portal answers whatever is asked: nothing was taken."""
        return 200 <= self.status < 300 and self.content_type == "text/html"

    @property
    def words(self) -> str:
        """What it says, for logs."""
        if not self.status:
            return self.problem
        text = " ".join(self.body[:WORDS].decode("utf-8", "replace").split())
        said = "".join(character for character in text if character.isprintable())
        return f"answers {self.status}: {said}" if said else f"answers {self.status}"


class HttpSender(Session):
    """One address, a kept connection while it is used as a context."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        headers: Callable[[], Mapping[str, str]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Take where to post.

        Args:
            url: all of it.
            timeout_seconds, tls: as `Session` has them.
            headers: gives those to add now (credentials); raises ConfigError where they cannot be had.
        """
        super().__init__(name="gpufleet-agent", timeout_seconds=timeout_seconds, tls=tls)
        self.url = url
        self._headers = headers

    async def post(self, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Post one body. Redirects are not followed: credentials would go with them."""
        try:
            every = {**self._headers(), **headers}
            async with self.session.post(self.url, data=body, headers=every, allow_redirects=False) as answer:
                return HttpAnswer(
                    answer.status,
                    answer.content_type if "Content-Type" in answer.headers else "",
                    await beginning_of(answer, ANSWER_BYTES),
                    {name.lower(): value for name, value in answer.headers.items()},
                    parse_retry_after(answer.headers.get("Retry-After", ""), datetime.now(UTC)),
                )
        except ConfigError as error:
            return HttpAnswer(0, problem=str(error))
        except NO_ANSWER as error:
            return HttpAnswer(0, problem=words_of(error))


class HttpWire:
    """The part of an `outlet.Wire` that is the same for every system that is posted to over HTTP."""

    def __init__(self, sender: HttpSender) -> None:
        """Take where to post."""
        self._sender = sender

    @property
    def where(self) -> str:
        """Its address, for logs."""
        return self._sender.url

    async def __aenter__(self) -> Self:
        """Make ready to connect."""
        await self._sender.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the connection."""
        await self._sender.__aexit__(kind, error, trace)


_LATER = frozenset({0, 429, 502, 503, 504})
"""Answers that say to try again; 0 is none. Every other one from 400 on is for good, says the specification."""


class OtlpWire(HttpWire):
    """One of a receiver's two addresses."""

    def __init__(self, sender: HttpSender, *, logs: bool) -> None:
        """Take where to post, and whether logs go there, not metrics."""
        super().__init__(sender)
        self._logs = logs

    async def post(self, parcel: Parcel) -> Reply:
        """Post one request, in protobuf that is packed already."""
        headers = {"Content-Type": PROTOBUF, "Content-Encoding": "gzip"}
        return judge(await self._sender.post(parcel.body, headers), logs=self._logs)


def judge(answer: HttpAnswer, *, logs: bool) -> Reply:
    """Return what to do after an answer. A redirect or a page for people takes nothing and refuses nothing."""
    status = answer.status
    if status in _LATER or 300 <= status < 400 or answer.is_a_page:
        return Reply(fate=Fate.LATER, words=answer.words, retry_after=answer.retry_after)
    if not 200 <= status < 300:
        return Reply(fate=Fate.REFUSED, words=answer.words)
    if answer.content_type not in (PROTOBUF, JSON) or not answer.body:
        return Reply(fate=Fate.TAKEN)
    try:
        told = decode_answer(answer.body, answer.content_type, logs=logs)
    except WireError as error:
        return Reply(fate=Fate.TAKEN, words=f"an answer that cannot be read: {error}")
    return Reply(fate=Fate.TAKEN, words=told.words, rejected=told.rejected)


log = logging.getLogger(__name__)

WRITTEN = "x-prometheus-remote-write-samples-written"
"""The header by which a receiver of 2.0 tells how many samples it has written."""

_UNSUPPORTED = 415
_TOO_MANY = 429


class RemoteWriteWire(HttpWire):
    """One receiver. Bodies are of 2.0 if that is spoken, and are written anew as 1.0 where it is not after all."""

    def __init__(self, sender: HttpSender, version: str) -> None:
        """Take where to post, and in which version: `1.0` or `2.0`."""
        super().__init__(sender)
        self._version = version
        self._falls_back = False

    async def post(self, parcel: Parcel) -> Reply:
        """Post one request."""
        if self._version == "2.0" and not self._falls_back:
            answer = await self._post(parcel.body, CONTENT_TYPE_2, "2.0.0")
            if not is_of_an_older_receiver(answer):
                return judge_2(answer, parcel.points)
            log.info("%s does not speak remote write 2.0: it gets 1.0 from now on", self.where)
            self._falls_back = True
        body = as_version_1(parcel.body) if self._falls_back else parcel.body
        return judge_1(await self._post(body, CONTENT_TYPE_1, "0.1.0"))

    async def _post(self, body: bytes, content_type: str, version: str) -> HttpAnswer:
        headers = {
            "Content-Type": content_type,
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": version,
        }
        return await self._sender.post(body, headers)


def is_of_an_older_receiver(answer: HttpAnswer) -> bool:
    """Tell whether an answer to 2.0 comes from a receiver of 1.0 alone.

    One that looks at the content type answers 415. One that does not reads the message as an empty one of its own,
    and answers 2xx without a word about what it has written.
    """
    silent = 200 <= answer.status < 300 and not answer.is_a_page and WRITTEN not in answer.headers
    return silent or answer.status == _UNSUPPORTED


def judge_1(answer: HttpAnswer) -> Reply:
    """Return what to do after an answer to 1.0."""
    status = answer.status
    if 200 <= status < 300 and not answer.is_a_page:
        return Reply(fate=Fate.TAKEN)
    if 400 <= status < 500 and status != _TOO_MANY:
        return Reply(fate=Fate.REFUSED, words=answer.words)
    return Reply(fate=Fate.LATER, words=answer.words, retry_after=answer.retry_after)


def judge_2(answer: HttpAnswer, points: int) -> Reply:
    """Return what to do after an answer to 2.0, which tells how many of the points were written."""
    reply = judge_1(answer)
    text = answer.headers.get(WRITTEN, "")
    written = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    missing = max(0, points - written)
    if reply.fate is Fate.TAKEN and missing:
        return Reply(fate=Fate.TAKEN, rejected=missing, words=f"{written} of {points} samples were written")
    if reply.fate is Fate.REFUSED:
        return Reply(fate=Fate.REFUSED, rejected=missing, words=answer.words)
    return reply


def as_version_1(body: bytes) -> bytes:
    """Write a body of 2.0 that we made as 1.0."""
    request = WriteDecoder().decode_2(body)
    stale = set(request.stale)
    return encode_1(
        Point({NAME: series.name, **series.labels}, None if number in stale else value, at)
        for number, (series, value, at) in enumerate(zip(request.series, request.values, request.times, strict=True))
    )
