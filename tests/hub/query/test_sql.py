"""Statements wait for one another, and not without end."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.hub.query.sql import MAX_QUEUED, BusyError, SqlQueries
from gpufleet.model.api.sql import QueryResult
from tests.fakes.store import MemoryStore


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def select(self, statement: str) -> QueryResult:
        assert self.go_on.wait(20)
        return QueryResult(columns=("a",), types=("String",), rows=[(statement,)])


async def test_one_too_many_is_turned_away_and_the_rest_are_answered() -> None:
    store = SlowStore()
    with ThreadPoolExecutor(1) as thread:
        queries = SqlQueries(store=store, thread=thread)
        waiting = [asyncio.create_task(queries.select(str(number))) for number in range(MAX_QUEUED + 1)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await queries.select("one too many")
        store.go_on.set()
        answers = await asyncio.gather(*waiting)
        assert [one.rows for one in answers] == [[(str(number),)] for number in range(MAX_QUEUED + 1)]
        assert (await queries.select("later")).rows == [("later",)]
