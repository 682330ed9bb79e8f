"""Responses of a relay: alone, behind other relays, and in a relay loop."""

import asyncio
from pathlib import Path
from typing import Any

from gpufleet.codecs.batch import CONTENT_TYPE
from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, pack
from gpufleet.config.hub import HubConfig, IngestConfig, RelayConfig
from gpufleet.wiring.hub import RunningHub
from gpufleet.wiring.relay import running_relay
from tests.fakes.batches import body
from tests.fakes.hub import FakeHub
from tests.relay.test_access import request
from tests.support.processes import free_port, get_text
from tests.support.waiting import wait_until_async

BASE = 1_767_225_600_000_000_000
LOOP = 'gpufleet_relay_rejected_batches_total{reason="relay_loop"}'


def config(folder: Path, to: str, *, port: int = 0, ingest: IngestConfig | None = None) -> HubConfig:
    listen, relay = f"127.0.0.1:{port}", RelayConfig(to=to)
    return HubConfig(listen=listen, state=str(folder), relay=relay, ingest=ingest or IngestConfig())


async def post(relay: RunningHub, content: bytes, content_type: str = CONTENT_TYPE) -> tuple[int, Any]:
    return await request(f"{relay.url}/v1/batches", content=content, content_type=content_type)


async def until_shown(relay: RunningHub, start: str) -> None:
    """Wait until a line of the relay's metrics has this start."""

    async def is_shown() -> bool:
        return f"\n{start}" in (await page(relay))

    await wait_until_async(is_shown, seconds=60, what=start)


async def page(relay: RunningHub) -> str:
    return await asyncio.to_thread(get_text, f"{relay.url}/metrics")


async def test_full_relay_answers_503_until_the_next_hub_is_back(tmp_path: Path) -> None:
    port = free_port()
    ingest = IngestConfig(wal_max_bytes=1 << 17, max_body_bytes=1 << 16)
    async with running_relay(config(tmp_path, f"http://127.0.0.1:{port}", ingest=ingest)) as relay:
        accepted = 0
        while (answer := await post(relay, body(accepted + 1, BASE + accepted, gpus=0)))[0] == 200:
            accepted += 1
        assert (answer[0], answer[1]["error"]) == (503, "log_full")
        assert accepted > 100
        status, answered = await request(f"{relay.url}/readyz")
        assert (status, answered["error"]) == (503, "degraded")
        async with FakeHub.running(port=port) as hub:
            await until_shown(relay, "gpufleet_relay_wal_records 0\n")
            assert (await post(relay, body(accepted + 1, BASE + accepted, gpus=0)))[0] == 200
            await until_shown(relay, "gpufleet_relay_wal_records 0\n")
            assert sorted(hub.seqs) == list(range(1, accepted + 2))


async def test_relay_answers_batches_as_a_hub_does(tmp_path: Path) -> None:
    async with FakeHub.running() as hub, running_relay(config(tmp_path, hub.url)) as relay:
        assert (await post(relay, b"nonsense"))[0] == 400
        assert (await post(relay, body(1, BASE, cluster="elsewhere")))[0] == 403
        assert await post(relay, body(1, BASE)) == (200, {"status": "accepted", "seq": 1})
        assert await post(relay, body(1, BASE)) == (200, {"status": "duplicate", "seq": 1})
        bundle = pack([body(2, BASE), b"nonsense", body(1, BASE)])
        status, answer = await post(relay, bundle, BUNDLE_CONTENT_TYPE)
        assert status == 200
        assert [one["status"] for one in answer["answers"]] == [200, 400, 200]
        assert [one.get("result") for one in answer["answers"]] == ["accepted", None, "duplicate"]
        status, answer = await request(f"{relay.url}/v1/allocations")
        assert (status, answer["error"]) == (404, "not_found")
        assert "/v1/batches" in answer["detail"]
        for path in ("/healthz", "/readyz", "/v1/senders"):
            assert (await request(relay.url + path))[0] == 200, path


async def test_relays_in_a_row_forward_batches(tmp_path: Path) -> None:
    async with (
        FakeHub.running() as hub,
        running_relay(config(tmp_path / "near", hub.url)) as near,
        running_relay(config(tmp_path / "far", near.url)) as far,
    ):
        for seq in range(1, 30):
            assert (await post(far, body(seq, BASE + seq, gpus=0)))[0] == 200

        async def arrived() -> bool:
            return sorted(hub.seqs) == list(range(1, 30))

        await wait_until_async(arrived)


async def test_relays_in_a_loop_keep_their_batches(tmp_path: Path) -> None:
    port = free_port()
    async with (
        running_relay(config(tmp_path / "other", f"http://127.0.0.1:{port}")) as other,
        running_relay(config(tmp_path / "relay", other.url, port=port)) as relay,
    ):
        assert (await post(relay, body(1, BASE)))[0] == 200
        await until_shown(relay, LOOP)  # the batch is back at the first relay
        await until_shown(other, "gpufleet_relay_wal_records 1\n")
        assert "\ngpufleet_relay_forwarded_batches_total 0\n" in await page(other)


async def test_relay_that_posts_to_itself_keeps_its_batches(tmp_path: Path) -> None:
    port = free_port()
    async with running_relay(config(tmp_path, f"http://127.0.0.1:{port}", port=port)) as relay:
        assert (await post(relay, body(1, BASE)))[0] == 200
        await until_shown(relay, LOOP)
        shown = await page(relay)
        assert "\ngpufleet_relay_wal_records 1\n" in shown
        assert "\ngpufleet_relay_forwarded_batches_total 0\n" in shown
