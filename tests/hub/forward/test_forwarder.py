"""The way to a database: a queue that outlives the process, patience, and what is counted."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import Point, encode_1
from gpufleet.delivery.outlet import Fate, Parcel, Reply
from gpufleet.hub.forward.forwarder import POINTS, Forwarder, ForwardQueue
from gpufleet.hub.forward.series import ForwardSeries
from gpufleet.model.time import NANOS
from tests.fakes.batches import gpu_sample, gpu_view
from tests.support.accepted import accept
from tests.support.waiting import wait_until_async

T0 = 1_700_000_000 * NANOS


class Database:
    """A receiver: what it answers next, and what it took."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.values: list[float] = []
        self.where = "http://database/write"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def post(self, parcel: Parcel) -> Reply:
        reply = self.replies.pop(0) if self.replies else Reply(fate=Fate.TAKEN)
        if reply.fate is Fate.TAKEN:
            request = WriteDecoder().decode_1(parcel.body)
            assert len(request.values) == parcel.points
            self.values += request.values
        return reply


def forwarder(folder: Path, database: Database, max_bytes: int = 1 << 22) -> Forwarder:
    queue = ForwardQueue.open(folder / "forward", max_bytes=max_bytes, encode=encode_1)
    series = ForwardSeries({}, sends_late=False)
    return Forwarder(series, queue, database, now_ns=lambda: T0, jitter=lambda: 0.0, look_seconds=0.01)


def offer(one: Forwarder, *watts: float) -> None:
    for value in watts:
        sample = gpu_sample(gpu_view(0), T0 + int(value) * NANOS, gpu_power_watts=value)
        one.offer([accept("east", "m", [sample])])


@contextlib.asynccontextmanager
async def running(one: Forwarder):  # type: ignore[no-untyped-def]
    task = asyncio.create_task(one.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        one.queue.close()


async def until(one: Forwarder, points: int) -> None:
    async def settled() -> bool:
        return one.stats.taken + one.stats.rejected == points and one.queue.requests == 0

    await wait_until_async(settled, what=f"{points} points to be taken or refused")


async def test_what_waits_is_there_after_a_restart_and_goes_out_in_order(tmp_path: Path) -> None:
    database = Database()
    before = forwarder(tmp_path, database)
    offer(before, 1.0, 2.0, 3.0)
    before.queue.close()  # the process ends: nothing has gone out
    again = forwarder(tmp_path, database)
    assert again.queue.requests == 3
    offer(again, 4.0)
    async with running(again):
        await until(again, 4)
        assert database.values == [1.0, 2.0, 3.0, 4.0]
    assert forwarder(tmp_path, database).queue.requests == 0  # and is not sent again


async def test_a_database_that_is_down_is_asked_again_and_one_that_refuses_is_not(tmp_path: Path) -> None:
    later, refused = Reply(fate=Fate.LATER, words="answers 503"), Reply(fate=Fate.REFUSED, words="answers 400: no")
    database = Database(later, refused)
    one = forwarder(tmp_path, database)
    offer(one, 1.0, 2.0)
    async with running(one):
        await until(one, 2)
        assert database.values == [2.0]
        assert (one.stats.failures, one.stats.rejected, one.stats.taken) == (1, 1, 1)
        assert one.stats.last_success == T0


async def test_a_full_queue_lets_go_of_the_oldest_and_counts(tmp_path: Path) -> None:
    one = forwarder(tmp_path, Database(), max_bytes=1 << 16)
    offer(one, *map(float, range(1, 2000)))
    assert one.queue.dropped > 0
    assert one.queue.requests + one.queue.dropped == 1999
    assert one.queue.bytes <= 1 << 16
    one.queue.close()
    assert forwarder(tmp_path, Database()).queue.dropped > 0  # over a restart, too


async def test_a_large_group_is_cut(tmp_path: Path) -> None:
    queue = ForwardQueue.open(tmp_path / "q", max_bytes=1 << 24, encode=encode_1)
    count = 2 * POINTS + 1
    assert queue.put(Point({"__name__": "x", "n": str(number)}, 1.0, T0) for number in range(count)) == count
    assert [parcel.points for _, parcel in queue.read(10)] == [POINTS, POINTS, 1]
    queue.close()


async def test_a_disk_that_refuses_costs_what_is_passed_on_and_not_the_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = forwarder(tmp_path, Database())
    one.queue.close()
    offer(one, 1.0)  # nothing is raised at who writes to the store
    assert (one.stats.lost, one.stats.queued) == (1, 0)
    assert "not passed on" in caplog.text


def test_a_defect_in_a_batch_costs_that_batch(tmp_path: Path) -> None:
    def broken(_: Sequence[Point]) -> bytes:
        raise RuntimeError("a defect")

    queue = ForwardQueue.open(tmp_path / "q", max_bytes=1 << 22, encode=broken)
    one = Forwarder(ForwardSeries({}, sends_late=False), queue, Database(), now_ns=lambda: T0)
    offer(one, 1.0)
    assert one.stats.lost == 1
    queue.close()
