"""Owner chains of the pods in a copy: resolved in the background, a bounded number at a time."""

import asyncio
import zlib
from collections.abc import Mapping
from typing import NoReturn

import msgspec

from gpufleet.fleet.attribution.cluster_pods import with_known_chain
from gpufleet.model.holdings import Owner
from gpufleet.model.kubernetes import ChainEnd, ClusterPod
from gpufleet.ports.clock import Clock
from gpufleet.ports.cluster import OwnerLookup

WALKERS = 8
"""Number of walks at a time."""

HOLD_SECONDS = 3.0
"""Time for which a new pod waits for its first walk. Then it is shown with its own controller only."""

REPEAT_SECONDS = 3600.0
"""Time after which a chain is resolved again, before up to a quarter more or less. Owners rarely change."""

RETRY_SECONDS = 10.0
"""Time after which a chain is resolved again if the API server gave no answer."""

MAX_DOUBLINGS = 5
"""Number of further failures that double this time."""

_UNKNOWN = (ChainEnd.UNREACHABLE, ChainEnd.NOT_READ)


class _Chain(msgspec.Struct):
    """Owner chain of a pod.

    Attributes:
        controller: reference with which the walk began.
        resolved: the pod as the walk returned it; None before the first walk has ended.
        since: monotonic time at which the pod was first seen.
        due_at: monotonic time of the next walk.
        failures: walks without an answer since the last answer.
        source, shown: the pod of the copy, and the same with its chain.
    """

    controller: Owner
    since: float
    due_at: float
    failures: int = 0
    resolved: ClusterPod | None = None
    source: ClusterPod | None = None
    shown: ClusterPod | None = None


class PodOwners:
    """Owner chains of pods.

    A chain is resolved when a pod appears or has another controller, and repeated later. A walk that reads no more than
    the beginning of a known chain does not replace it.

    Args:
        lookup: resolves a chain.
        clock: monotonic time.
    """

    def __init__(self, lookup: OwnerLookup, clock: Clock) -> None:
        self._lookup = lookup
        self._clock = clock
        self._chains: dict[str, _Chain] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()

    @property
    def queued(self) -> int:
        """Return the number of pods whose walk has not ended."""
        return len(self._queued)

    def merge(self, pods: Mapping[str, ClusterPod], *, repeats: bool = True) -> dict[str, ClusterPod]:
        """Return the pods with their chains, and queue the walks that are due.

        A new pod is left out until its first walk has ended, for at most `HOLD_SECONDS`.

        Args:
            pods: the pods of the copy.
            repeats: whether known chains are resolved again. A standby resolves new pods only, so that it costs the API
                server little and has every chain when it becomes the leader.
        """
        now = self._clock.monotonic()
        merged: dict[str, ClusterPod] = {}
        for uid, pod in pods.items():
            if pod.controller is None:
                self._chains.pop(uid, None)
                merged[uid] = pod
                continue
            chain = self._chains.get(uid)
            if chain is None or chain.controller != pod.controller:
                since = now if chain is None else chain.since
                chain = self._chains[uid] = _Chain(pod.controller, since, now)
            if chain.resolved is None and now - chain.since < HOLD_SECONDS:
                shown = None
            elif chain.source is pod and chain.shown is not None:
                shown = chain.shown
            else:
                shown = _with_chain(pod, chain.resolved)
                chain.source, chain.shown = pod, shown
            if shown is not None:
                merged[uid] = shown
            if now >= chain.due_at and not repeats and chain.resolved is not None and not chain.failures:
                chain.due_at = now + REPEAT_SECONDS * _spread(uid)
            elif now >= chain.due_at and uid not in self._queued:
                self._queued.add(uid)
                self._queue.put_nowait(uid)
            chain.source = pod
        for uid in self._chains.keys() - pods.keys():
            del self._chains[uid]
        return merged

    async def run(self) -> NoReturn:
        """Resolve queued chains until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(WALKERS):
                tasks.create_task(self._walk_queued(), name=f"owner walk {number}")
        raise AssertionError("the walkers ended")

    async def _walk_queued(self) -> NoReturn:
        while True:
            uid = await self._queue.get()
            try:
                await self._walk(uid)
            finally:
                self._queued.discard(uid)

    async def _walk(self, uid: str) -> None:
        chain = self._chains.get(uid)
        if chain is None or chain.source is None:
            return
        resolved = await self._lookup.resolve(chain.source)
        is_unknown = resolved.chain_end in _UNKNOWN
        seconds = RETRY_SECONDS * 2.0 ** min(chain.failures, MAX_DOUBLINGS) if is_unknown else REPEAT_SECONDS
        chain.failures = chain.failures + 1 if is_unknown else 0
        chain.due_at = self._clock.monotonic() + seconds * _spread(uid)
        if chain.resolved is None:
            chain.resolved, chain.shown = resolved, None
        elif not is_unknown:
            chain.resolved, chain.shown = with_known_chain(resolved, chain.resolved), None


def _spread(uid: str) -> float:
    """Return a factor from 0.75 to 1.25, so that the walks of many pods are not due at once."""
    return 0.75 + zlib.crc32(uid.encode()) % 1000 / 2000


def _with_chain(pod: ClusterPod, resolved: ClusterPod | None) -> ClusterPod:
    """Return a pod with the chain of the same pod at an earlier time."""
    if resolved is None:
        return pod
    return msgspec.structs.replace(
        pod, owners=resolved.owners, chain_end=resolved.chain_end, queue=pod.queue or resolved.queue
    )
