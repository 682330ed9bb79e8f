"""Client that posts batches to a hub and interprets its responses.

- No response, 5xx, 408, 425 and 429 are temporary: retry.
- 401, 403, 404, 405, 407 and redirects concern the address, the credentials or the cluster: retry.
- `bad_version`: the hub is older than the sender. Retry: a newer hub will read the body.
- 409: another machine uses the same epoch.
- Any other 4xx rejects the body permanently.

Only responses in the hub's own format count. A page of a proxy, a captive portal or another server neither accepts nor
rejects a batch, whatever its status. The exception is 413, which rejects the body from any server: it would never get
past that proxy.
"""

import asyncio
import enum
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, WAITED_HEADER, BundleAnswer, pack, render_waited
from gpufleet.delivery.pacing import parse_retry_after
from gpufleet.delivery.session import REQUEST_ERRORS, Session, describe_error, read_prefix
from gpufleet.model.errors import ConfigError

ANSWER_BYTES = 1 << 20
"""Maximum number of bytes read of a response."""

MAX_DETAIL = 300
"""Characters of a response that are repeated in logs."""

BAD_VERSION = "bad_version"
"""Error code of a hub for a batch in a format version that it does not read."""

_FORBIDDEN = 403
_CONFLICT = 409
_TOO_LARGE = 413
_RETRIED = frozenset({401, 403, 404, 405, 407, 408, 425, 429})
_BUNDLE_DECODER = msgspec.json.Decoder(BundleAnswer)


class _AnswerBody(msgspec.Struct):
    error: str = ""
    status: str = ""
    answers: msgspec.Raw = msgspec.Raw()

    def is_from_hub(self, status: int) -> bool:
        """Return whether the body has the format of a hub's response with this status."""
        if status >= 300:
            return bool(self.error)
        return self.status in ("accepted", "duplicate") or bool(self.answers)


_ANSWER_DECODER = msgspec.json.Decoder(_AnswerBody)


RELAY_HEADER = "Gpufleet-Relay"
"""Request header with the log epochs of the posting relay and of the relays behind it.

A relay that finds its own epoch there is part of a forwarding loop.
"""


class HubVerdict(enum.Enum):
    """Result of posting a body to a hub."""

    ACCEPTED = "accepted"  # the hub has it
    REJECTED = "rejected"  # permanent: do not retry
    CONFLICT = "conflict"  # post it again under another epoch
    RETRY = "retry"  # temporary: keep it and post it again


class HubAnswer(msgspec.Struct, frozen=True):
    """Response of a hub to one body.

    Attributes:
        status: HTTP status; 0 for no response.
        detail: text of the response, or the reason why there is none.
        retry_after: seconds from Retry-After, or None.
        error: error code of the hub, or empty.
        by_hub: whether the response has the format of a hub.
    """

    status: int
    detail: str
    retry_after: float | None = None
    error: str = ""
    by_hub: bool = True

    @property
    def verdict(self) -> HubVerdict:
        """Action to take for the body."""
        if not self.by_hub and self.status != _TOO_LARGE:
            return HubVerdict.RETRY
        if 200 <= self.status < 300:
            return HubVerdict.ACCEPTED
        if self.status == _CONFLICT:
            return HubVerdict.CONFLICT
        if 400 <= self.status < 500 and self.status not in _RETRIED and self.error != BAD_VERSION:
            return HubVerdict.REJECTED
        return HubVerdict.RETRY

    @property
    def is_about_body(self) -> bool:
        """Return whether the response concerns this body only, and depends on the hub's configuration or version."""
        return self.status == _FORBIDDEN or self.error == BAD_VERSION

    def __str__(self) -> str:
        if not self.status:
            return self.detail[:MAX_DETAIL]
        return f"answers {self.status}{'' if self.by_hub else ' (not a hub response)'}: {self.detail[:MAX_DETAIL]}"


