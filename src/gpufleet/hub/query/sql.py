"""Statements of people, one after the other, on a thread of their own: other questions do not wait for them."""

import asyncio
import time
from concurrent.futures import Executor

from gpufleet.model.api.sql import SqlAnswer, SqlViewRecord
from gpufleet.model.errors import GpufleetError
from gpufleet.ports.store import Store

MOST_WAITING = 4
"""Statements that wait for the one that runs; another one is turned away."""


class BusyError(GpufleetError):
    """So much is asked already that this is not: ask again later."""


class SqlQueries:
    """Answers statements."""

    def __init__(self, *, store: Store, thread: Executor) -> None:
        self._store = store
        self._thread = thread
        self._asked = 0

    async def select(self, statement: str) -> SqlAnswer:
        """Return what a statement comes to.

        Raises:
            SqlError: if it is refused or wrong, or came to more than it may.
            BusyError: if too many wait already.
        """
        if self._asked > MOST_WAITING:
            raise BusyError(f"{self._asked} statements are asked already: ask again in some seconds")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._select, statement)
        finally:
            self._asked -= 1

    def views(self) -> tuple[SqlViewRecord, ...]:
        """Return what a statement may read."""
        return self._store.sql_views()

    def _select(self, statement: str) -> SqlAnswer:
        began = time.perf_counter()
        found = self._store.select(statement)
        return SqlAnswer(columns=found.columns, types=found.types, rows=found.rows, seconds=time.perf_counter() - began)
