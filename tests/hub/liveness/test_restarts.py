"""Whole hubs, one after another in one folder, on a clock that jumps while none runs."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from gpufleet.config.hub import HubConfig
from gpufleet.wiring.hub import running_hub
from tests.fakes.batches import body
from tests.fakes.clock import FakeClock
from tests.fakes.store import MemoryStore
from tests.web.hub.site import Site


@contextlib.asynccontextmanager
async def hub_in(folder: Path, clock: FakeClock) -> AsyncIterator[Site]:
    store = MemoryStore()
    config = HubConfig(listen="127.0.0.1:0", state=str(folder))
    async with running_hub(config, store=lambda _: store, clock=clock) as hub:
        yield Site(hub, store)


async def test_two_outages_in_a_row_are_nobody_s_silence(tmp_path: Path) -> None:
    clock = FakeClock()
    async with hub_in(tmp_path, clock) as site:
        await site.post(body(1, clock.now_ns()))
    for outage in (3600, 600, 86400):
        clock.advance(outage)
        async with hub_in(tmp_path, clock) as site:
            _, (sender,) = await site.ask("/v1/senders")
        assert sender["liveness"]["state"] == "live"
        assert sender["liveness"]["unverified"]
        assert sender["liveness"]["silent_seconds"] < 10