class HubClient(Session):
    """Client of one hub that keeps a few connections open while used as a context manager."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        timeout_seconds: float,
        connections: int = 1,
        token: Callable[[], str] | None = None,
        relays: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Configure the client.

        Args:
            url: root of the hub.
            name: of the client, sent as User-Agent.
            timeout_seconds, connections, tls: see `Session`.
            token: returns the current bearer token; raises ConfigError if there is none.
            relays: returns the value of `RELAY_HEADER`; None if the client is not a relay.
        """
        batches = f"{url.rstrip('/')}/v1/batches"
        super().__init__(batches, name=name, timeout_seconds=timeout_seconds, connections=connections, tls=tls)
        self._token = token
        self._relays = relays

    async def post(self, body: bytes) -> HubAnswer:
        """Post one batch."""
        (answer,) = await self.post_bundle([body])
        return answer

    async def post_bundle(self, bodies: Sequence[bytes], waited: Sequence[int] | None = None) -> list[HubAnswer]:
        """Post several batches in one request; return one answer for each.

        If the hub rejects the bundle as such, the batches are posted one by one: a proxy or the hub may limit its size.

        Args:
            bodies: encoded batches.
            waited: nanoseconds that each batch has waited at relays; None if the client is not a relay.
        """
        if len(bodies) == 1:
            return [await self._post(bodies[0], CONTENT_TYPE, waited)]
        whole = await self._post(pack(bodies), BUNDLE_CONTENT_TYPE, waited)
        if whole.verdict in (HubVerdict.REJECTED, HubVerdict.CONFLICT):
            each = [None] * len(bodies) if waited is None else [[one] for one in waited]
            return [await self._post(body, CONTENT_TYPE, one) for body, one in zip(bodies, each, strict=True)]
        if whole.verdict is HubVerdict.RETRY:
            return [whole] * len(bodies)
        return _split_answer(whole, len(bodies))

    async def _post(self, content: bytes, content_type: str, waited: Sequence[int] | None) -> HubAnswer:
        headers = {"Content-Type": content_type}
        if waited is not None:
            headers[WAITED_HEADER] = render_waited(waited)
        if self._relays is not None:
            headers[RELAY_HEADER] = self._relays()
        try:
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token()}"
            request = self.session.post(self.url, data=content, headers=headers, allow_redirects=False)
            async with request as response:
                retry_after = parse_retry_after(response.headers.get("Retry-After", ""), datetime.now(UTC))
                content = await read_prefix(response, ANSWER_BYTES)
                detail = content.decode("utf-8", "replace").strip()
                body = _decode_answer(content)
                by_hub = body.is_from_hub(response.status)
                return HubAnswer(response.status, detail, retry_after, body.error, by_hub=by_hub)
        except ConfigError as error:
            return HubAnswer(0, str(error))
        except REQUEST_ERRORS as error:
            return HubAnswer(0, describe_error(error))


def _split_answer(whole: HubAnswer, count: int) -> list[HubAnswer]:
    """Split the answer to a bundle into one answer for each batch."""
    try:
        answers = _BUNDLE_DECODER.decode(whole.detail).answers
    except msgspec.MsgspecError as error:
        return [HubAnswer(0, f"the answer to a bundle cannot be read: {error}")] * count
    if len(answers) != count:
        return [HubAnswer(0, f"the answer to a bundle of {count} batches has {len(answers)} entries")] * count
    return [HubAnswer(one.status, f"{one.error}: {one.detail}", one.retry_after, one.error) for one in answers]


def _decode_answer(content: bytes) -> _AnswerBody:
    """Decode a response body; return an empty one if it does not have the format of a hub."""
    try:
        return _ANSWER_DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _AnswerBody()


MAX_FILES = 100
"""Maximum number of files; beyond it, the oldest are deleted."""


class RejectedBatches:
    """A bounded folder of permanently rejected batches, named by epoch and sequence number, for inspection."""

    def __init__(self, folder: Path) -> None:
        """Set the folder; it is created with the first batch."""
        self._folder = folder

    async def keep(self, epoch: str, seq: int, body: bytes) -> str:
        """Write a batch; return its path, or a text with the reason if it cannot be written. Never raises OSError."""
        return await asyncio.to_thread(self._keep, epoch, seq, body)

    def _keep(self, epoch: str, seq: int, body: bytes) -> str:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = self._folder / f"{epoch}-{seq:019d}.batch"
            file.write_bytes(body)
            kept = sorted(self._folder.glob("*.batch"), key=lambda one: one.stat().st_mtime_ns)
            for old in kept[:-MAX_FILES]:
                old.unlink(missing_ok=True)
        except OSError as error:
            return f"nothing ({error})"
        return str(file)
