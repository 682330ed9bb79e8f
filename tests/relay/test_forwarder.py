"""Relay forwarder with a real log and real HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.delivery.post import HubClient, RejectedBatches
from gpufleet.hub.receive.ledger import Ledger
from gpufleet.hub.receive.log import Wal
from gpufleet.hub.relay.forwarding import HOLD_SECONDS, RelayForwarder, Renumberer
from gpufleet.model.stored.ledger import SequenceKey
from gpufleet.model.wire.batch import WireBatch
from tests.fakes.batches import EPOCH, body
from tests.fakes.hub import FakeHub
from tests.support.processes import free_port
from tests.support.waiting import wait_until_async

NOW = 10**18
WAITED = 7  # seconds


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Wal]:
    wal = Wal.open(tmp_path / "wal", max_bytes=64 << 20, max_body_bytes=1 << 20)
    yield wal
    wal.close()


async def fill(wal: Wal, count: int, first: int = 1) -> None:
    await asyncio.gather(*(wal.append(NOW, body(seq, NOW, gpus=0)) for seq in range(first, first + count)))


@contextlib.asynccontextmanager
async def forwarding(
    wal: Wal, url: str, folder: Path, *, connections: int = 4, ledger: Ledger | None = None, hold: float = HOLD_SECONDS
) -> AsyncIterator[RelayForwarder]:
    forwarder = RelayForwarder(
        wal,
        HubClient(url, name="test", timeout_seconds=5, connections=connections),
        connections=connections,
        refused=RejectedBatches(folder / "refused"),
        renumbering=Renumberer(ledger or Ledger({})),
        now_ns=lambda: NOW + WAITED * 10**9,
        jitter=lambda: 0.0,
        hold_seconds=hold,
    )
    task = asyncio.create_task(forwarder.run())
    try:
        yield forwarder
    finally:
        forwarder.stop()
        await task


async def until_empty(wal: Wal) -> None:
    async def empty() -> bool:
        return wal.waiting_records == 0

    await wait_until_async(empty)


async def test_every_batch_arrives_unchanged(wal: Wal, tmp_path: Path) -> None:
    await fill(wal, 2000)
    async with FakeHub.running() as hub, forwarding(wal, hub.url, tmp_path) as forwarder:
        await until_empty(wal)
        assert sorted(hub.seqs) == list(range(1, 2001))
        assert forwarder.forwarded == 2000
        await fill(wal, 1, first=2001)
        forwarder.wake()
        await until_empty(wal)
        assert hub.taken[-1].seq == 2001
        assert {(batch.sender, batch.epoch) for batch in hub.taken} == {("node-a", hub.taken[0].epoch)}


async def test_next_hub_gets_the_queueing_time_of_each_batch(wal: Wal, tmp_path: Path) -> None:
    await wal.append(NOW, body(1, NOW))
    await wal.append(NOW + 5 * 10**9, body(2, NOW), 90 * 10**9)  # queued at another relay before
    await wal.append(NOW + 60 * 10**9, body(3, NOW))  # the clock moved back since
    wal.close()
    reopened = Wal.open(tmp_path / "wal", max_bytes=64 << 20, max_body_bytes=1 << 20)
    list(reopened.replay())
    assert reopened.oldest_received_at == NOW
    async with FakeHub.running() as hub, forwarding(reopened, hub.url, tmp_path, connections=1):
        await until_empty(reopened)
        assert hub.waited == ["0,92000,7000"]  # newest first
    reopened.close()


async def test_hub_without_bundles_gets_single_batches(wal: Wal, tmp_path: Path) -> None:
    await fill(wal, 2)
    async with FakeHub.running() as hub:
        hub.takes_bundles = False
        async with forwarding(wal, hub.url, tmp_path, connections=1):
            await until_empty(wal)
        assert hub.waited == ["7000,7000", "7000", "7000"]


async def test_newest_batches_are_among_the_first_sent(wal: Wal, tmp_path: Path) -> None:
    await fill(wal, 5000)
    async with FakeHub.running() as hub, forwarding(wal, hub.url, tmp_path, connections=2):
        await until_empty(wal)
    assert {1, 5000} <= set(hub.seqs[:600])


async def test_batches_survive_an_unreachable_hub(wal: Wal, tmp_path: Path) -> None:
    await fill(wal, 20)
    port = free_port()
    async with forwarding(wal, f"http://127.0.0.1:{port}", tmp_path) as forwarder:

        async def failed() -> bool:
            return forwarder.consecutive_failures > 0

        await wait_until_async(failed)
        assert "Connect" in forwarder.last_error
        assert wal.waiting_records == 20
        async with FakeHub.running(port=port) as hub:
            await until_empty(wal)
            assert set(hub.seqs) == set(range(1, 21))

            async def recovered() -> bool:
                return (forwarder.consecutive_failures, forwarder.last_error) == (0, "")

            await wait_until_async(recovered)


@pytest.mark.parametrize("bundles", [True, False], ids=["new hub", "hub without bundles"])
async def test_permanently_rejected_batch_is_set_aside(wal: Wal, tmp_path: Path, bundles: bool) -> None:
    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (400 if batch.seq == 7 else 200), {}

    await fill(wal, 50)
    async with FakeHub.running(answer) as hub:
        hub.takes_bundles = bundles
        async with forwarding(wal, hub.url, tmp_path) as forwarder:
            await until_empty(wal)
            assert (forwarder.forwarded, forwarder.refused) == (49, 1)
    assert len(list((tmp_path / "refused").iterdir())) == 1


async def test_batch_of_a_cloned_sender_gets_its_own_epoch(wal: Wal, tmp_path: Path) -> None:
    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (409 if batch.epoch == EPOCH and 20 < batch.seq <= 30 else 200), {}

    await fill(wal, 50)
    ledger = Ledger({})
    async with FakeHub.running(answer) as hub, forwarding(wal, hub.url, tmp_path, ledger=ledger) as forwarder:
        await until_empty(wal)
        assert (forwarder.forwarded, forwarder.refused, forwarder.renumbered) == (50, 0, 10)
    renumbered = [batch for batch in hub.taken if batch.epoch != EPOCH]
    assert len({batch.epoch for batch in renumbered}) == 1
    assert sorted(batch.seq for batch in renumbered) == list(range(1, 11))
    assert len(hub.taken) == 50
    assert ledger.epoch_conflict(SequenceKey("local", "node-a", EPOCH), decode(body(51, NOW)))


async def test_batch_in_conflict_under_any_epoch_is_set_aside(wal: Wal, tmp_path: Path) -> None:
    await fill(wal, 3)
    async with FakeHub.running(lambda _: (409, {})) as hub, forwarding(wal, hub.url, tmp_path) as forwarder:
        await until_empty(wal)
        assert (forwarder.forwarded, forwarder.refused, forwarder.renumbered) == (0, 3, 3)
    assert len(list((tmp_path / "refused").iterdir())) == 3


async def test_held_batches_delay_no_others(wal: Wal, tmp_path: Path) -> None:
    serves = False

    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (403 if batch.seq % 2 and not serves else 200), {}

    await fill(wal, 400)
    async with FakeHub.running(answer) as hub, forwarding(wal, hub.url, tmp_path, hold=0.5) as forwarder:

        async def even_are_forwarded() -> bool:
            return wal.waiting_records == 200

        await wait_until_async(even_are_forwarded)
        await fill(wal, 10, first=401)
        forwarder.wake()

        async def newer() -> bool:
            return {402, 404, 406, 408, 410} <= set(hub.seqs) and wal.waiting_records == 205

        await wait_until_async(newer)
        serves = True  # lets the forwarder stop
        await until_empty(wal)


async def test_sender_is_refused_while_its_batches_are_held(wal: Wal, tmp_path: Path) -> None:
    serves = False

    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (200 if serves or batch.sender == "node-a" else 403), {}

    await fill(wal, 3)
    for seq in (1, 2):
        await wal.append(NOW, body(seq, NOW, sender="node-b", cluster="late"))
    other, own = (decode(body(3, NOW, sender=name, cluster="late")) for name in ("node-a", "node-b"))
    async with FakeHub.running(answer) as hub, forwarding(wal, hub.url, tmp_path, hold=0.01) as forwarder:

        async def held() -> bool:
            return len(forwarder.held) == 2

        await wait_until_async(held)
        assert "403" in forwarder.held.refusal(own)
        assert forwarder.held.refusal(other) == ""
        assert forwarder.held.refusal(decode(body(9, NOW))) == ""
        serves = True
        await until_empty(wal)
        assert len(forwarder.held) == 0
        assert forwarder.held.refusal(own) == ""
    late = [batch for batch in hub.taken if batch.cluster == "late"]
    assert sorted((batch.sender, batch.seq) for batch in late) == [("node-b", 1), ("node-b", 2)]


async def test_held_batch_moves_out_of_its_log_segment(wal: Wal, tmp_path: Path) -> None:
    serves = False

    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (200 if serves or batch.sender == "node-a" else 403), {}

    first = await wal.append(NOW, body(1, NOW, sender="node-b"))
    async with FakeHub.running(answer) as hub, forwarding(wal, hub.url, tmp_path, hold=0.01) as forwarder:

        async def carried() -> bool:
            return first not in [record.seq for record in wal.read(0, max_records=9, max_bytes=1 << 20)]

        await wait_until_async(carried)
        record = wal.read(0, max_records=9, max_bytes=1 << 20)[-1]
        assert (record.received_at, record.body) == (NOW, body(1, NOW, sender="node-b"))
        assert len(forwarder.held) == 1
        serves = True
        await until_empty(wal)
        assert [(batch.sender, batch.seq) for batch in hub.taken] == [("node-b", 1)]
        assert len(forwarder.held) == 0


async def test_stop_forwards_the_backlog(wal: Wal, tmp_path: Path) -> None:
    async with FakeHub.running() as hub:
        await fill(wal, 3000)
        async with forwarding(wal, hub.url, tmp_path):
            pass
        assert len(hub.seqs) == 3000
