"""Refused cluster: a relay rejects batches of a cluster that the next hub refuses, and no others."""

import asyncio
from pathlib import Path

from gpufleet.config.hub import HubConfig, RelayConfig
from gpufleet.model.wire.batch import WireBatch
from gpufleet.wiring.relay import running_relay
from tests.fakes.batches import body
from tests.fakes.hub import FakeHub
from tests.relay.test_access import request
from tests.support.processes import get_text
from tests.support.waiting import wait_until_async

NOW = 1_767_225_600_000_000_000


async def test_cluster_refused_by_the_next_hub_is_refused(tmp_path: Path) -> None:
    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (403 if batch.cluster == "late" else 200), {}

    async with FakeHub.running(answer) as hub:
        relay_to = RelayConfig(to=hub.url)
        config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path), clusters=("local", "late"), relay=relay_to)
        async with running_relay(config) as relay:
            batches = f"{relay.url}/v1/batches"
            assert (await request(batches, content=body(1, NOW, cluster="late")))[
                0
            ] == 200  # not refused by the hub yet
            status: int = 200
            answer_body: dict[str, str] = {}
            number = 1

            async def is_refused() -> bool:
                nonlocal status, answer_body, number
                number += 1
                status, answer_body = await request(batches, content=body(number, NOW, cluster="late"))
                return status == 403

            await wait_until_async(is_refused)
            assert answer_body["error"] == "upstream_refused"
            assert hub.url not in answer_body["detail"]  # senders do not see the address of the next hub
            assert "answers 403" in answer_body["detail"]
            assert (await request(batches, content=body(1, NOW)))[0] == 200

            async def local() -> bool:
                return "local" in {batch.cluster for batch in hub.taken}

            await wait_until_async(local)
            page = await asyncio.to_thread(get_text, f"{relay.url}/metrics")
            held = int(page.split("\ngpufleet_relay_held_batches ")[1].split("\n")[0])
            assert held >= 1
            assert 'gpufleet_relay_rejected_batches_total{reason="upstream_refused"} 1\n' in page
