"""A hub with its registry on a PostgreSQL server that restarts."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.config.hub import FlushConfig, HubConfig
from gpufleet.model.stored.ledger import SequenceKey
from gpufleet.registry.sql import SqlRegistry
from gpufleet.wiring.hub import RunningHub, running_hub
from tests.fakes.batches import EPOCH, body
from tests.fakes.store import MemoryStore
from tests.security.guarded import exchange
from tests.support.postgres import Postgres
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.system
KEY = SequenceKey("local", "node-a", EPOCH)


async def flush(hub: RunningHub, store: MemoryStore, number: int) -> None:
    headers = {"Content-Type": CONTENT_TYPE}
    content = body(number, time.time_ns())
    answer = await asyncio.to_thread(exchange, hub.port, "POST", "/v1/batches", headers, content)
    assert answer.status == 200

    async def flushed() -> bool:
        return number in store.seqs

    await wait_until_async(flushed, what=f"batch {number} in the store")


async def test_registry_on_a_server_survives_restarts_of_hub_and_server(postgres: Postgres, tmp_path: Path) -> None:
    dsn = postgres.make("hub")
    config = HubConfig(
        listen="127.0.0.1:0", state=str(tmp_path), registry=dsn, flush=FlushConfig(interval_seconds=0.05)
    )
    store, numbers = MemoryStore(), itertools.count(1)
    for _ in range(2):
        async with running_hub(config, store=lambda _: store) as hub:
            await flush(hub, store, next(numbers))
            await asyncio.to_thread(postgres.restart)
            await flush(hub, store, next(numbers))
    assert store.seqs == [1, 2, 3, 4]
    registry = SqlRegistry.open(dsn)
    registry.migrate()
    registry.load()
    assert registry.sequences()[KEY].ranges == ((1, 4),)
    assert len(registry.machines()) == 1
    registry.close()
