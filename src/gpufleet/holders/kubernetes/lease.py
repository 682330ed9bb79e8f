"""Leader election by a Lease, so that one of several replicas works. The Lease is the only object that is written."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import msgspec

from gpufleet.holders.kubernetes.connection import ApiConnection
from gpufleet.holders.kubernetes.resources import LEASES
from gpufleet.model.errors import KubernetesApiError
from gpufleet.model.time import to_datetime
from gpufleet.ports.clock import Clock

log = logging.getLogger(__name__)

DURATION_SECONDS = 15
"""Time after its last renewal at which another replica takes the lease."""

RENEW_SECONDS = 10.0
"""Time after its last renewal at which a leader stops working. It is shorter than the duration."""

RETRY_SECONDS = 2.0
"""Time between two attempts, before up to a fifth of jitter."""

CONFLICT = 409
NOT_FOUND = 404


class _LeaseSpec(msgspec.Struct):
    holder: str | None = msgspec.field(name="holderIdentity", default=None)
    duration: int | None = msgspec.field(name="leaseDurationSeconds", default=None)
    acquired: str | None = msgspec.field(name="acquireTime", default=None)
    renewed: str | None = msgspec.field(name="renewTime", default=None)
    transitions: int | None = msgspec.field(name="leaseTransitions", default=None)


class _LeaseObject(msgspec.Struct):
    metadata: dict[str, Any]  # written back as read: labels of an installer stay
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)
    api_version: str = msgspec.field(name="apiVersion", default="coordination.k8s.io/v1")
    kind: str = "Lease"


_LEASE = msgspec.json.Decoder(_LeaseObject)


class LeaderElection:
    """Leader election.

    At most one replica leads if the monotonic clocks of all replicas run at about the same rate: a leader stops
    `RENEW_SECONDS` after it sent its last successful renewal, also if its event loop is blocked. Another replica takes
    the lease only after it saw the Lease unchanged for its whole duration. Wall clocks are written, and never compared.

    Args:
        connection: to the API server.
        namespace: namespace of the Lease.
        name: name of the Lease.
        identity: unique name of this replica, as the pod's name.
        clock: monotonic time for deadlines, wall time for the fields of the Lease.
        sleep: waits a number of seconds.
        jitter: returns a random number from 0 to 1.
    """

    def __init__(
        self,
        connection: ApiConnection,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._connection = connection
        self._collection = LEASES.path(namespace)
        self._path = LEASES.path(namespace, name)
        self._namespace, self._name = namespace, name
        self._identity = identity
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._leads_until: float | None = None
        self._seen_version = ""
        self._seen_at = 0.0
        self._holder = ""
        self._error = ""

    @property
    def is_leader(self) -> bool:
        """Return whether this replica leads now."""
        return self._leads_until is not None and self._clock.monotonic() < self._leads_until

    @property
    def identity(self) -> str:
        """Return the unique name of this replica."""
        return self._identity

    @property
    def holder(self) -> str:
        """Return the identity in the Lease when it was last read; empty if it was released or never read."""
        return self._holder

    @property
    def error(self) -> str:
        """Return the error of the last attempt, or an empty text."""
        return self._error

    async def run(self) -> NoReturn:
        """Take and renew the lease until cancelled."""
        while True:
            await self.attempt()
            await self._sleep(RETRY_SECONDS * (1 + 0.2 * self._jitter()))

    async def attempt(self) -> bool:
        """Take or renew the lease once, if permitted; return whether this replica leads."""
        was_leader = self.is_leader
        try:
            async with asyncio.timeout(RENEW_SECONDS):  # wait_for of Python 3.11 can lose a cancellation
                await self._attempt()
            self._error = ""
        except TimeoutError:
            self._error = f"{self._path}: no answer in {RENEW_SECONDS:g} s"
        except KubernetesApiError as error:
            self._error = "" if error.status == CONFLICT else str(error)  # another replica was faster
        if was_leader != self.is_leader:
            log.info("%s: %s", self._path, "this replica leads" if self.is_leader else "another replica may lead")
        return self.is_leader

    async def release(self) -> None:
        """Give the lease back, so that another replica need not wait for its end. Errors are ignored."""
        if not self.is_leader:
            return
        self._leads_until = None
        try:
            lease = await self._read()
            if lease is not None and lease.spec.holder == self._identity:
                lease.spec.holder, lease.spec.duration = "", 1
                await self._write("PUT", self._path, lease)
        except KubernetesApiError as error:
            log.info("%s: not released: %s", self._path, error)

    async def _attempt(self) -> None:
        lease = await self._read()
        sent_at, now = self._clock.monotonic(), self._now()
        if lease is None:
            fresh = _LeaseObject({"name": self._name, "namespace": self._namespace}, self._spec(now, now, 0))
            await self._write("POST", self._collection, fresh)
        else:
            spec = lease.spec
            self._holder = spec.holder or ""
            is_own = spec.holder == self._identity
            if not is_own and spec.holder and not self._has_expired(lease, sent_at):
                self._leads_until = None
                return
            transitions = (spec.transitions or 0) + (not is_own)
            lease.spec = self._spec(spec.acquired if is_own and spec.acquired else now, now, transitions)
            await self._write("PUT", self._path, lease)
        self._holder = self._identity
        self._leads_until = sent_at + RENEW_SECONDS

    def _has_expired(self, lease: _LeaseObject, now: float) -> bool:
        """Return whether the Lease was seen unchanged for its whole duration."""
        version = str(lease.metadata.get("resourceVersion", ""))
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, now
        return now - self._seen_at > max(lease.spec.duration or DURATION_SECONDS, 1)

    def _spec(self, acquired: str, renewed: str, transitions: int) -> _LeaseSpec:
        return _LeaseSpec(self._identity, DURATION_SECONDS, acquired, renewed, transitions)

    def _now(self) -> str:
        return to_datetime(self._clock.now_ns()).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    async def _read(self) -> _LeaseObject | None:
        """Return the Lease, or None if it does not exist."""
        try:
            data = await self._connection.get(self._path, max_bytes=1 << 20)
        except KubernetesApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        try:
            return _LEASE.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise KubernetesApiError(f"{self._path}: the response is not a Lease: {error}") from None

    async def _write(self, method: str, path: str, lease: _LeaseObject) -> None:
        await self._connection.write_lease(method, path, msgspec.json.encode(lease))
