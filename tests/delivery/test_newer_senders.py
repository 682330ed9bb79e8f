"""Senders that are newer than the hub: what it cannot read yet waits, and is told."""

import asyncio
import contextlib
import json
from pathlib import Path

import msgspec
import pytest

from gpufleet.agent.publish.push import Pusher
from gpufleet.agent.publish.queue import BatchQueue, MemoryQueue
from gpufleet.codecs.batch import decode, encode, in_version, to_rows
from gpufleet.delivery.export import SendStats
from gpufleet.delivery.pacing import Pacer
from gpufleet.delivery.post import HubAnswer, HubClient, HubVerdict, RejectedBatches
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.relay.forwarding import RelayForwarder, Renumberer
from gpufleet.model.wire.batch import WIRE_VERSION
from gpufleet.spool import Spool
from tests.fakes.batches import make_batch
from tests.fakes.clock import FakeClock
from tests.fakes.hub import FakeHub
from tests.fakes.old_hub import RULES, OldHub
from tests.support.waiting import wait_until_async
from tests.web.hub.site import running_site

NOW = 10**18


def of_version(version: int, seq: int) -> bytes:
    """Make a batch of a version that may not exist yet: its first element says so, the rest is its own affair."""
    known = in_version(encode(make_batch(seq, NOW), compress=False), min(version, WIRE_VERSION))
    elements = msgspec.msgpack.decode(known)
    return msgspec.msgpack.encode([version, *elements[1:]])


async def test_the_stored_rules_are_what_this_build_does(tmp_path: Path) -> None:
    rules = json.loads((RULES / f"hub-{WIRE_VERSION}.json").read_text())
    async with running_site(tmp_path) as site, HubClient(site.hub.url, name="t", timeout_seconds=20) as client:
        for error, given, body in (("bad_version", "3", of_version(WIRE_VERSION + 1, 1)),):
            status, words = rules["answers"][error]
            answer = await client.post(body)
            assert (answer.status, answer.error) == (status, error)
            assert json.loads(answer.detail) == {name: text.replace("GIVEN", given) for name, text in words.items()}
        for version in rules["versions"]:
            answer = await client.post(of_version(version, version))
            assert answer.status == 200
            assert json.loads(answer.detail) == {**rules["answers"]["accepted"][1], "seq": version}


async def test_agent_keeps_and_reports_what_an_older_hub_rejects(tmp_path: Path) -> None:
    queue = BatchQueue(lambda: Spool.open(tmp_path / "spool", max_bytes=1 << 20), MemoryQueue(1 << 20))
    await queue.open()
    for _ in range(3):
        await queue.put(lambda _, seq: of_version(3, seq))
    stats = SendStats()
    async with OldHub.running("hub-1") as hub:
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

        async def told() -> bool:
            return stats.failures >= 2

        await wait_until_async(told)
        assert "version: 3, and this build reads 1" in stats.last_error
        assert (queue.records, stats.refused, stats.acknowledged) == (3, 0, 0)
        assert not (tmp_path / "refused").exists()
        hub.rules["versions"].append(3)

        async def delivered() -> bool:
            return queue.records == 0

        await wait_until_async(delivered)
        assert sorted(hub.taken) == [(3, 1), (3, 2), (3, 3)]
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    queue.close()


@pytest.mark.parametrize("bundles", [True, False])
async def test_a_relay_keeps_it_too_and_passes_the_rest_on(tmp_path: Path, bundles: bool) -> None:
    wal = Wal.open(tmp_path / "wal", max_bytes=64 << 20, max_body_bytes=1 << 20)
    await asyncio.gather(*(wal.append(NOW, of_version(1 + seq % 2 * 2, seq)) for seq in range(1, 21)))
    async with OldHub.running("hub-1") as hub:
        hub.rules["bundles"] = bundles
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
        assert {version for version, _ in hub.taken} == {1}
        assert "reads 1" in forwarder.last_error
        assert hub.refused.count("bad_version") <= 10, "what was refused is not posted over and over"
        assert forwarder.refused == 0
        forwarder.stop()
        await task
    assert wal.waiting_records == 10
    wal.close()


@pytest.mark.parametrize("bundles", [True, False])
async def test_older_hub_gets_the_oldest_version(bundles: bool) -> None:
    async with OldHub.running("hub-1") as hub, HubClient(hub.url, name="test", timeout_seconds=5) as client:
        hub.rules["bundles"] = bundles
        mixed = [of_version(2, 1), of_version(1, 2), of_version(3, 3), of_version(2, 4)]
        verdicts = [answer.verdict for answer in await client.post_bundle(mixed)]
        assert verdicts == [HubVerdict.ACCEPTED, HubVerdict.ACCEPTED, HubVerdict.RETRY, HubVerdict.ACCEPTED]
        assert sorted(hub.taken) == [(1, 1), (1, 2), (1, 4)]
        hub.refused.clear()
        assert (await client.post(of_version(2, 5))).verdict is HubVerdict.ACCEPTED
        later = await client.post_bundle([of_version(2, 6), of_version(1, 7)])
        assert [answer.verdict for answer in later] == [HubVerdict.ACCEPTED] * 2
        assert "bad_version" not in hub.refused, "it is not asked again"
        assert hub.taken[3:] == [(1, 5), (1, 6), (1, 7)]


async def test_spooled_newer_batches_reach_an_older_hub_whole() -> None:
    made = [make_batch(seq, NOW + seq) for seq in range(1, 4)]
    async with OldHub.running("hub-1") as hub, HubClient(hub.url, name="test", timeout_seconds=5) as client:
        answers = await client.post_bundle([encode(batch) for batch in made])
        assert {answer.verdict for answer in answers} == {HubVerdict.ACCEPTED}
        assert [to_rows(decode(body)) for body in hub.bodies] == made
        assert {version for version, _ in hub.taken} == {1}


@pytest.mark.parametrize("status", [200, 204, 400, 409, 418, 422])
@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", "{}", '{"error": 5}', '{"status": "ok"}', "[" * 5000, "<html>accepted, bad_version</html>"],
)
async def test_who_does_not_answer_as_a_hub_takes_and_refuses_nothing(status: int, content: str) -> None:
    async with FakeHub.running() as hub:
        hub.words = content
        hub.answer = lambda _: (status, {})
        async with HubClient(hub.url, name="test", timeout_seconds=5) as client:
            answer = await client.post(of_version(1, 1))
            assert answer.verdict is HubVerdict.RETRY
            assert not answer.by_hub


@pytest.mark.parametrize(("status", "content"), [(400, '{"error": "bad_batch"}'), (413, "<html>nginx</html>")])
async def test_what_is_refused_for_good(status: int, content: str) -> None:
    async with FakeHub.running() as hub:
        hub.words = content
        hub.answer = lambda _: (status, {})
        async with HubClient(hub.url, name="test", timeout_seconds=5) as client:
            assert (await client.post(of_version(1, 1))).verdict is HubVerdict.REJECTED


def test_what_the_answers_about_one_body_are() -> None:
    assert HubAnswer(400, "", error="bad_version").verdict is HubVerdict.RETRY
    assert HubAnswer(400, "", error="bad_version").is_about_body
    assert HubAnswer(403, "").is_about_body
    assert not HubAnswer(503, "").is_about_body
