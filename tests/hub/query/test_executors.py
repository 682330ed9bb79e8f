"""Bounded execution: queries beyond the limit are rejected, and abandoned ones count until they end."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.hub.query.executors import BoundedExecutor, BusyError
from tests.support.waiting import PATIENCE, wait_until_async


async def test_abandoned_query_counts_until_it_ends() -> None:
    proceed = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        executor = BoundedExecutor(threads, limit=2, kind="queries")
        waiting = [asyncio.create_task(executor.run(lambda: proceed.wait(20 * PATIENCE))) for _ in range(2)]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(BusyError):
            await executor.run(lambda: 1)
        proceed.set()

        async def is_free() -> bool:
            try:
                return await executor.run(lambda: 1) == 1
            except BusyError:
                return False

        await wait_until_async(is_free, what="the abandoned queries to end")


async def test_failed_query_raises_its_error_and_frees_its_place() -> None:
    with ThreadPoolExecutor(1) as threads:
        executor = BoundedExecutor(threads, limit=1, kind="queries")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await executor.run(lambda: 1 // 0)
        assert await executor.run(lambda: 2) == 2


async def test_tenant_has_a_share_and_leaves_places_for_queries_without_tenant() -> None:
    proceed = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        executor = BoundedExecutor(threads, limit=6, kind="queries", tenant_limit=2, tenant_threads=1)
        tasks: list[asyncio.Task[bool]] = []

        async def is_taken(tenant: str | None) -> bool:
            tasks.append(asyncio.create_task(executor.run(lambda: proceed.wait(20 * PATIENCE), tenant)))
            await asyncio.sleep(0)
            return not tasks[-1].done()

        assert [await is_taken("acme") for _ in range(3)] == [True, True, False]
        tasks[0].cancel()  # its client went away
        await asyncio.sleep(0)
        assert not await is_taken("acme")
        assert [await is_taken(tenant) for tenant in ("other", "other", "third")] == [True, True, False]
        assert [await is_taken(None) for _ in range(3)] == [True, True, False]
        proceed.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in outcomes].count(BusyError) == 4
        assert await executor.run(lambda: 1, "acme") == 1


async def test_queries_of_tenants_leave_a_thread() -> None:
    proceed = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        executor = BoundedExecutor(threads, limit=6, kind="queries", tenant_limit=2, tenant_threads=1)
        tenants = [
            asyncio.create_task(executor.run(lambda: proceed.wait(20 * PATIENCE), tenant))
            for tenant in ("acme", "acme")
        ]
        await asyncio.sleep(0)
        assert await executor.run(lambda: 1) == 1
        proceed.set()
        assert await asyncio.gather(*tenants) == [True, True]
