"""SQL statements of users, executed one at a time on their own thread, so that other queries do not wait."""

import asyncio
import time
from concurrent.futures import Executor

from gpufleet.model.api.sql import SqlAnswer, SqlViewRecord
from gpufleet.model.errors import GpufleetError
from gpufleet.ports.store import SqlStore

MAX_QUEUED = 4
"""Maximum number of queued statements; further ones are rejected."""


class BusyError(GpufleetError):
    """The hub is too busy for this query: retry later."""


class SqlQueries:
    """Executes SQL statements."""

    def __init__(self, *, store: SqlStore, thread: Executor) -> None:
        self._store = store
        self._thread = thread
        self._pending = 0

    async def select(self, statement: str) -> SqlAnswer:
        """Return the result of a statement.

        Raises:
            SqlError: if it is rejected or invalid, or exceeds a limit.
            BusyError: if too many statements are queued.
        """
        if self._pending > MAX_QUEUED:
            raise BusyError(f"{self._pending} SQL statements are running or queued: retry in some seconds")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._select, statement)
        finally:
            self._pending -= 1

    def views(self) -> tuple[SqlViewRecord, ...]:
        """Return the views that a statement may read."""
        return self._store.sql_views()

    def _select(self, statement: str) -> SqlAnswer:
        began = time.perf_counter()
        found = self._store.select(statement)
        return SqlAnswer(columns=found.columns, types=found.types, rows=found.rows, seconds=time.perf_counter() - began)
