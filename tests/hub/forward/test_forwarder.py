"""The way to a database: a queue that outlives the process, patience, and what is counted."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from gpufleet.codecs.remote_write.decode import WriteDecoder
from gpufleet.codecs.remote_write.encode import WritePoint, encode_1
from gpufleet.delivery.export_queue import ExportOutcome, ExportReply, ExportRequest
from gpufleet.hub.forward.forwarder import REQUEST_POINTS, ForwardQueue, SeriesForwarder
from gpufleet.hub.forward.series import ForwardSeries
from gpufleet.model.time import NANOS
from tests.fakes.batches import gpu_sample, gpu_view
from tests.support.accepted import accept
from tests.support.waiting import wait_until_async

T0 = 1_700_000_000 * NANOS


class Database:
    """A receiver: what it answers next, and what it took."""

    def __init__(self, *replies: ExportReply) -> None:
        self.replies = list(replies)
        self.values: list[float] = []
        self.address = "http://database/write"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def post(self, parcel: ExportRequest) -> ExportReply:
        reply = self.replies.pop(0) if self.replies else ExportReply(outcome=ExportOutcome.ACCEPTED)
        if reply.outcome is ExportOutcome.ACCEPTED:
            request = WriteDecoder().decode_1(parcel.body)
            assert len(request.values) == parcel.points
            self.values += request.values
        return reply


def forwarder(folder: Path, database: Database, max_bytes: int = 1 << 22) -> SeriesForwarder:
    queue = ForwardQueue.open(folder / "forward", max_bytes=max_bytes, encode=encode_1)
    series = ForwardSeries({}, sends_late=False)
    return SeriesForwarder(series, queue, database, now_ns=lambda: T0, jitter=lambda: 0.0, look_seconds=0.01)


def offer(one: SeriesForwarder, *watts: float) -> None:
    for value in watts:
        sample = gpu_sample(gpu_view(0), T0 + int(value) * NANOS, gpu_power_watts=value)
        one.offer([accept("east", "m", [sample])])


@contextlib.asynccontextmanager
async def running(one: SeriesForwarder):  # type: ignore[no-untyped-def]
    task = asyncio.create_task(one.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        one.queue.close()


async def until(one: SeriesForwarder, points: int) -> None:
    async def settled() -> bool:
        return one.stats.accepted + one.stats.rejected == points and one.queue.requests == 0

    await wait_until_async(settled, what=f"{points} points to be taken or refused")


async def test_queued_series_survive_a_restart_in_order(tmp_path: Path) -> None:
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


async def test_unreachable_database_is_retried_and_refusals_are_not(tmp_path: Path) -> None:
    later, refused = (
        ExportReply(outcome=ExportOutcome.RETRY, detail="answers 503"),
        ExportReply(outcome=ExportOutcome.REJECTED, detail="answers 400: no"),
    )
    database = Database(later, refused)
    one = forwarder(tmp_path, database)
    offer(one, 1.0, 2.0)
    async with running(one):
        await until(one, 2)
        assert database.values == [2.0]
        assert (one.stats.failures, one.stats.rejected, one.stats.accepted) == (1, 1, 1)
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
    count = 2 * REQUEST_POINTS + 1
    assert queue.put(WritePoint({"__name__": "x", "n": str(number)}, 1.0, T0) for number in range(count)) == count
    assert [parcel.points for _, parcel in queue.read(10)] == [REQUEST_POINTS, REQUEST_POINTS, 1]
    queue.close()


async def test_failing_disk_costs_forwarding_and_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = forwarder(tmp_path, Database())
    one.queue.close()
    offer(one, 1.0)  # nothing is raised at who writes to the store
    assert (one.stats.lost, one.stats.queued) == (1, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_defect_in_a_batch_costs_that_batch(tmp_path: Path) -> None:
    def broken(_: Sequence[WritePoint]) -> bytes:
        raise RuntimeError("a defect")

    queue = ForwardQueue.open(tmp_path / "q", max_bytes=1 << 22, encode=broken)
    one = SeriesForwarder(ForwardSeries({}, sends_late=False), queue, Database(), now_ns=lambda: T0)
    offer(one, 1.0)
    assert one.stats.lost == 1
    queue.close()
