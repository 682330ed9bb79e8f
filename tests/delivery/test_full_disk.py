"""Full, failing and recovered disk: batches continue in memory, sequence numbers stay exact, losses are counted."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpufleet.codecs.batch import decode
from gpufleet.delivery.batch_queue import BatchQueue, MemoryQueue
from gpufleet.delivery.outbox import Outbox
from gpufleet.delivery.pacing import Pacer
from gpufleet.delivery.post import HubClient, RejectedBatches
from gpufleet.delivery.pusher import Pusher
from gpufleet.exporters.agent_page import add_queue_stats
from gpufleet.exporters.exposition import MetricsPage
from gpufleet.hub.receive.sequences import Intervals
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import SpoolError
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.wire.batch import MachineReport
from gpufleet.spool import Spool, SpoolDiskError, SpoolRecord
from tests.fakes.clock import FakeClock
from tests.fakes.hub import FakeHub
from tests.support.waiting import wait_until_async


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Make every write to a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class QueueFixture:
    def __init__(self, folder: Path, memory_bytes: int = 1 << 20) -> None:
        self.memory = MemoryQueue(memory_bytes)
        self.is_readable = True
        self.queue = BatchQueue(lambda: self._open(folder), self.memory)
        self.outbox = Outbox(
            self.queue, cluster="c", sender="s", heartbeat_seconds=1e6, config_hash="h", clock=FakeClock()
        )
        self.number = 0

    def _open(self, folder: Path) -> Spool:
        if not self.is_readable:
            raise SpoolDiskError("read-only")
        return Spool.open(folder, max_bytes=1 << 20)

    async def post(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            sample = Sample(
                view=None,
                reader="host",
                lane=Lane.FAST,
                measured_at=self.number,
                values={"host_load_1m": float(self.number)},
            )
            assert await self.outbox.post(MachineReport(machine=Machine(name="m"), samples=(sample,)))

    @contextlib.asynccontextmanager
    async def pushing(self, url: str, folder: Path) -> AsyncIterator[None]:
        pusher = Pusher(
            self.queue,
            HubClient(url, name="test", timeout_seconds=5),
            backfill=Pacer(10_000),
            refused=RejectedBatches(folder / "refused"),
            stats=self.outbox.stats,
            clock=FakeClock(),
            jitter=lambda: 0.0,
        )
        task = asyncio.create_task(pusher.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def empty(self) -> bool:
        return self.queue.records == 0

    async def in_memory_empty(self) -> bool:
        return self.queue.memory_records == 0


def missing(hub: FakeHub) -> int:
    """Count missing batches like a hub: gaps below the highest number of each epoch."""
    received: dict[str, Intervals] = {}
    for batch in hub.taken:
        received.setdefault(batch.epoch, Intervals()).add(batch.seq)
    return sum(one.missing for one in received.values())


def measured(hub: FakeHub) -> list[int]:
    return sorted(batch.samples[0].measured_at[0] for batch in hub.taken)


async def test_batches_go_to_memory_while_the_disk_refuses(tmp_path: Path) -> None:
    fixture = QueueFixture(tmp_path / "spool")
    await fixture.queue.open()
    await fixture.post(3)
    with full_disk():
        await fixture.post(5)
    await fixture.post(2)
    assert (fixture.queue.records, fixture.queue.memory_records) == (10, 5)
    async with FakeHub.running() as hub, fixture.pushing(hub.url, tmp_path):
        await wait_until_async(fixture.empty)
        assert measured(hub) == list(range(1, 11))
        assert missing(hub) == 0
        assert len({batch.epoch for batch in hub.taken}) == 2
    assert (fixture.outbox.stats.lost, fixture.queue.dropped) == (0, 0)
    fixture.queue.close()


async def test_batches_beyond_memory_are_counted_as_lost_and_missing(tmp_path: Path) -> None:
    fixture = QueueFixture(tmp_path / "spool", memory_bytes=2000)
    await fixture.queue.open()
    with full_disk():
        await fixture.post(50)
    lost = fixture.outbox.stats.lost
    assert 0 < lost < 50
    async with FakeHub.running() as hub, fixture.pushing(hub.url, tmp_path):
        await wait_until_async(fixture.empty)
        assert missing(hub) == lost
        assert measured(hub) == list(range(lost + 1, 51))
    fixture.queue.close()


async def test_no_sequence_number_is_reused_after_a_kill_on_a_full_disk(tmp_path: Path) -> None:
    fixture = QueueFixture(tmp_path / "spool")
    await fixture.queue.open()
    await fixture.post(2)
    async with FakeHub.running() as hub:
        with full_disk():
            await fixture.post(2)
            async with fixture.pushing(hub.url, tmp_path):
                await wait_until_async(fixture.empty)
        fixture.queue.close()  # like after a kill, only the files of the spool remain
        second = QueueFixture(tmp_path / "spool")
        await second.queue.open()
        second.number = fixture.number
        await second.post(2)
        async with second.pushing(hub.url, tmp_path):
            await wait_until_async(second.empty)
        # A full disk cannot store acknowledgements: the batch is posted again under the same number.
        delivered = {(batch.epoch, batch.seq, batch.samples[0].measured_at[0]) for batch in hub.taken}
        assert len({(epoch, seq) for epoch, seq, _ in delivered}) == len(delivered) == 6
        second.queue.close()


async def test_agent_starts_on_a_full_disk_and_uses_it_later(tmp_path: Path) -> None:
    fixture = QueueFixture(tmp_path / "spool")
    with full_disk():
        await fixture.queue.open()
        await fixture.post(2)
    assert fixture.queue.memory_records == 2
    await fixture.post(1)
    assert (fixture.queue.memory_records, fixture.queue.records) == (2, 3)
    fixture.queue.close()


async def test_backlog_of_a_spool_that_cannot_be_opened_is_unknown(tmp_path: Path) -> None:
    first, second = QueueFixture(tmp_path / "spool"), QueueFixture(tmp_path / "spool")
    await first.queue.open()
    await first.post(4)
    first.queue.close()
    second.is_readable = False
    await second.queue.open()
    await second.post(2)
    page = MetricsPage()
    add_queue_stats(page, 'node="n"', second.outbox.queue_stats())
    lines = page.encode().decode().splitlines()
    assert [line for line in lines if line[0] != "#"] == ['gpufleet_spool_memory_records{node="n"} 2']
    async with FakeHub.running() as hub, second.pushing(hub.url, tmp_path):
        await wait_until_async(second.in_memory_empty)
        (beat,) = [batch.heartbeat for batch in hub.taken if batch.heartbeat is not None]
    assert (beat.queue_records, beat.queue_bytes, beat.oldest_unsent, beat.dropped_total) == (None, None, None, None)
    second.is_readable = True
    await second.post(1)
    assert second.queue.records == 5
    second.queue.close()


async def test_spool_locked_by_another_process_is_not_a_disk_error(tmp_path: Path) -> None:
    fixture = QueueFixture(tmp_path / "spool")
    await fixture.queue.open()
    with pytest.raises(SpoolError, match="spool"):
        await QueueFixture(tmp_path / "spool").queue.open()
    fixture.queue.close()


async def test_newest_batches_in_memory_are_sent_before_the_disk(tmp_path: Path) -> None:
    fixture = QueueFixture(tmp_path / "spool")
    await fixture.queue.open()
    await fixture.post(2)
    with full_disk():
        await fixture.post(2)
    async with FakeHub.running() as hub, fixture.pushing(hub.url, tmp_path):
        await wait_until_async(fixture.empty)
        assert [batch.samples[0].measured_at[0] for batch in hub.taken] == [4, 3, 2, 1]
    fixture.queue.close()


def test_acknowledged_batches_leave_memory() -> None:
    memory = MemoryQueue()
    for _ in range(4):
        memory.put(lambda _, seq: b"%d" % seq, 0)
    memory.acknowledge(2)
    memory.acknowledge(99)
    assert (memory.records, memory.bytes, memory.oldest(), memory.newest()) == (
        3,
        3,
        SpoolRecord(1, 0, b"1"),
        SpoolRecord(4, 0, b"4"),
    )


async def test_bodies_in_the_spool_decode_to_their_numbers(tmp_path: Path) -> None:
    fixture = QueueFixture(tmp_path / "spool")
    await fixture.queue.open()
    await fixture.post(2)
    oldest = await fixture.queue.oldest()
    assert oldest is not None
    batch = decode(oldest.body)
    assert (batch.epoch, batch.seq) == (oldest.epoch, oldest.seq)
    fixture.queue.close()
