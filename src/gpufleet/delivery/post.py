"""Posts bodies to a hub, and says what its answers mean.

What the hub does not take now (no answer, 5xx, 408, 429), or not from anybody at this address or not yet of this
cluster (401, 403, 404, 405, 407, redirects), is to be posted again. A body of a version of the format that the hub does
not read is posted in the oldest version, which every hub reads, and so are those after it. What cannot be said in that
is to be posted again: a newer hub will read it. 409 says that another machine counts under the same epoch. Any other
4xx is about that one body.

Only a hub's own words count for that: the page of a proxy, a captive portal or another server takes nothing and refuses
nothing, whatever its status. But 413 without them is about the body all the same: it would never get past that proxy.

Batches that the hub will never take, kept for a person to look at; a bounded number of them.
"""

import asyncio
import enum
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from gpufleet.codecs.batch import CONTENT_TYPE, in_version, version_of
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, WAITED_HEADER, BundleAnswer, pack, render_waited
from gpufleet.delivery.pacing import parse_retry_after
from gpufleet.delivery.session import NO_ANSWER, Session, beginning_of, words_of
from gpufleet.model.errors import ConfigError, WireError
from gpufleet.model.wire.batch import OLDEST_VERSION, WIRE_VERSION

ANSWER_BYTES = 1 << 20
"""What is read of an answer."""

WORDS = 300
"""Characters of an answer that are worth repeating."""

BAD_VERSION = "bad_version"
"""What a hub calls a batch in a version of the format that it does not read."""

_FORBIDDEN = 403
_CONFLICT = 409
_TOO_LARGE = 413
_LATER = frozenset({401, 403, 404, 405, 407, 408, 425, 429})
_DECODER = msgspec.json.Decoder(BundleAnswer)


class _Words(msgspec.Struct):
    error: str = ""
    status: str = ""
    answers: msgspec.Raw = msgspec.Raw()

    def are_of_a_hub(self, status: int) -> bool:
        """Tell whether this is how a hub answers with that status."""
        if status >= 300:
            return bool(self.error)
        return self.status in ("accepted", "duplicate") or bool(self.answers)


_WORDS_DECODER = msgspec.json.Decoder(_Words)


RELAY_HEADER = "Gpufleet-Relay"
"""Names the logs of the relay that posts and of those that post to it: one that reads its own there is in a circle."""


class Verdict(enum.Enum):
    """What to do with a body that was posted."""

    TAKEN = "taken"  # forget it: the hub has it
    REFUSED = "refused"  # never post it again
    CONFLICT = "conflict"  # post it again under another epoch
    LATER = "later"  # keep it, post it again


class Answer(msgspec.Struct, frozen=True):
    """What a hub says of one body.

    Attributes:
        status: of HTTP; 0 for no answer.
        words: what it said, or why there was no answer.
        retry_after: seconds that it asks to be left alone, or None.
        error: what it calls the error, or empty.
        by_hub: whether these are the words of a hub.
    """

    status: int
    words: str
    retry_after: float | None = None
    error: str = ""
    by_hub: bool = True

    @property
    def verdict(self) -> Verdict:
        """What to do."""
        if not self.by_hub and self.status != _TOO_LARGE:
            return Verdict.LATER
        if 200 <= self.status < 300:
            return Verdict.TAKEN
        if self.status == _CONFLICT:
            return Verdict.CONFLICT
        if 400 <= self.status < 500 and self.status not in _LATER and self.error != BAD_VERSION:
            return Verdict.REFUSED
        return Verdict.LATER

    @property
    def is_of_this_body(self) -> bool:
        """Whether it is about this one body, and may change when somebody changes the hub."""
        return self.status == _FORBIDDEN or self.error == BAD_VERSION

    def __str__(self) -> str:
        if not self.status:
            return self.words[:WORDS]
        return f"answers {self.status}{'' if self.by_hub else ', not as a hub does'}: {self.words[:WORDS]}"


