"""A hub whose store is on a server that says nothing any more: it says so when it is asked, and it can be stopped."""

from pathlib import Path

from gpufleet.config.hub import HubConfig
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.wiring.hub import running_hub
from tests.fakes.batches import body
from tests.support.clickhouse.process import ClickHouse
from tests.support.waiting import wait_until_async
from tests.web.hub.site import Site

NOW = 1_700_000_000_000_000_000


async def test_a_hub_beside_a_frozen_server_is_not_ready_and_stops(tmp_path: Path) -> None:
    with ClickHouse(tmp_path / "server") as server:
        dsn = server.make("fleet")
        config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path / "state"), store=dsn)
        async with running_hub(config, store=ClickHouseStore.open, store_seconds=0.1) as hub:
            site = Site(hub, None)  # type: ignore[arg-type]
            assert (await site.ask("/readyz"))[0] == 200
            server.freeze()
            assert await site.try_post(body(1, NOW)) == 200  # the log has it
            status, answer = await site.ask("/readyz")
            assert (status, answer["error"]) == (503, "unavailable")
            assert "the store has not answered" in answer["detail"]
        server.freeze(thaw=True)
        async with running_hub(config, store=ClickHouseStore.open) as hub:
            site = Site(hub, None)  # type: ignore[arg-type]

            async def there() -> bool:
                return bool((await site.ask("/v1/nodes"))[1])

            await wait_until_async(there, what="what the log held to be in the store")
            assert (await site.ask("/readyz"))[0] == 200
