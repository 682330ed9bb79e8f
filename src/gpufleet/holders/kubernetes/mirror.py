"""Local copy of the objects of a resource, kept current by a list and a watch."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Generic, NoReturn, TypeVar

import msgspec

from gpufleet.delivery.pacing import retry_delay
from gpufleet.holders.kubernetes.connection import ApiConnection
from gpufleet.holders.kubernetes.listing import (
    GONE,
    PAGE_OBJECTS,
    Convert,
    decode_event,
    decode_object,
    error_of_event,
    list_objects,
    watch_accept,
)
from gpufleet.holders.kubernetes.resources import ApiResource
from gpufleet.model.errors import KubernetesApiError
from gpufleet.model.kubernetes import CopyState, CopyStatus
from gpufleet.ports.clock import Clock

T = TypeVar("T")

MAX_OBJECTS = 200_000
WATCH_SECONDS = 240
"""Duration of a watch, before up to a quarter of jitter. The server then ends it, and another watch continues."""

IDLE_SECONDS = 120.0
"""Time without data after which a watch is opened again: its connection can be lost. Bookmarks come every minute."""

REPLAY_SECONDS = 2.0
"""Time after which an opened watch without events counts as current. The server sends missed events at once."""

STEADY_SECONDS = 5.0
"""Duration of a watch without events after which earlier failures no longer count."""

DENIED_SECONDS = 60.0
"""Delay before another attempt if the resource is forbidden or not served."""

_DENIED = {403: CopyState.FORBIDDEN, 404: CopyState.NOT_SERVED}
_RESUMABLE = frozenset({0, 401, 403, 429, 502, 503})
"""Statuses after which the watch continues from its resource version. After others the resource is listed again."""


class Changes(msgspec.Struct, Generic[T], frozen=True):
    """Difference between two states of a copy.

    Attributes:
        added: new records.
        changed: earlier and present record of each changed object.
        removed: last records of removed objects.
    """

    added: tuple[T, ...] = ()
    changed: tuple[tuple[T, T], ...] = ()
    removed: tuple[T, ...] = ()


class ResourceMirror(Generic[T]):
    """Local copy of the objects of a resource.

    The copy is consistent: it equals the state of the API server at one resource version. In an outage it keeps the
    last state, and `status` shows since when it is not current. `run` fills it.

    Args:
        connection: to the API server.
        resource: the resource.
        convert: turns an object into a record, or None if it is not needed.
        clock: wall time for `since`, monotonic time for delays.
        query: label and field selectors.
        namespace: only this namespace.
        metadata_only: whether only the metadata of the objects is transferred.
        max_objects: further records are left out, and the status is not complete.
        page_objects: number of objects of a page of a list.
        sleep: waits a number of seconds.
        jitter: returns a random number from 0 to 1.
    """

    def __init__(
        self,
        connection: ApiConnection,
        resource: ApiResource,
        convert: Convert[T],
        clock: Clock,
        *,
        query: Mapping[str, str] | None = None,
        namespace: str = "",
        metadata_only: bool = False,
        max_objects: int = MAX_OBJECTS,
        page_objects: int = PAGE_OBJECTS,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._connection = connection
        self._resource = resource
        self._convert = convert
        self._clock = clock
        self._query = dict(query or {})
        self._namespace = namespace
        self._metadata_only = metadata_only
        self._max_objects = max_objects
        self._page_objects = page_objects
        self._sleep = sleep
        self._jitter = jitter
        self._records: dict[str, T] = {}
        self._problems: dict[str, str] = {}
        self._is_complete = True
        self._version = ""
        self._taken: dict[str, T] = {}
        self._state = CopyState.STARTING
        self._since = self._current_at = clock.now_ns()
        self._detail = ""
        self._opened: float | None = None
        self._failures = 0

    @property
    def records(self) -> Mapping[str, T]:
        """Return the records by UID. Do not change the mapping, and do not keep it across an `await`."""
        return self._records

    @property
    def rejected(self) -> Collection[str]:
        """Return the keys of present objects that could not be decoded: the UID, or `namespace/name` without one."""
        return self._problems.keys()

    @property
    def status(self) -> CopyStatus:
        """Return the present status."""
        self._confirm_if_quiet()
        is_current = self._state in (CopyState.STARTING, CopyState.SYNCED)
        return CopyStatus(
            resource=self._resource.name,
            state=self._state,
            since=self._since if is_current else self._current_at,
            detail=self._detail,
            objects=len(self._records),
            rejected=len(self._problems),
            example=next(iter(self._problems.values()), ""),
            is_complete=self._is_complete,
        )

    def take_changes(self) -> Changes[T]:
        """Return the difference to the state at the previous call; at the first call, every record is added."""
        before, now = self._taken, self._records
        self._taken = dict(now)
        return Changes(
            added=tuple(record for uid, record in now.items() if uid not in before),
            changed=tuple(
                (before[uid], record)
                for uid, record in now.items()
                if uid in before and before[uid] is not record and before[uid] != record
            ),
            removed=tuple(record for uid, record in before.items() if uid not in now),
        )

    async def run(self) -> NoReturn:
        """Keep the copy current until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                error = None
            except KubernetesApiError as raised:
                error = raised
            await self._pause(error)

    async def _list(self) -> None:
        self._failures += 1
        listed = await list_objects(
            self._connection,
            self._resource,
            self._convert,
            query=self._query,
            namespace=self._namespace,
            metadata_only=self._metadata_only,
            max_objects=self._max_objects,
            page_objects=self._page_objects,
        )
        earlier = self._records
        # An unchanged record stays the same object, so that take_changes compares few.
        self._records = {
            uid: earlier[uid] if earlier.get(uid) == record else record for uid, record in listed.records.items()
        }
        self._problems, self._is_complete, self._version = listed.problems, listed.is_complete, listed.version
        self._confirm()

    async def _follow(self) -> None:
        """Apply the events of a watch until the server ends it."""
        duration = int(WATCH_SECONDS * (1 + 0.25 * self._jitter()))
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(duration),
        }
        accept = watch_accept(metadata_only=self._metadata_only)
        path = self._resource.path(self._namespace)
        self._failures += 1  # until the watch proves to work
        try:
            async with self._connection.watch(path, query, accept=accept, idle_seconds=IDLE_SECONDS) as lines:
                self._opened = self._clock.monotonic()
                async for line in lines:
                    self._apply(line)
        except KubernetesApiError as error:
            if error.status not in _RESUMABLE:
                self._version = ""
            raise
        finally:
            self._confirm_if_quiet()
            if self._opened is not None and self._clock.monotonic() - self._opened >= STEADY_SECONDS:
                self._failures = 0
            self._opened = None
        if not self._is_complete:
            self._version = ""  # there can be room now for the records that were left out

    def _apply(self, line: bytes) -> None:
        event = decode_event(line)
        if event.kind == "ERROR":
            raise error_of_event(event.object, self._resource.name)
        found = decode_object(event.object, self._convert)
        if event.kind == "DELETED":
            self._store(found.key, None, "")
        elif event.kind != "BOOKMARK":
            self._store(found.key, found.record, found.problem)
        self._version = found.version or self._version
        self._failures = 0
        self._confirm()

    def _store(self, key: str, record: T | None, problem: str) -> None:
        """Replace an object by its record, by the reason why it is not valid, or by nothing."""
        is_known = (self._problems.pop(key, None) is not None) | (key in self._records)
        has_room = is_known or len(self._records) + len(self._problems) < self._max_objects
        if record is None or not has_room:
            self._records.pop(key, None)
        else:
            self._records[key] = record
        if problem and has_room:
            self._problems[key] = problem
        if not has_room and (record is not None or problem):
            self._is_complete = False

    def _confirm(self) -> None:
        """Record that the copy is current."""
        self._current_at = self._clock.now_ns()
        if self._state is not CopyState.SYNCED:
            self._state, self._since, self._detail = CopyState.SYNCED, self._current_at, ""

    def _confirm_if_quiet(self) -> None:
        """Record that the copy is current if the open watch had time to send missed events."""
        is_open = self._opened is not None and self._clock.monotonic() - self._opened >= REPLAY_SECONDS
        if is_open and self._state is not CopyState.SYNCED:
            self._confirm()

    async def _pause(self, error: KubernetesApiError | None) -> None:
        """Record an error and wait before the next attempt; continue at once after the first end of a watch."""
        if error is not None:
            state = _DENIED.get(error.status, CopyState.STALE)
            if self._state is not CopyState.STARTING or state is not CopyState.STALE:
                self._state = state
            self._detail = str(error)
        if error is not None and error.status in _DENIED:
            await self._sleep(DENIED_SECONDS * (0.75 + 0.5 * self._jitter()))
        elif error is not None and error.status != GONE:
            self._failures = max(1, self._failures)
            await self._sleep(retry_delay(self._failures, error.retry_after, self._jitter()))
        elif self._failures > 1:
            await self._sleep(retry_delay(self._failures, None, self._jitter()))
