"""Hub whose registry or store was lost while the other was kept."""

import shutil
from pathlib import Path

import pytest

from gpufleet.config.hub import HubConfig
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.runtime import SystemClock
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.wiring.hub import running_hub
from tests.fakes.batches import body
from tests.fakes.store import MemoryStore
from tests.support.clickhouse.process import ClickHouse
from tests.web.hub.site import Site, running_site


@pytest.mark.parametrize(("lost", "error"), [("store", StoreError), ("registry.sqlite", RegistryError)])
async def test_hub_with_a_lost_half_refuses_until_the_loss_is_accepted(
    tmp_path: Path, lost: str, error: type[Exception]
) -> None:
    with ClickHouse(tmp_path / "server") as server:
        config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path / "state"), store=server.make("fleet"))
        async with running_hub(config, store=ClickHouseStore.open) as hub:
            site = Site(hub, None)  # type: ignore[arg-type]
            assert await site.try_post(body(1, SystemClock().now_ns())) == 200
        if lost == "store":
            config = HubConfig(listen="127.0.0.1:0", state=config.state, store=server.make("empty"))
        else:
            (tmp_path / "state" / "hub" / lost).unlink()
        for _ in range(2):  # a refused start changes nothing
            with pytest.raises(error):
                async with running_hub(config, store=ClickHouseStore.open):
                    pass
        async with running_hub(config, store=ClickHouseStore.open, accept_data_loss=True) as hub:
            site = Site(hub, None)  # type: ignore[arg-type]
            assert await site.try_post(body(2, SystemClock().now_ns())) == 200
        async with running_hub(config, store=ClickHouseStore.open):
            pass


@pytest.mark.parametrize("is_mount_point", [False, True])
async def test_lost_log_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture, is_mount_point: bool) -> None:
    store = MemoryStore()
    async with running_site(tmp_path, store) as site:
        await site.post(body(1, SystemClock().now_ns()))
    assert [one for one in caplog.records if one.name == "gpufleet.wiring.hub_parts"] == []
    shutil.rmtree(tmp_path / "hub" / "wal")
    if is_mount_point:
        (tmp_path / "hub" / "wal").mkdir()
    async with running_site(tmp_path, store):
        pass
    (record,) = [one for one in caplog.records if one.name == "gpufleet.wiring.hub_parts"]
    assert record.levelname == "ERROR"


async def test_hub_without_any_earlier_state_starts(tmp_path: Path) -> None:
    with ClickHouse(tmp_path / "server") as server:
        config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path / "state"), store=server.make("fleet"))
        async with running_hub(config, store=ClickHouseStore.open):
            pass
        shutil.rmtree(tmp_path / "state")  # nothing was stored yet: a refused start would raise
        async with running_hub(config, store=ClickHouseStore.open):
            pass
