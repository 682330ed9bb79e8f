"""Senders newer than their hub: batches of an unsupported version stay queued, and the error is reported."""

import asyncio
import contextlib
import json
from pathlib import Path

import msgspec
import pytest

from gpufleet.codecs.batch import encode
from gpufleet.delivery.batch_queue import BatchQueue, MemoryQueue
from gpufleet.delivery.export import SendStats
from gpufleet.delivery.pacing import Pacer
from gpufleet.delivery.post import HubAnswer, HubClient, HubVerdict, RejectedBatches
from gpufleet.delivery.pusher import Pusher
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.relay.forwarding import RelayForwarder, Renumberer
from gpufleet.model.wire.batch import WIRE_VERSION
from gpufleet.spool import Spool
from tests.fakes.batches import make_batch
from tests.fakes.clock import FakeClock
from tests.fakes.hub import FakeHub
from tests.fakes.older_hub import OlderHub
from tests.support.waiting import wait_until_async
from tests.web.hub.site import running_site

NOW = 10**18
NEWER = WIRE_VERSION + 1


def of_version(version: int, seq: int) -> bytes:
    """Return a batch with another version number; no build reads more of an unsupported version."""
    elements = msgspec.msgpack.decode(encode(make_batch(seq, NOW), compress=False))
    return msgspec.msgpack.encode([version, *elements[1:]])


async def test_hub_rejects_a_newer_version_by_code(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site, HubClient(site.hub.url, name="t", timeout_seconds=20) as client:
        newer = await client.post(of_version(NEWER, 1))
        assert (newer.status, newer.error, newer.verdict) == (400, "bad_version", HubVerdict.RETRY)
        assert json.loads(newer.detail)["field"] == "version"
        accepted = await client.post(of_version(WIRE_VERSION, 1))
        assert (accepted.status, json.loads(accepted.detail)) == (200, {"status": "accepted", "seq": 1})


async def test_agent_keeps_and_reports_what_an_older_hub_rejects(tmp_path: Path) -> None:
    queue = BatchQueue(lambda: Spool.open(tmp_path / "spool", max_bytes=1 << 20), MemoryQueue(1 << 20))
    await queue.open()
    for _ in range(3):
        await queue.put(lambda _, seq: of_version(NEWER, seq), 0)
    stats = SendStats()
    async with OlderHub.running(WIRE_VERSION) as hub:
        pusher = Pusher(
            queue,
            HubClient(hub.url, name="test", timeout_seconds=5),
            backfill=Pacer(10_000),
            refused=RejectedBatches(tmp_path / "refused"),
            stats=stats,
            clock=FakeClock(),
            jitter=lambda: 0.0,
        )
        task = asyncio.create_task(pusher.run())

        async def failed() -> bool:
            return stats.failures >= 2

        await wait_until_async(failed)
        assert f"version: {NEWER}" in stats.last_error
        assert (queue.records, stats.refused, stats.acknowledged) == (3, 0, 0)
        assert not (tmp_path / "refused").exists()
        hub.reads.add(NEWER)

        async def delivered() -> bool:
            return queue.records == 0

        await wait_until_async(delivered)
        assert sorted(hub.accepted) == [(NEWER, 1), (NEWER, 2), (NEWER, 3)]
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    queue.close()


@pytest.mark.parametrize("bundles", [True, False])
async def test_relay_keeps_newer_batches_and_forwards_the_rest(tmp_path: Path, bundles: bool) -> None:
    wal = Wal.open(tmp_path / "wal", max_bytes=64 << 20, max_body_bytes=1 << 20)
    await asyncio.gather(
        *(wal.append(NOW, of_version(NEWER if seq % 2 else WIRE_VERSION, seq)) for seq in range(1, 21))
    )
    async with OlderHub.running(WIRE_VERSION) as hub:
        hub.bundles = bundles
        forwarder = RelayForwarder(
            wal,
            HubClient(hub.url, name="test", timeout_seconds=5, connections=2),
            connections=2,
            refused=RejectedBatches(tmp_path / "refused"),
            renumbering=Renumberer(Ledger({})),
            now_ns=lambda: NOW,
            jitter=lambda: 0.0,
        )
        task = asyncio.create_task(forwarder.run())

        async def rest() -> bool:
            return wal.waiting_records == 10

        await wait_until_async(rest)
        assert {version for version, _ in hub.accepted} == {WIRE_VERSION}
        assert f"version: {NEWER}" in forwarder.last_error
        assert hub.rejected.count("bad_version") <= 10, "rejected batches are not posted in a tight loop"
        assert forwarder.refused == 0
        forwarder.stop()
        await task
    assert wal.waiting_records == 10
    wal.close()


@pytest.mark.parametrize("status", [200, 204, 400, 409, 418, 422])
@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "{}", '{"error": 5}', '{"status": "ok"}', "[" * 5000, "<html>accepted, bad_version</html>"],
)
async def test_answer_in_another_format_is_no_verdict(status: int, content: str) -> None:
    async with FakeHub.running() as hub:
        hub.response_body = content
        hub.answer = lambda _: (status, {})
        async with HubClient(hub.url, name="test", timeout_seconds=5) as client:
            answer = await client.post(of_version(1, 1))
            assert answer.verdict is HubVerdict.RETRY
            assert not answer.by_hub


@pytest.mark.parametrize(("status", "content"), [(400, '{"error": "bad_batch"}'), (413, "<html>nginx</html>")])
async def test_permanent_rejection(status: int, content: str) -> None:
    async with FakeHub.running() as hub:
        hub.response_body = content
        hub.answer = lambda _: (status, {})
        async with HubClient(hub.url, name="test", timeout_seconds=5) as client:
            assert (await client.post(of_version(1, 1))).verdict is HubVerdict.REJECTED


def test_answers_about_one_body() -> None:
    assert HubAnswer(400, "", error="bad_version").verdict is HubVerdict.RETRY
    assert HubAnswer(400, "", error="bad_version").is_about_body
    assert HubAnswer(403, "").is_about_body
    assert not HubAnswer(503, "").is_about_body
