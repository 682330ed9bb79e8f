"""The memory that pages of many targets take together: bounded, and given back however a page ends."""

import asyncio

import pytest

from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.readers.exporter.fetch import UrlPageFetcher
from gpufleet.readers.exporter.reader import THREAD_BYTES, ExporterReader
from tests.fakes.clock import FakeClock
from tests.support.exporters import serving
from tests.support.waiting import wait_until_async

LINE = b'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1"} 100\n'
PADDING = b"# " + b"x" * 1000 + b"\n"


def pages(url: str, room: ByteBudget, max_bytes: int = 1 << 24) -> UrlPageFetcher:
    return UrlPageFetcher(url, timeout_seconds=5, budget=room, max_bytes=max_bytes)


async def test_a_page_holds_its_room_until_it_was_read() -> None:
    room = ByteBudget(1 << 20)
    with serving(LINE) as (_, url):
        answer = await pages(url, room).fetch()
        assert room.held == len(LINE)
        answer.done()
        assert room.held == 0


async def test_page_without_room_is_dropped_and_others_are_not() -> None:
    room = ByteBudget(1 << 20)
    with serving(PADDING * 1000) as (server, url):
        first = await pages(url, room).fetch()
        held = room.held
        with pytest.raises(ChannelError) as caught:
            await pages(url, room).fetch()
        assert caught.value.problem is ChannelProblem.TOO_LARGE
        assert room.held == held  # the first one's alone
        first.done()
        server.page = LINE
        (await pages(url, room).fetch()).done()
        assert room.held == 0


@pytest.mark.parametrize("page", [LINE, LINE + PADDING * 2000])
async def test_a_reader_gives_the_room_back(page: bytes) -> None:
    room = ByteBudget(1 << 26)
    with serving(page) as (_, url):
        done = await ExporterReader("x", pages(url, room), FakeClock()).read(Lane.FAST)
    assert done.samples[0].values["gpu_power_watts"] == 100
    assert room.held == 0


@pytest.mark.parametrize("page", [b"no page\x00 at all {", b"gibberish {\n" * 100_000])
async def test_a_reader_gives_the_room_back_of_what_is_no_page(page: bytes) -> None:
    room = ByteBudget(1 << 26)
    with serving(page) as (_, url), pytest.raises(ReaderError):
        await ExporterReader("x", pages(url, room), FakeClock()).read(Lane.FAST)
    assert room.held == 0


async def test_dropped_pages_hold_no_room() -> None:
    room = ByteBudget(1 << 26)
    with serving(PADDING * 100) as (_, url):
        with pytest.raises(ChannelError, match="5000"):
            await pages(url, room, max_bytes=5000).fetch()
        assert room.held == 0
    assert len(PADDING * 1000) > THREAD_BYTES
    with serving(LINE + PADDING * 1000) as (_, url):
        reader = ExporterReader("x", pages(url, room), FakeClock())
        task = asyncio.create_task(reader.read(Lane.FAST))

        async def is_on_its_way() -> bool:
            return room.held >= THREAD_BYTES or task.done()

        await wait_until_async(is_on_its_way, what="most of the page")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert room.held == 0
        assert (await reader.read(Lane.FAST)).samples  # the next pass has a parser of its own
