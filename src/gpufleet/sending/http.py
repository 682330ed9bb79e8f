"""Posts bodies to one address that is no hub, over a kept connection."""

import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from gpufleet import __version__
from gpufleet.model.errors import ConfigError
from gpufleet.sending.backoff import parse_retry_after
from gpufleet.sending.post import WORDS

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


class HttpSender:
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
            timeout_seconds: a request that takes longer has no answer.
            headers: gives those to add now (credentials); raises ConfigError where they cannot be had.
            tls: decides whom to trust, and holds our own certificate; the system's authorities unless given.
        """
        self.url = url
        self._timeout = timeout_seconds
        self._headers = headers
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Make ready to connect."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"User-Agent": f"gpufleet-agent/{__version__}"},
            connector=aiohttp.TCPConnector(limit=1, ssl=self._tls or True),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the connection."""
        assert self._session is not None
        await self._session.close()
        self._session = None

    async def post(self, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Post one body. Redirects are not followed: credentials would go with them."""
        assert self._session is not None, "used as a context"
        try:
            every = {**self._headers(), **headers}
            async with self._session.post(self.url, data=body, headers=every, allow_redirects=False) as answer:
                return HttpAnswer(
                    answer.status,
                    answer.content_type if "Content-Type" in answer.headers else "",
                    await _beginning(answer),
                    {name.lower(): value for name, value in answer.headers.items()},
                    parse_retry_after(answer.headers.get("Retry-After", ""), datetime.now(UTC)),
                )
        except ConfigError as error:
            return HttpAnswer(0, problem=str(error))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return HttpAnswer(0, problem=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    content = b""
    while len(content) < ANSWER_BYTES:
        chunk = await answer.content.read(ANSWER_BYTES - len(content))
        if not chunk:
            break
        content += chunk
    return content
