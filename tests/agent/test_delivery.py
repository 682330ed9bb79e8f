"""Outbox, spool and pusher over a real disk and real HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpufleet.agent.outbox import Outbox
from gpufleet.agent.push import Pusher
from gpufleet.agent.refused import MAX_FILES, Refused
from gpufleet.codecs.batch import decode
from gpufleet.model.batch import MachineReport
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.wire import WireBatch
from gpufleet.spool import Spool
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


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool.open(tmp_path / "spool", max_bytes=1 << 20)
    yield spool
    spool.close()


def outbox_of(spool: Spool, clock: FakeClock) -> Outbox:
    return Outbox(spool, cluster="c", sender="s", heartbeat_seconds=30, config_hash="h", clock=clock)


@contextlib.asynccontextmanager
async def pushing(spool: Spool, outbox: Outbox, url: str, folder: Path) -> AsyncIterator[Pusher]:
    pusher = Pusher(
        spool,
        url=url,
        timeout_seconds=5,
        refused=Refused(folder / "refused"),
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


async def test_heartbeats_keep_their_own_schedule_with_and_without_data(spool: Spool, clock: FakeClock) -> None:
    outbox = outbox_of(spool, clock)
    assert await outbox.post(report())
    assert not await outbox.post(None)
    clock.advance(29.9)
    assert await outbox.post(report())
    assert not await outbox.post(None)
    clock.advance(0.1)
    assert outbox.heartbeat_due_in() == 0
    assert await outbox.post(None)
    batches = [decode(body) for _, body in spool.read(max_records=9, max_bytes=1 << 20)]
    assert [batch.heartbeat is not None for batch in batches] == [True, False, True]
    assert [(batch.seq, batch.cluster, batch.sender, batch.epoch) for batch in batches] == [
        (seq, "c", "s", spool.epoch) for seq in (1, 2, 3)
    ]
    last = batches[2].heartbeat
    assert last is not None
    assert (last.interval_seconds, last.queue_records, last.config_hash) == (30, 2, "h")


async def test_a_batch_that_cannot_be_kept_is_counted_and_told_in_the_next_heartbeat(
    tmp_path: Path, clock: FakeClock
) -> None:
    spool = Spool.open(tmp_path / "small", max_bytes=1 << 20, segment_bytes=4096)
    try:
        outbox = outbox_of(spool, clock)
        await outbox.post(None)
        noise = [
            Sample(view=None, reader="host", lane=Lane.FAST, measured_at=at, values={"host_load_1m": hash(str(at)) / 7})
            for at in range(1, 2000)
        ]
        assert not await outbox.post(MachineReport(machine=Machine(name="m"), samples=tuple(noise)))
        assert outbox.stats.lost == 1
        clock.advance(30)
        assert await outbox.post(None)
        heartbeat = decode(spool.read(max_records=9, max_bytes=1 << 20)[-1][1]).heartbeat
        assert heartbeat is not None
        assert heartbeat.dropped_total == 1
        assert spool.next_seq == 3
    finally:
        spool.close()


async def test_everything_arrives_in_order_and_leaves_the_spool(spool: Spool, clock: FakeClock, tmp_path: Path) -> None:
    outbox = outbox_of(spool, clock)
    async with FakeHub.running() as hub, pushing(spool, outbox, hub.url + "/", tmp_path) as pusher:
        for number in range(1, 6):
            await outbox.post(report(number))
            pusher.wake()

        async def empty() -> bool:
            return spool.depth.records == 0

        await wait_until_async(empty)
        assert hub.seqs == [1, 2, 3, 4, 5]
        assert outbox.stats.acknowledged == 5
        assert outbox.stats.last_error == ""


async def test_a_hub_that_is_down_costs_nothing_but_time(spool: Spool, clock: FakeClock, tmp_path: Path) -> None:
    outbox = outbox_of(spool, clock)
    port = free_port()
    for number in range(1, 4):
        await outbox.post(report(number))
    async with pushing(spool, outbox, f"http://127.0.0.1:{port}", tmp_path):

        async def failed() -> bool:
            return outbox.stats.failures > 0

        await wait_until_async(failed)
        assert "Connect" in outbox.stats.last_error
        assert spool.depth.records == 3
        async with FakeHub.running(port=port) as hub:

            async def delivered() -> bool:
                return hub.seqs == [1, 2, 3] and outbox.stats.last_error == ""

            await wait_until_async(delivered)


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408, 401, 403, 404, 307])
async def test_what_the_hub_does_not_take_now_is_posted_again(
    spool: Spool, clock: FakeClock, tmp_path: Path, status: int
) -> None:
    refusals = iter([(status, {"Retry-After": "0"})])
    outbox = outbox_of(spool, clock)
    await outbox.post(report())
    async with (
        FakeHub.running(lambda _: next(refusals, (200, {}))) as hub,
        pushing(spool, outbox, hub.url, tmp_path),
    ):

        async def delivered() -> bool:
            return spool.depth.records == 0

        await wait_until_async(delivered)
        assert [batch.seq for batch in hub.posts] == [1, 1]
        assert (outbox.stats.failures, outbox.stats.refused) == (1, 0)


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
async def test_a_batch_that_is_refused_for_good_is_set_aside_and_blocks_nobody(
    spool: Spool, clock: FakeClock, tmp_path: Path, status: int
) -> None:
    def answer(batch: WireBatch) -> tuple[int, dict[str, str]]:
        return (status if batch.seq == 2 else 200), {}

    outbox = outbox_of(spool, clock)
    for number in range(1, 4):
        await outbox.post(report(number))
    async with FakeHub.running(answer) as hub, pushing(spool, outbox, hub.url, tmp_path):

        async def empty() -> bool:
            return spool.depth.records == 0

        await wait_until_async(empty)
        assert hub.seqs == [1, 3]
        assert [batch.seq for batch in hub.posts] == [1, 2, 3]
    (file,) = (tmp_path / "refused").iterdir()
    assert decode(file.read_bytes()).seq == 2
    assert (outbox.stats.refused, outbox.stats.acknowledged) == (1, 2)


async def test_what_was_not_delivered_is_delivered_by_the_next_process(tmp_path: Path, clock: FakeClock) -> None:
    spool = Spool.open(tmp_path / "spool", max_bytes=1 << 20)
    epoch = spool.epoch
    await outbox_of(spool, clock).post(report(1))
    spool.close()
    spool = Spool.open(tmp_path / "spool", max_bytes=1 << 20)
    try:
        outbox = outbox_of(spool, clock)
        await outbox.post(report(2))
        async with FakeHub.running() as hub, pushing(spool, outbox, hub.url, tmp_path):

            async def delivered() -> bool:
                return hub.seqs == [1, 2]

            await wait_until_async(delivered)
            assert {batch.epoch for batch in hub.taken} == {epoch}
    finally:
        spool.close()


async def test_refused_batches_are_kept_in_a_bounded_number(tmp_path: Path) -> None:
    refused = Refused(tmp_path / "refused")
    for seq in range(1, MAX_FILES + 4):
        await refused.keep("e" * 32, seq, b"x")
    kept = sorted(file.name for file in (tmp_path / "refused").iterdir())
    assert len(kept) == MAX_FILES
    assert kept[0] == f"{'e' * 32}-{4:019d}.batch"


async def test_where_refused_batches_cannot_be_kept_the_answer_says_so(tmp_path: Path) -> None:
    (tmp_path / "refused").write_text("a file in the way")
    assert "nothing (" in await Refused(tmp_path / "refused").keep("e" * 32, 1, b"x")
