"""Outbox, spool and pusher, on a real disk and over real HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.delivery.batch_queue import LIVE_RECORDS, BatchQueue, MemoryQueue
from gpufleet.delivery.outbox import Outbox
from gpufleet.delivery.pacing import Pacer
from gpufleet.delivery.post import MAX_FILES, HubClient, RejectedBatches
from gpufleet.delivery.pusher import Pusher
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.wire.batch import MachineReport, WireBatch
from gpufleet.spool import Spool, SpoolDiskError
from tests.fakes.clock import FakeClock
from tests.fakes.hub import FakeHub
from tests.support.processes import free_port
from tests.support.waiting import wait_until_async


def report(number: int = 1) -> MachineReport:
    sample = Sample(
        view=None, reader="host", lane=Lane.FAST, measured_at=number, values={"host_load_1m": float(number)}
    )
    return MachineReport(machine=Machine(name="m"), samples=(sample,))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Rig:
    """Batch queue with access to its memory and spools."""

    def __init__(self, folder: Path, *, segment_bytes: int = 8 << 20, memory_bytes: int = 1 << 20) -> None:
        self.memory = MemoryQueue(memory_bytes)
        self.opened: list[Spool] = []
        self.queue = BatchQueue(lambda: self._open(folder, segment_bytes), self.memory)

    def _open(self, folder: Path, segment_bytes: int) -> Spool:
        spool = Spool.open(folder, max_bytes=1 << 20, segment_bytes=segment_bytes)
        self.opened.append(spool)
        return spool

    @property
    def spool(self) -> Spool:
        return self.opened[-1]

    async def empty(self) -> bool:
        return self.queue.records == 0


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path / "spool")
    await rig.queue.open()
    yield rig
    rig.queue.close()


@pytest.fixture
def spool(rig: Rig) -> Spool:
    return rig.spool


def outbox_of(rig: Rig, clock: FakeClock) -> Outbox:
    return Outbox(rig.queue, cluster="c", sender="s", heartbeat_seconds=30, config_hash="h", clock=clock)


@contextlib.asynccontextmanager
async def pushing(
    rig: Rig, outbox: Outbox, url: str, folder: Path, *, per_second: float = 10_000
) -> AsyncIterator[Pusher]:
    pusher = Pusher(
        rig.queue,
        HubClient(url, name="test", timeout_seconds=5),
        backfill=Pacer(per_second),
        refused=RejectedBatches(folder / "refused"),
        stats=outbox.stats,
        clock=FakeClock(),
        jitter=lambda: 0.0,
    )
    task = asyncio.create_task(pusher.run())
    try:
        yield pusher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_heartbeats_have_their_own_schedule(rig: Rig, spool: Spool, clock: FakeClock) -> None:
    outbox = outbox_of(rig, clock)
    assert await outbox.post(report())
    assert not await outbox.post(None)
    clock.advance(29.9)
    assert await outbox.post(report())
    assert not await outbox.post(None)
    clock.advance(0.1)
    assert outbox.heartbeat_due_in() == 0
    assert await outbox.post(None)
    batches = [decode(one.body) for one in spool.read(max_records=9, max_bytes=1 << 20)]
    assert [batch.heartbeat is not None for batch in batches] == [True, False, True]
    assert [(batch.seq, batch.cluster, batch.sender, batch.epoch) for batch in batches] == [
        (seq, "c", "s", spool.epoch) for seq in (1, 2, 3)
    ]
    last = batches[2].heartbeat
    assert last is not None
    assert (last.interval_seconds, last.queue_records, last.config_hash) == (30, 2, "h")


async def test_batch_that_cannot_be_encoded_is_counted_as_lost(rig: Rig, spool: Spool, clock: FakeClock) -> None:
    outbox = outbox_of(rig, clock)
    await outbox.post(None)
    assert not await outbox.post(MachineReport(machine=Machine(name="\ud800")))
    assert outbox.stats.lost == 1
    clock.advance(30)
    assert await outbox.post(None)
    heartbeat = decode(spool.read(max_records=9, max_bytes=1 << 20)[-1].body).heartbeat
    assert heartbeat is not None
    assert heartbeat.dropped_total == 1
    assert spool.next_seq == 3


async def test_batches_arrive_in_order_and_leave_the_spool(
    rig: Rig, spool: Spool, clock: FakeClock, tmp_path: Path
) -> None:
    outbox = outbox_of(rig, clock)
    async with FakeHub.running() as hub, pushing(rig, outbox, hub.url + "/", tmp_path) as pusher:
        for number in range(1, 6):
            await outbox.post(report(number))
            pusher.wake()
            await wait_until_async(rig.empty)

        async def empty() -> bool:
            return spool.depth.records == 0

        await wait_until_async(empty)
        assert hub.seqs == [1, 2, 3, 4, 5]
        assert outbox.stats.acknowledged == 5
        assert outbox.stats.last_error == ""


async def test_batches_are_delivered_after_a_hub_outage(
    rig: Rig, spool: Spool, clock: FakeClock, tmp_path: Path
) -> None:
    outbox = outbox_of(rig, clock)
    port = free_port()
    for number in range(1, 4):
        await outbox.post(report(number))
    async with pushing(rig, outbox, f"http://127.0.0.1:{port}", tmp_path):

        async def failed() -> bool:
            return outbox.stats.failures > 0

        await wait_until_async(failed)
        assert "Connect" in outbox.stats.last_error
        assert spool.depth.records == 3
        async with FakeHub.running(port=port) as hub:

            async def delivered() -> bool:
                return hub.seqs == [3, 2, 1] and outbox.stats.last_error == ""

            await wait_until_async(delivered)


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408, 401, 403, 404, 307])
async def test_temporarily_refused_batch_is_retried(
    rig: Rig, spool: Spool, clock: FakeClock, tmp_path: Path, status: int
) -> None:
    refusals = iter([(status, {"Retry-After": "0"})])
    outbox = outbox_of(rig, clock)
    await outbox.post(report())
    async with (
        FakeHub.running(lambda _: next(refusals, (200, {}))) as hub,
        pushing(rig, outbox, hub.url, tmp_path),
    ):

        async def delivered() -> bool:
            return spool.depth.records == 0

        await wait_until_async(delivered)
        assert [batch.seq for batch in hub.posts] == [1, 1]
        assert (outbox.stats.failures, outbox.stats.refused) == (1, 0)


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_rejected_batch_is_set_aside_and_blocks_no_other(
    rig: Rig, spool: Spool, clock: FakeClock, tmp_path: Path, status: int
) -> None:
    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (status if batch.seq == 2 else 200), {}

    outbox = outbox_of(rig, clock)
    for number in range(1, 4):
        await outbox.post(report(number))
    async with FakeHub.running(answer) as hub, pushing(rig, outbox, hub.url, tmp_path):

        async def empty() -> bool:
            return spool.depth.records == 0 and outbox.stats.acknowledged == 2

        await wait_until_async(empty)
        assert hub.seqs == [3, 1]
        assert [batch.seq for batch in hub.posts] == [3, 2, 1]
    (file,) = (tmp_path / "refused").iterdir()
    assert decode(file.read_bytes()).seq == 2
    assert (outbox.stats.refused, outbox.stats.acknowledged) == (1, 2)


async def test_backlog_leaves_an_epoch_that_another_machine_uses(rig: Rig, clock: FakeClock, tmp_path: Path) -> None:
    outbox = outbox_of(rig, clock)
    for number in range(1, 60):
        await outbox.post(report(number))
    conflicting_epoch = rig.spool.epoch

    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (409 if batch.epoch == conflicting_epoch else 200), {}

    async with FakeHub.running(answer) as hub, pushing(rig, outbox, hub.url, tmp_path) as pusher:
        await wait_until_async(rig.empty)
        await outbox.post(report(60))
        pusher.wake()
        await wait_until_async(rig.empty)
    assert {batch.epoch for batch in hub.taken} == {rig.spool.epoch} != {conflicting_epoch}
    assert sorted((batch.seq, batch.samples[0].measured_at[0]) for batch in hub.taken) == [(n, n) for n in range(1, 61)]
    assert (outbox.stats.renewals, outbox.stats.refused, outbox.stats.lost) == (1, 0, 0)


async def test_batches_in_memory_leave_a_conflicting_epoch_too(tmp_path: Path, clock: FakeClock) -> None:
    def refuse() -> Spool:
        raise SpoolDiskError("read-only")

    memory = MemoryQueue()
    queue = BatchQueue(refuse, memory)
    outbox = Outbox(queue, cluster="c", sender="s", heartbeat_seconds=30, config_hash="h", clock=clock)
    for number in (1, 2, 3):
        await outbox.post(report(number))
    before = memory.epoch
    await queue.renew(before)
    assert memory.epoch != before
    newest, oldest = memory.newest(), memory.oldest()
    assert newest is not None
    assert oldest is not None
    assert (newest.seq, newest.at, oldest.at, queue.oldest_at) == (3, 3, 1, None)
    assert decode(oldest.body).epoch == memory.epoch
    memory.acknowledge(1)
    memory.acknowledge(2)
    assert memory.bytes == len(newest.body)


async def test_undelivered_batches_are_sent_by_the_next_process(tmp_path: Path, clock: FakeClock) -> None:
    first, second = Rig(tmp_path / "spool"), Rig(tmp_path / "spool")
    await first.queue.open()
    await outbox_of(first, clock).post(report(1))
    first.queue.close()
    await second.queue.open()
    outbox = outbox_of(second, clock)
    await outbox.post(report(2))
    async with FakeHub.running() as hub, pushing(second, outbox, hub.url, tmp_path):
        await wait_until_async(second.empty)
        assert sorted(hub.seqs) == [1, 2]
        assert {batch.epoch for batch in hub.taken} == {first.spool.epoch}
    second.queue.close()


async def test_number_of_refused_batches_on_disk_is_bounded(tmp_path: Path) -> None:
    refused = RejectedBatches(tmp_path / "refused")
    for seq in range(1, MAX_FILES + 4):
        await refused.keep("e" * 32, seq, b"x")
    files = sorted(file.name for file in (tmp_path / "refused").iterdir())
    assert len(files) == MAX_FILES
    assert files[0] == f"{'e' * 32}-{4:019d}.batch"


async def test_refused_batch_that_cannot_be_stored_is_reported(tmp_path: Path) -> None:
    (tmp_path / "refused").write_text("a file in the way")
    assert "nothing (" in await RejectedBatches(tmp_path / "refused").keep("e" * 32, 1, b"x")


class TestAfterAnOutage:
    async def test_newest_batches_go_first_and_the_rest_in_order(
        self, rig: Rig, clock: FakeClock, tmp_path: Path
    ) -> None:
        outbox = outbox_of(rig, clock)
        count = LIVE_RECORDS + 20
        for number in range(1, count + 1):
            await outbox.post(report(number))
        async with FakeHub.running() as hub, pushing(rig, outbox, hub.url, tmp_path):
            await wait_until_async(rig.empty)
        assert hub.seqs == [*range(count, 20, -1), *range(1, 21)]

    async def test_backlog_is_rate_limited_and_new_batches_are_not(
        self, rig: Rig, clock: FakeClock, tmp_path: Path
    ) -> None:
        outbox = outbox_of(rig, clock)
        for number in range(1, LIVE_RECORDS + 1001):
            await outbox.post(report(number))
        started = asyncio.get_running_loop().time()
        async with FakeHub.running() as hub, pushing(rig, outbox, hub.url, tmp_path, per_second=20) as pusher:

            async def some_backlog() -> bool:
                return sum(seq <= 1000 for seq in hub.seqs) >= 5

            await wait_until_async(some_backlog)
            await outbox.post(report(9999))
            pusher.wake()

            async def newest() -> bool:
                return LIVE_RECORDS + 1001 in hub.seqs

            await wait_until_async(newest)
            old = sum(seq <= 1000 for seq in hub.seqs)
            assert old <= 1 + 20 * (asyncio.get_running_loop().time() - started)
            assert [seq for seq in hub.seqs if seq <= 1000] == list(range(1, old + 1))

    async def test_final_flush_ignores_the_rate_limit(self, rig: Rig, clock: FakeClock, tmp_path: Path) -> None:
        outbox = outbox_of(rig, clock)
        for number in range(1, LIVE_RECORDS + 51):
            await outbox.post(report(number))
        async with FakeHub.running() as hub:
            pusher = Pusher(
                rig.queue,
                HubClient(hub.url, name="test", timeout_seconds=5),
                backfill=Pacer(0.1),
                refused=RejectedBatches(tmp_path / "refused"),
                stats=outbox.stats,
                clock=clock,
            )
            await pusher.flush()
            assert len(hub.seqs) == LIVE_RECORDS + 50


async def test_heartbeat_has_the_oldest_unsent_measurement(rig: Rig, spool: Spool, clock: FakeClock) -> None:
    outbox = outbox_of(rig, clock)

    async def oldest_unsent() -> int | None:
        clock.advance(30)
        await outbox.post(None)
        (newest,) = spool.read_newest(max_records=1, max_bytes=1 << 20)
        heartbeat = decode(newest.body).heartbeat
        assert heartbeat is not None
        return heartbeat.oldest_unsent

    assert await oldest_unsent() is None
    for number in (70, 80, 90):
        await outbox.post(report(number))
    assert await oldest_unsent() == clock.now_ns() - 30 * 10**9  # creation time of the heartbeat itself
    spool.acknowledge([1])
    assert await oldest_unsent() == 70
    spool.acknowledge([2, 3])
    assert await oldest_unsent() == 90


async def test_heartbeat_reports_the_time_of_an_unreadable_batch(rig: Rig, spool: Spool, clock: FakeClock) -> None:
    await spool.put(b"not a batch", 70)
    await outbox_of(rig, clock).post(None)
    heartbeat = decode(spool.read(max_records=9, max_bytes=1 << 20)[-1].body).heartbeat
    assert heartbeat is not None
    assert (heartbeat.oldest_unsent, heartbeat.queue_records) == (70, 1)
