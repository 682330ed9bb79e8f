"""Who asks gets what was prepared; what nobody asks for is not made."""

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


class Pages:
    """Pages that say which document they are of."""

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
    """A state, and what shows it."""

    def __init__(self, *, needs_every_snapshot: bool = False) -> None:
        self.world = World({"nvml": (Lane.FAST,)})
        self.pages = Pages(needs_every_snapshot=needs_every_snapshot)
        self.made = 0
        self.measure(0)
        self.seconds = 0.0
        self.showing = PageCache(
            self.steps, self.pages, lambda: AgentStats(started_at=0, lanes={}), monotonic=lambda: self.seconds
        )
        self.made = 0

    def measure(self, watts: int) -> None:
        self.world.passed("nvml", Lane.FAST, self.world.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": watts}))

    def steps(self) -> Generator[None, None, Snapshot]:
        self.made += 1
        yield
        return assemble(self.world.state, now=1000.0, now_ns=0, capabilities={})

    async def round(self, watts: int) -> None:
        self.measure(watts)
        self.showing.change()
        await self.showing.renew()


async def test_without_anybody_who_asks_nothing_is_made() -> None:
    agent = Agent()
    for watts in range(5):
        await agent.round(watts)
    assert (agent.made, agent.pages.updates, agent.pages.written) == (0, 0, [])
    assert await agent.showing.page(TEXT) == b"text 4"
    assert (agent.made, agent.pages.updates, agent.pages.written) == (1, 1, ["text"])


async def test_what_was_asked_for_is_prepared_and_only_that() -> None:
    agent = Agent()
    assert await agent.showing.page(TEXT) == b"text 0"
    await agent.round(1)
    assert agent.pages.written == ["text", "text"]
    for _ in range(3):
        assert await agent.showing.page(TEXT) == b"text 1"
    assert agent.pages.written == ["text", "text"]
    assert await agent.showing.page(OPENMETRICS) == b"openmetrics 1"
    assert (agent.made, agent.pages.updates) == (1, 2)


async def test_who_comes_again_does_not_wait_however_many_passes_ended() -> None:
    agent = Agent()
    assert await agent.showing.page(PACKED)
    for watts in (1, 2, 3):
        await agent.round(watts)
    made = agent.made
    asking = asyncio.create_task(agent.showing.page(PACKED))
    await asyncio.sleep(0)
    assert asking.done()
    assert zlib.decompress(asking.result(), 16 + zlib.MAX_WBITS) == b"text 3"
    assert agent.made == made


async def test_who_does_not_come_again_is_forgotten() -> None:
    agent = Agent()
    assert await agent.showing.page(PACKED)
    agent.seconds = REQUEST_WINDOW_SECONDS - 1
    assert await agent.showing.page(TEXT)
    agent.seconds = REQUEST_WINDOW_SECONDS + 1
    await agent.round(1)
    assert (agent.made, agent.pages.updates) == (1, 2)
    assert await agent.showing.page(TEXT) == b"text 1"
    agent.seconds = 3 * REQUEST_WINDOW_SECONDS
    await agent.round(2)
    assert agent.made == 1
    assert await agent.showing.page(TEXT) == b"text 2"


async def test_a_page_is_packed_once_for_all_who_ask_for_it_packed() -> None:
    agent = Agent()
    packed = [await agent.showing.page(PACKED) for _ in range(3)]
    assert zlib.decompress(packed[0], 16 + zlib.MAX_WBITS) == b"text 0"
    assert packed[0] is packed[1] is packed[2]
    await agent.round(1)
    assert zlib.decompress(await agent.showing.page(PACKED), 16 + zlib.MAX_WBITS) == b"text 1"
    assert agent.pages.written == ["text", "text"]
    assert await agent.showing.page(TEXT) == b"text 1"
    assert agent.pages.written == ["text", "text"]


async def test_who_asks_while_pages_are_made_gets_what_there_was() -> None:
    agent = Agent()
    assert await agent.showing.page(PACKED) != b""
    assert await agent.showing.page(TEXT) == b"text 0"
    agent.measure(1)
    agent.showing.change()
    renewing = asyncio.create_task(agent.showing.renew())
    await asyncio.sleep(0)  # it runs up to the packing, which a thread does
    assert not renewing.done()
    assert await agent.showing.page(TEXT) == b"text 0"
    await renewing
    assert await agent.showing.page(TEXT) == b"text 1"


async def test_several_who_ask_first_wait_for_one_preparation() -> None:
    agent = Agent()
    await agent.round(3)
    pages = await asyncio.gather(*[agent.showing.page(PACKED) for _ in range(10)])
    assert len(set(map(id, pages))) == 1
    assert (agent.made, agent.pages.updates, agent.pages.written) == (1, 1, ["text"])


async def test_the_document_is_shown_the_same_way() -> None:
    agent = Agent()
    first = await agent.showing.snapshot()
    assert await agent.showing.snapshot() is first
    await agent.round(1)
    second = await agent.showing.snapshot()
    assert second.devices[0].readings["gpu_power_watts"].value == 1
    assert (agent.made, agent.pages.updates) == (1, 0)
    assert await agent.showing.page(TEXT) == b"text 1"
    assert agent.made == 1


async def test_what_goes_to_a_hub_is_never_behind() -> None:
    agent = Agent()
    agent.measure(7)
    agent.showing.change()
    assert agent.showing.newest().devices[0].readings["gpu_power_watts"].value == 7
    await agent.showing.snapshot()
    await agent.showing.renew()
    assert agent.showing.newest() is await agent.showing.snapshot()


async def test_stateful_pages_see_every_document() -> None:
    agent = Agent(needs_every_snapshot=True)
    for watts in range(3):
        await agent.round(watts)
    assert (agent.pages.taken, agent.pages.updates) == (3, 0)
    assert await agent.showing.page(TEXT) == b"text 2"
    assert (agent.pages.taken, agent.pages.updates) == (3, 1)
