"""Byte budget shared by the pages of many targets: bounded, and released however a page ends."""

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


def pages(url: str, budget: ByteBudget, max_bytes: int = 1 << 24) -> UrlPageFetcher:
    return UrlPageFetcher(url, timeout_seconds=5, budget=budget, max_bytes=max_bytes)


async def test_page_holds_its_bytes_until_it_is_read() -> None:
    budget = ByteBudget(1 << 20)
    with serving(LINE) as (_, url):
        answer = await pages(url, budget).fetch()
        assert budget.held == len(LINE)
        answer.done()
        assert budget.held == 0


async def test_page_over_the_budget_is_dropped() -> None:
    budget = ByteBudget(1 << 20)
    with serving(PADDING * 1000) as (server, url):
        first = await pages(url, budget).fetch()
        held = budget.held
        with pytest.raises(ChannelError) as caught:
            await pages(url, budget).fetch()
        assert caught.value.problem is ChannelProblem.TOO_LARGE
        assert budget.held == held  # of the first page only
        first.done()
        server.page = LINE
        (await pages(url, budget).fetch()).done()
        assert budget.held == 0


@pytest.mark.parametrize("page", [LINE, LINE + PADDING * 2000])
async def test_reader_releases_the_bytes_of_a_page(page: bytes) -> None:
    budget = ByteBudget(1 << 26)
    with serving(page) as (_, url):
        done = await ExporterReader("x", pages(url, budget), FakeClock()).read(Lane.FAST)
    assert done.samples[0].values["gpu_power_watts"] == 100
    assert budget.held == 0


@pytest.mark.parametrize("page", [b"no page\x00 at all {", b"gibberish {\n" * 100_000])
async def test_reader_releases_the_bytes_of_an_invalid_page(page: bytes) -> None:
    budget = ByteBudget(1 << 26)
    with serving(page) as (_, url), pytest.raises(ReaderError):
        await ExporterReader("x", pages(url, budget), FakeClock()).read(Lane.FAST)
    assert budget.held == 0


async def test_dropped_pages_hold_no_bytes() -> None:
    budget = ByteBudget(1 << 26)
    with serving(PADDING * 100) as (_, url):
        with pytest.raises(ChannelError, match="5000"):
            await pages(url, budget, max_bytes=5000).fetch()
        assert budget.held == 0
    assert len(PADDING * 1000) > THREAD_BYTES
    with serving(LINE + PADDING * 1000) as (_, url):
        reader = ExporterReader("x", pages(url, budget), FakeClock())
        task = asyncio.create_task(reader.read(Lane.FAST))

        async def is_being_received() -> bool:
            return budget.held >= THREAD_BYTES or task.done()

        await wait_until_async(is_being_received, what="most of the page")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert budget.held == 0
        assert (await reader.read(Lane.FAST)).samples  # the next pass uses a new parser
