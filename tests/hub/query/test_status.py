"""Readiness: an unresponsive registry or store is reported within the time limit."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.hub.query.status import Readiness
from gpufleet.model.cluster import Cluster
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.registry.sql import SqlRegistry
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore
from tests.support.waiting import wait_until_async


class BlockedStore(MemoryStore):
    """Store that answers after `proceed` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = 0
        self.proceed = threading.Event()

    def check(self) -> None:
        self.queries += 1
        assert self.proceed.wait(60)
        super().check()


class BlockedRegistry(SqlRegistry):
    """Registry that answers after `proceed` is set."""

    proceed: threading.Event

    def clusters(self) -> tuple[Cluster, ...]:
        assert self.proceed.wait(60)
        return super().clusters()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[BlockedRegistry]:
    registry = BlockedRegistry.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")
    registry.migrate()
    registry.load()
    registry.proceed = threading.Event()
    yield registry
    registry.close()


async def test_unresponsive_store_is_not_ready_and_is_queried_once(
    registry: BlockedRegistry, thread: ThreadPoolExecutor
) -> None:
    store, clock = BlockedStore(), FakeClock()
    registry.proceed.set()
    readiness = Readiness(registry=registry, store=store, thread=thread, clock=clock, answer_seconds=0.05)

    async def queried() -> bool:
        return store.queries == 1

    async def ready() -> bool:
        try:
            await readiness.check()
        except (StoreError, RegistryError):
            return False
        return True

    async def down() -> bool:
        try:
            await readiness.check()
        except (StoreError, RegistryError) as error:
            return "the store is down" in str(error)
        return False

    with pytest.raises((StoreError, RegistryError)):  # the registry may be equally slow on a busy machine
        await readiness.check()
    await wait_until_async(queried)
    clock.advance(30)
    for _ in range(3):
        with pytest.raises(StoreError, match=r"store.* 30 s"):
            await readiness.check()
    assert store.queries == 1
    store.proceed.set()
    await wait_until_async(ready)
    store.down = True
    await wait_until_async(down)


async def test_unresponsive_registry_is_named(registry: BlockedRegistry, thread: ThreadPoolExecutor) -> None:
    readiness = Readiness(registry=registry, store=MemoryStore(), thread=thread, clock=FakeClock(), answer_seconds=0.05)
    for _ in range(2):
        with pytest.raises(RegistryError, match="registry"):
            await readiness.check()
    registry.proceed.set()
