"""Hub with a frozen store server: not ready, but it accepts batches and stops."""

from pathlib import Path

from gpufleet.config.hub import HubConfig
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.wiring.hub import running_hub
from tests.fakes.batches import body
from tests.support.clickhouse.process import ClickHouse
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site

NOW = 1_700_000_000_000_000_000


async def test_hub_with_a_frozen_store_is_not_ready_and_stops(tmp_path: Path) -> None:
    with ClickHouse(tmp_path / "server") as server:
        dsn = server.make("fleet")
        config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path / "state"), store=dsn)
        async with running_hub(config, store=ClickHouseStore.open, store_seconds=0.1) as hub:
            site = Site(hub, None)  # type: ignore[arg-type]
            assert (await site.request("/readyz"))[0] == 200
            server.freeze()
            assert await site.try_post(body(1, NOW)) == 200  # stored in the WAL
            status, answer = await site.request("/readyz")
            assert (status, answer["error"]) == (503, "unavailable")
            assert "the store has not answered" in answer["detail"]
        server.freeze(thaw=True)
        async with running_hub(config, store=ClickHouseStore.open) as hub:
            site = Site(hub, None)  # type: ignore[arg-type]

            async def stored() -> bool:
                return bool((await site.request("/v1/nodes"))[1])

            await wait_until_async(stored, what="the batches of the WAL to be stored")
            assert (await site.request("/readyz"))[0] == 200
