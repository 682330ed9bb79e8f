"""Restarted hubs: several hubs in one folder, one after another, on a fake clock."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.config.hub import HubConfig, IngestConfig
from gpufleet.wiring.hub import running_hub
from tests.fakes.batches import body
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site


@contextlib.asynccontextmanager
async def hub_in(folder: Path, clock: FakeClock, **settings: object) -> AsyncIterator[Site]:
    store = MemoryStore()
    config = HubConfig(listen="127.0.0.1:0", state=str(folder), **settings)  # type: ignore[arg-type]
    async with running_hub(config, store=lambda _: store, clock=clock) as hub:
        yield Site(hub, store)


async def test_two_outages_in_a_row_make_no_sender_stale(tmp_path: Path) -> None:
    clock = FakeClock()
    async with hub_in(tmp_path, clock) as site:
        await site.post(body(1, clock.now_ns()))
    for outage in (3600, 600, 86400):
        clock.advance(outage)
        async with hub_in(tmp_path, clock) as site:
            _, (sender,) = await site.request("/v1/senders")
        assert sender["liveness"]["state"] == "live"
        assert sender["liveness"]["unverified"]
        assert sender["liveness"]["unseen_seconds"] < 10


async def test_hub_is_not_ingesting_until_it_accepts_a_batch(tmp_path: Path) -> None:
    clock = FakeClock()
    ingest = IngestConfig(wal_max_bytes=16_384, max_body_bytes=4096)
    async with hub_in(tmp_path, clock, ingest=ingest) as site:
        await site.post(body(1, clock.now_ns()))
        assert (await hub_status(site))["rejecting"] is False
        site.store.down = True
        statuses: list[int] = []
        while 503 not in statuses:
            statuses.append(await site.try_post(body(len(statuses) + 2, clock.now_ns())))
        before = await hub_status(site)
        assert before["rejecting"] is True
        for _ in range(10):
            clock.advance(4)
            assert (await hub_status(site))["rejecting"] is True
        after = await hub_status(site)
        assert after["not_ingesting_seconds"] - before["not_ingesting_seconds"] == pytest.approx(40)
        _, (sender,) = await site.request("/v1/senders")
        assert sender["liveness"]["state"] == "live"
        page = await site.text("/metrics")
        assert "gpufleet_hub_not_ingesting_seconds_total 4" in page
        assert 'gpufleet_hub_senders{cluster="local",state="live"} 1' in page
        site.store.down = False

        async def taken() -> bool:
            return await site.try_post(body(len(statuses) + 2, clock.now_ns())) == 200

        await wait_until_async(taken, what="space in the log")
        assert (await hub_status(site))["rejecting"] is False


async def hub_status(site: Site) -> dict[str, Any]:
    _, fleet = await site.request("/v1/fleet")
    found: dict[str, Any] = fleet["hub"]
    return found
