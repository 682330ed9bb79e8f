"""SQL queries: statements queue up to a limit."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.hub.query.executors import BusyError
from gpufleet.hub.query.sql import MAX_QUEUED, SqlQueries
from gpufleet.model.api.sql import QueryResult
from tests.fakes.store import MemoryStore


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.proceed = threading.Event()

    def select(self, statement: str) -> QueryResult:
        assert self.proceed.wait(20)
        return QueryResult(columns=("a",), types=("String",), rows=[(statement,)])


async def test_statement_beyond_the_queue_limit_is_rejected() -> None:
    store = SlowStore()
    with ThreadPoolExecutor(1) as thread:
        queries = SqlQueries(store=store, thread=thread)
        queued = [asyncio.create_task(queries.select(str(number))) for number in range(MAX_QUEUED + 1)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await queries.select("one too many")
        store.proceed.set()
        answers = await asyncio.gather(*queued)
        assert [answer.rows for answer in answers] == [[(str(number),)] for number in range(MAX_QUEUED + 1)]
        assert (await queries.select("later")).rows == [("later",)]
