"""Whether registry and store answer is told soon, also where one of them says nothing at all."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpufleet.hub.query.status import Readiness
from gpufleet.model.cluster import Cluster
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.model.status import ReaderStatus
from gpufleet.registry.sql import SqlRegistry
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore
from tests.support.waiting import wait_until_async


class SilentStore(MemoryStore):
    """Answers once it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.go = threading.Event()

    def readers(self, cluster: str, machine: str) -> tuple[ReaderStatus, ...]:
        self.asked += 1
        assert self.go.wait(60)
        if self.down:
            raise StoreError("the store is down")
        return ()


class SilentRegistry(SqlRegistry):
    """Never answers before the end."""

    go: threading.Event

    def clusters(self) -> tuple[Cluster, ...]:
        assert self.go.wait(60)
        return super().clusters()


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SilentRegistry]:
    registry = SilentRegistry.open(f"sqlite:///{tmp_path / 'registry.sqlite'}")
    registry.migrate()
    registry.go = threading.Event()
    yield registry
    registry.close()


async def test_a_store_that_says_nothing_is_not_ready_and_is_asked_once(
    registry: SilentRegistry, thread: ThreadPoolExecutor
) -> None:
    store, clock = SilentStore(), FakeClock()
    registry.go.set()
    readiness = Readiness(registry=registry, store=store, thread=thread, clock=clock, answer_seconds=0.05)

    async def asked() -> bool:
        return store.asked == 1

    async def ready() -> bool:
        try:
            await readiness.check()
        except StoreError:
            return False
        return True

    with pytest.raises((StoreError, RegistryError)):  # the registry's part may take as long on a busy machine
        await readiness.check()
    await wait_until_async(asked)
    clock.advance(30)
    for _ in range(3):
        with pytest.raises(StoreError, match=r"store.* 30 s"):
            await readiness.check()
    assert store.asked == 1
    store.go.set()
    await wait_until_async(ready)
    store.down = True
    with pytest.raises(StoreError, match="the store is down"):
        await readiness.check()


async def test_a_registry_that_says_nothing_is_told_of_as_itself(
    registry: SilentRegistry, thread: ThreadPoolExecutor
) -> None:
    readiness = Readiness(registry=registry, store=MemoryStore(), thread=thread, clock=FakeClock(), answer_seconds=0.05)
    for _ in range(2):
        with pytest.raises(RegistryError, match="registry"):
            await readiness.check()
    registry.go.set()
