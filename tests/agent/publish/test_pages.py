"""Page cache: requested pages are prepared in advance, others are not rendered."""

import asyncio
import zlib
from collections.abc import Generator

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.publish.pages import REQUEST_WINDOW_SECONDS, PageCache, PageForm
from gpufleet.delivery.export import AgentStats
from gpufleet.model.catalogue import Lane
from gpufleet.model.snapshot import Snapshot
from tests.support.passes import World, gpu

TEXT, OPENMETRICS, PACKED = PageForm(), PageForm(openmetrics=True), PageForm(gzip=True)


class FakeRenderer:
    """Renderer whose pages name their document."""

    def __init__(self, *, needs_every_snapshot: bool = False) -> None:
        self.needs_every_snapshot = needs_every_snapshot
        self.taken = 0
        self.updates = 0
        self.written: list[str] = []
        self._of = ""

    def take(self, snapshot: Snapshot) -> None:
        self.taken += 1

    def update(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        self.updates += 1
        yield
        self._of = str(snapshot.devices[0].readings["gpu_power_watts"].value)

    def page(self, *, openmetrics: bool) -> bytes:
        self.written.append("openmetrics" if openmetrics else "text")
        return f"{self.written[-1]} {self._of}".encode()


class Agent:
    """Agent state and its page cache."""

    def __init__(self, *, needs_every_snapshot: bool = False) -> None:
        self.world = World({"nvml": (Lane.FAST,)})
        self.renderer = FakeRenderer(needs_every_snapshot=needs_every_snapshot)
        self.assembled = 0
        self.measure(0)
        self.seconds = 0.0
        self.cache = PageCache(
            self.steps, self.renderer, lambda: AgentStats(started_at=0, lanes={}), monotonic=lambda: self.seconds
        )
        self.assembled = 0

    def measure(self, watts: int) -> None:
        self.world.passed("nvml", Lane.FAST, self.world.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": watts}))

    def steps(self) -> Generator[None, None, Snapshot]:
        self.assembled += 1
        yield
        return assemble(self.world.state, now=1000.0, now_ns=0, capabilities={})

    async def round(self, watts: int) -> None:
        self.measure(watts)
        self.cache.change()
        await self.cache.renew()


async def test_nothing_is_rendered_without_requests() -> None:
    agent = Agent()
    for watts in range(5):
        await agent.round(watts)
    assert (agent.assembled, agent.renderer.updates, agent.renderer.written) == (0, 0, [])
    assert await agent.cache.page(TEXT) == b"text 4"
    assert (agent.assembled, agent.renderer.updates, agent.renderer.written) == (1, 1, ["text"])


async def test_only_requested_pages_are_prepared() -> None:
    agent = Agent()
    assert await agent.cache.page(TEXT) == b"text 0"
    await agent.round(1)
    assert agent.renderer.written == ["text", "text"]
    for _ in range(3):
        assert await agent.cache.page(TEXT) == b"text 1"
    assert agent.renderer.written == ["text", "text"]
    assert await agent.cache.page(OPENMETRICS) == b"openmetrics 1"
    assert (agent.assembled, agent.renderer.updates) == (1, 2)


async def test_repeated_request_is_answered_from_the_cache() -> None:
    agent = Agent()
    assert await agent.cache.page(PACKED)
    for watts in (1, 2, 3):
        await agent.round(watts)
    assembled = agent.assembled
    request = asyncio.create_task(agent.cache.page(PACKED))
    await asyncio.sleep(0)
    assert request.done()
    assert zlib.decompress(request.result(), 16 + zlib.MAX_WBITS) == b"text 3"
    assert agent.assembled == assembled


async def test_page_without_recent_requests_expires() -> None:
    agent = Agent()
    assert await agent.cache.page(PACKED)
    agent.seconds = REQUEST_WINDOW_SECONDS - 1
    assert await agent.cache.page(TEXT)
    agent.seconds = REQUEST_WINDOW_SECONDS + 1
    await agent.round(1)
    assert (agent.assembled, agent.renderer.updates) == (1, 2)
    assert await agent.cache.page(TEXT) == b"text 1"
    agent.seconds = 3 * REQUEST_WINDOW_SECONDS
    await agent.round(2)
    assert agent.assembled == 1
    assert await agent.cache.page(TEXT) == b"text 2"


async def test_page_is_compressed_once_for_all_clients() -> None:
    agent = Agent()
    packed = [await agent.cache.page(PACKED) for _ in range(3)]
    assert zlib.decompress(packed[0], 16 + zlib.MAX_WBITS) == b"text 0"
    assert packed[0] is packed[1] is packed[2]
    await agent.round(1)
    assert zlib.decompress(await agent.cache.page(PACKED), 16 + zlib.MAX_WBITS) == b"text 1"
    assert agent.renderer.written == ["text", "text"]
    assert await agent.cache.page(TEXT) == b"text 1"
    assert agent.renderer.written == ["text", "text"]


async def test_request_during_rendering_gets_the_previous_page() -> None:
    agent = Agent()
    assert await agent.cache.page(PACKED) != b""
    assert await agent.cache.page(TEXT) == b"text 0"
    agent.measure(1)
    agent.cache.change()
    renewing = asyncio.create_task(agent.cache.renew())
    await asyncio.sleep(0)  # it runs until the compression in a thread
    assert not renewing.done()
    assert await agent.cache.page(TEXT) == b"text 0"
    await renewing
    assert await agent.cache.page(TEXT) == b"text 1"


async def test_concurrent_first_requests_share_one_rendering() -> None:
    agent = Agent()
    await agent.round(3)
    pages = await asyncio.gather(*[agent.cache.page(PACKED) for _ in range(10)])
    assert len(set(map(id, pages))) == 1
    assert (agent.assembled, agent.renderer.updates, agent.renderer.written) == (1, 1, ["text"])


async def test_snapshot_is_cached_like_a_page() -> None:
    agent = Agent()
    first = await agent.cache.snapshot()
    assert await agent.cache.snapshot() is first
    await agent.round(1)
    second = await agent.cache.snapshot()
    assert second.devices[0].readings["gpu_power_watts"].value == 1
    assert (agent.assembled, agent.renderer.updates) == (1, 0)
    assert await agent.cache.page(TEXT) == b"text 1"
    assert agent.assembled == 1


async def test_snapshot_for_the_hub_is_never_stale() -> None:
    agent = Agent()
    agent.measure(7)
    agent.cache.change()
    assert agent.cache.newest().devices[0].readings["gpu_power_watts"].value == 7
    await agent.cache.snapshot()
    await agent.cache.renew()
    assert agent.cache.newest() is await agent.cache.snapshot()


async def test_stateful_pages_see_every_document() -> None:
    agent = Agent(needs_every_snapshot=True)
    for watts in range(3):
        await agent.round(watts)
    assert (agent.renderer.taken, agent.renderer.updates) == (3, 0)
    assert await agent.cache.page(TEXT) == b"text 2"
    assert (agent.renderer.taken, agent.renderer.updates) == (3, 1)
