"""Marks of what has changed, for the streams of open pages.

A mark has no data: a page that receives one requests its data from the API. Marks of a stream are coalesced, and their
total rate is limited, so that many open pages cause a bounded number of requests.
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpufleet.model.errors import GpufleetError
from gpufleet.model.stored.samples import AcceptedBatch

MAX_STREAMS = 1024
"""Maximum number of streams: a quarter of the hub's connections."""

MAX_STREAMS_PER_TOKEN = 256

MIN_INTERVAL_SECONDS = 5.0
"""Minimum interval between two marks of a stream."""

MARKS_PER_SECOND = 10
"""Maximum rate of marks over all streams: with more than 50 streams, the interval of each is longer."""

FLEET = "fleet"
"""Key of any data of the fleet."""

FINDINGS = "findings"
"""Key of the evaluation of the rules."""


def machine_key(id: str) -> str:  # noqa: A002
    """Return the key of the data of a machine, by the hub's id."""
    return f"machine/{id}"


def allocation_key(id: str) -> str:  # noqa: A002
    """Return the key of the specification of an allocation."""
    return f"allocation/{id}"


def allocations_key(tenant: str | None) -> str:
    """Return the key of the list of allocations of a tenant; None for all tenants."""
    return "allocations" if tenant is None else f"allocations/{tenant}"


class TooManyStreamsError(GpufleetError):
    """The hub, or a token, has the maximum number of streams."""


class UpdateStream:
    """Stream of a page. Belongs to the event loop."""

    def __init__(self, marks: "ChangeMarks") -> None:
        self._marks = marks
        self._marked = asyncio.Event()
        self._next_at = 0.0
        self.keys: frozenset[str] = frozenset()

    @property
    def is_closed(self) -> bool:
        """Return whether the hub stops."""
        return self._marks.is_closed

    def follow(self, keys: Iterable[str]) -> bool:
        """Replace the keys whose changes are marked; return whether they differ."""
        return self._marks.follow(self, frozenset(keys))

    def mark(self) -> None:
        """Record that a followed key changed."""
        self._marked.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a mark, at most for a time; return whether there is one. Returns at once when the hub stops."""
        now = self._marks.monotonic
        end = now() + seconds
        pause = min(self._next_at, end) - now()
        if pause > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._marks.closing.wait(), pause)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._marked.wait(), max(0.0, end - now()))
        if self.is_closed or not self._marked.is_set() or now() < self._next_at:
            return False
        self._marked.clear()
        self._next_at = now() + self._marks.interval_seconds
        return True


class ChangeMarks:
    """Changes, and the streams that follow them.

    Attributes:
        most, most_per_token: see `MAX_STREAMS` and `MAX_STREAMS_PER_TOKEN`.
        min_interval_seconds: see `MIN_INTERVAL_SECONDS`.
        monotonic: monotonic clock of seconds.
        closing: set by `close`.
    """

    most = MAX_STREAMS
    most_per_token = MAX_STREAMS_PER_TOKEN
    min_interval_seconds = MIN_INTERVAL_SECONDS

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: set[UpdateStream] = set()
        self._per_token: Counter[str] = Counter()
        self._followers: dict[str, set[UpdateStream]] = {}
        self.closing = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Return whether `close` was called."""
        return self.closing.is_set()

    @property
    def streams(self) -> int:
        """Return the number of open streams."""
        return len(self._streams)

    @property
    def interval_seconds(self) -> float:
        """Return the minimum interval between two marks of a stream, by the number of streams."""
        return max(self.min_interval_seconds, len(self._streams) / MARKS_PER_SECOND)

    def open(self) -> None:
        """Begin to mark streams, on the running event loop."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """End all streams."""
        self.closing.set()
        for stream in self._streams:
            stream.mark()

    def note_batches(self, accepted: Sequence[AcceptedBatch]) -> None:
        """Note batches that are in the store. Thread-safe."""
        self.note(FLEET, *(machine_key(id_) for one in accepted for id_ in one.machine_ids))

    def note(self, *keys: str) -> None:
        """Note changes. Thread-safe."""
        with self._lock:
            is_first = not self._changed
            self._changed.update(keys)
        if is_first and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._spread)

    def _spread(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        for key in changed & self._followers.keys():
            for stream in self._followers[key]:
                stream.mark()

    @contextlib.contextmanager
    def stream(self, token: str) -> Iterator[UpdateStream]:
        """Open a stream for a token, by its id.

        Raises:
            TooManyStreamsError: if there are too many.
        """
        if len(self._streams) >= self.most or self.is_closed:
            raise TooManyStreamsError("the hub has too many open streams: request the data at intervals")
        if self._per_token[token] >= self.most_per_token:
            raise TooManyStreamsError("the token has too many open streams: request the data at intervals")
        stream = UpdateStream(self)
        self._streams.add(stream)
        self._per_token[token] += 1
        try:
            yield stream
        finally:
            self.follow(stream, frozenset())
            self._streams.discard(stream)
            self._per_token[token] -= 1
            self._per_token += Counter()  # removes zeros

    def follow(self, stream: UpdateStream, keys: frozenset[str]) -> bool:
        """Replace the keys of a stream; return whether they differ."""
        before = stream.keys
        for key in before - keys:
            followers = self._followers[key]
            followers.discard(stream)
            if not followers:
                del self._followers[key]
        for key in keys - before:
            self._followers.setdefault(key, set()).add(stream)
        stream.keys = keys
        return keys != before
