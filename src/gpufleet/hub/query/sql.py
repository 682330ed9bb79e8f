"""SQL statements of users, executed one at a time on their own thread, so that other queries do not wait."""

import time
from concurrent.futures import Executor

from gpufleet.hub.query.executors import BoundedExecutor
from gpufleet.model.api.sql import SqlAnswer, SqlViewRecord
from gpufleet.ports.store import SqlStore

MAX_QUEUED = 4
"""Maximum number of queued statements; further ones are rejected."""


class SqlQueries:
    """Executes SQL statements."""

    def __init__(self, *, store: SqlStore, thread: Executor) -> None:
        self._store = store
        self._executor = BoundedExecutor(thread, limit=1 + MAX_QUEUED, kind="SQL statements")

    async def select(self, statement: str) -> SqlAnswer:
        """Return the result of a statement.

        Raises:
            SqlError: if it is rejected or invalid, or exceeds a limit.
            BusyError: if too many statements are queued.
        """
        return await self._executor.run(lambda: self._select(statement))

    def views(self) -> tuple[SqlViewRecord, ...]:
        """Return the views that a statement may read."""
        return self._store.sql_views()

    def _select(self, statement: str) -> SqlAnswer:
        began = time.perf_counter()
        found = self._store.select(statement)
        return SqlAnswer(columns=found.columns, types=found.types, rows=found.rows, seconds=time.perf_counter() - began)
