"""A cluster that the next hub does not serve is turned away at the relay, with a reason, and nobody else is."""

import asyncio
from pathlib import Path

from gpufleet.config.hub import HubConfig, RelayConfig
from gpufleet.model.wire.batch import WireBatch
from gpufleet.wiring.relay import running_relay
from tests.fakes.batches import body
from tests.fakes.hub import FakeHub
from tests.relay.test_access import ask
from tests.support.processes import get_text
from tests.support.waiting import wait_until_async

NOW = 1_767_225_600_000_000_000


async def test_cluster_unknown_to_the_next_hub_is_turned_away(tmp_path: Path) -> None:
    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (403 if batch.cluster == "late" else 200), {}

    async with FakeHub.running(answer) as hub:
        relay_to = RelayConfig(to=hub.url)
        config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path), clusters=("local", "late"), relay=relay_to)
        async with running_relay(config) as relay:
            batches = f"{relay.url}/v1/batches"
            assert (await ask(batches, content=body(1, NOW, cluster="late")))[0] == 200  # nobody knows yet
            status: int = 200
            words: dict[str, str] = {}
            number = 1

            async def turned_away() -> bool:
                nonlocal status, words, number
                number += 1
                status, words = await ask(batches, content=body(number, NOW, cluster="late"))
                return status == 403

            await wait_until_async(turned_away)
            assert words["error"] == "upstream_refused"
            assert hub.url not in words["detail"]  # a sender is told why, not where
            assert "answers 403" in words["detail"]
            assert (await ask(batches, content=body(1, NOW)))[0] == 200

            async def local() -> bool:
                return "local" in {batch.cluster for batch in hub.taken}

            await wait_until_async(local)
            page = await asyncio.to_thread(get_text, f"{relay.url}/metrics")
            held = int(page.split("\ngpufleet_relay_held_batches ")[1].split("\n")[0])
            assert held >= 1
            assert 'gpufleet_relay_rejected_batches_total{reason="upstream_refused"} 1\n' in page
