"""Group commit: everybody who waits at the same time is served by the same sync."""

import asyncio
from collections.abc import Callable


class GroupCommit:
    """Runs a blocking `sync` in a thread, one at a time, for all who wait.

    Used from one event loop. Who begins to wait while a sync runs is served by the next.
    """

    def __init__(self, sync: Callable[[], int]) -> None:
        self._sync = sync
        self._waiters: list[asyncio.Future[int]] = []
        self._pump: asyncio.Task[None] | None = None

    async def wait(self) -> int:
        """Return what a sync that began after this call returned, or raise what it raised."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run(), name="spool-commit")
        return await waiter

    async def _run(self) -> None:
        while self._waiters:
            served, self._waiters = self._waiters, []
            try:
                result = await asyncio.to_thread(self._sync)
            except Exception as error:  # noqa: BLE001 - whatever it was, those who wait must hear it
                for waiter in served:
                    if not waiter.done():
                        waiter.set_exception(error)
            else:
                for waiter in served:
                    if not waiter.done():
                        waiter.set_result(result)