class HubClient(Session):
    """One hub, a few kept connections while it is used as a context."""

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
        """Take where the hub is.

        Args:
            url: its root.
            name: who posts, for its logs.
            timeout_seconds, connections, tls: as `Session` has them.
            token: gives the token to present now; raises ConfigError where there is none to be had.
            relays: names the relay that posts and those before it, if it is one.
        """
        super().__init__(name=name, timeout_seconds=timeout_seconds, connections=connections, tls=tls)
        self.url = f"{url.rstrip('/')}/v1/batches"
        self._token = token
        self._relays = relays
        self._is_older = False  # the hub said that it does not read the newest version

    async def post(self, body: bytes) -> Answer:
        """Post one batch."""
        (answer,) = await self.post_bundle([body])
        return answer

    async def post_bundle(self, bodies: Sequence[bytes], waited: Sequence[int] | None = None) -> list[Answer]:
        """Post several batches at once; return one answer each. A relay tells how many nanoseconds each has waited.

        A hub that refuses the bundle as such (an older one does not know bundles) gets them one by one. One that does
        not read their version gets them, and whatever it is given after them, in the oldest.
        """
        if self._is_older:
            return await self._post_all([_oldest(body) for body in bodies], waited)
        answers = await self._post_all(bodies, waited)
        unread = {at: _oldest(bodies[at]) for at, answer in enumerate(answers) if answer.error == BAD_VERSION}
        unread = {at: body for at, body in unread.items() if body is not bodies[at]}
        if unread:
            self._is_older = True
            long = None if waited is None else [waited[at] for at in unread]
            for at, answer in zip(unread, await self._post_all(list(unread.values()), long), strict=True):
                answers[at] = answer
        return answers

    async def _post_all(self, bodies: Sequence[bytes], waited: Sequence[int] | None) -> list[Answer]:
        if len(bodies) == 1:
            return [await self._post(bodies[0], CONTENT_TYPE, waited)]
        whole = await self._post(pack(bodies), BUNDLE_CONTENT_TYPE, waited)
        if whole.verdict in (Verdict.REFUSED, Verdict.CONFLICT):
            each = [None] * len(bodies) if waited is None else [[one] for one in waited]
            return [await self._post(body, CONTENT_TYPE, one) for body, one in zip(bodies, each, strict=True)]
        if whole.verdict is Verdict.LATER:
            return [whole] * len(bodies)
        return _each(whole, len(bodies))

    async def _post(self, content: bytes, content_type: str, waited: Sequence[int] | None) -> Answer:
        headers = {"Content-Type": content_type}
        if waited is not None:
            headers[WAITED_HEADER] = render_waited(waited)
        if self._relays is not None:
            headers[RELAY_HEADER] = self._relays()
        try:
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token()}"
            request = self.session.post(self.url, data=content, headers=headers, allow_redirects=False)
            async with request as answer:
                retry_after = parse_retry_after(answer.headers.get("Retry-After", ""), datetime.now(UTC))
                content = await beginning_of(answer, ANSWER_BYTES)
                words = content.decode("utf-8", "replace").strip()
                said = _said(content)
                return Answer(answer.status, words, retry_after, said.error, by_hub=said.are_of_a_hub(answer.status))
        except ConfigError as error:
            return Answer(0, str(error))
        except NO_ANSWER as error:
            return Answer(0, words_of(error))


def _oldest(body: bytes) -> bytes:
    """Return a body in the oldest version, or as it is where it is of that, or of none that is known here."""
    try:
        if not OLDEST_VERSION < version_of(body) <= WIRE_VERSION:
            return body
        return in_version(body, OLDEST_VERSION)
    except WireError:
        return body


def _each(whole: Answer, count: int) -> list[Answer]:
    """Take the answer to a bundle apart."""
    try:
        answers = _DECODER.decode(whole.words).answers
    except msgspec.MsgspecError as error:
        return [Answer(0, f"the answer to a bundle cannot be read: {error}")] * count
    if len(answers) != count:
        return [Answer(0, f"{len(answers)} answers to a bundle of {count}")] * count
    return [Answer(one.status, f"{one.error}: {one.detail}", one.retry_after, one.error) for one in answers]


def _said(content: bytes) -> _Words:
    """Read the words of a hub; none where whoever answers is no hub."""
    try:
        return _WORDS_DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Words()


MAX_FILES = 100
"""Beyond this the oldest go."""


class Refused:
    """A folder of bodies, each named after its epoch and number."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; it is made when there is something to keep."""
        self._folder = folder

    async def keep(self, epoch: str, seq: int, body: bytes) -> str:
        """Write one down and return where, or why it could not be written: it is not worth failing for."""
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
