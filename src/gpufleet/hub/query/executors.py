"""Execution of long queries on threads of their own, with a bounded queue, so that other queries do not wait."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from gpufleet.model.errors import GpufleetError

T = TypeVar("T")


class BusyError(GpufleetError):
    """The hub is too busy for this query: retry later."""


class BoundedExecutor:
    """Runs queries of one kind; further ones are rejected while too many are running or queued.

    A query whose client went away runs to its end, and counts until then. A tenant has a share of the queue. All
    tenants together leave a share of the same size for queries without tenant, and they leave threads.
    """

    def __init__(
        self, threads: Executor, *, limit: int, kind: str, tenant_limit: int = 0, tenant_threads: int = 0
    ) -> None:
        """Set the threads and the limits.

        Args:
            threads: execute the queries.
            limit: maximum number of running and queued queries.
            kind: name of the queries in messages.
            tenant_limit: maximum number of those of a tenant.
            tenant_threads: maximum number of running queries of all tenants; 0 if there are none.
        """
        self._threads = threads
        self._limit = limit
        self._tenant_limit = tenant_limit
        self._kind = kind
        self._tenant_threads = asyncio.Semaphore(tenant_threads)
        self._pending: Counter[str | None] = Counter()  # by tenant

    async def run(self, query: Callable[[], T], tenant: str | None = None) -> T:
        """Return the result of a query.

        Args:
            query: the query.
            tenant: the tenant whose token was used, or None.

        Raises:
            BusyError: if too many queries are running or queued, of the tenant or of all clients.
        """
        self._check(tenant)
        running = asyncio.create_task(self._run(query, is_tenants=tenant is not None))
        self._pending[tenant] += 1
        running.add_done_callback(lambda done: self._note_done(done, tenant))
        return await asyncio.shield(running)

    async def _run(self, query: Callable[[], T], *, is_tenants: bool) -> T:
        async with self._tenant_threads if is_tenants else contextlib.nullcontext():
            return await asyncio.get_running_loop().run_in_executor(self._threads, query)

    def _check(self, tenant: str | None) -> None:
        """Raise BusyError if a query has no place. The message does not show the load of other clients."""
        pending = self._pending.total()
        if tenant is not None:
            if self._pending[tenant] >= self._tenant_limit:
                detail = f"{self._tenant_limit} {self._kind} of the tenant are running or queued, the maximum"
                raise BusyError(f"{detail}: retry when one of them has ended")
            pending += max(0, self._tenant_limit - self._pending[None])  # places that tenants leave
        if pending >= self._limit:
            raise BusyError(f"too many {self._kind} are running or queued: retry in some seconds")

    def _note_done(self, done: "asyncio.Future[T]", tenant: str | None) -> None:
        self._pending[tenant] -= 1
        if not self._pending[tenant]:
            del self._pending[tenant]
        if not done.cancelled():
            done.exception()  # marked as retrieved: the client may be gone
