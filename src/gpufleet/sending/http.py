"""Posts bodies to one address that is no hub, over a kept connection."""

import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import msgspec

from gpufleet.model.errors import ConfigError
from gpufleet.sending.backoff import parse_retry_after
from gpufleet.sending.post import WORDS
from gpufleet.sending.session import NO_ANSWER, Session, beginning_of, words_of

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
