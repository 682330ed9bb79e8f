"""Forwarder: a durable queue of points, retries and counters."""

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
from gpufleet.model.errors import SpoolError
from gpufleet.model.time import NANOS
from tests.fakes.batches import gpu_sample, gpu_view
from tests.support.accepted import accept
from tests.support.waiting import wait_until_async

T0 = 1_700_000_000 * NANOS


class Database:
    """A receiver with its next replies and the values that it accepted."""

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


def offer(target: SeriesForwarder, *watts: float) -> None:
    for value in watts:
        sample = gpu_sample(gpu_view(0), T0 + int(value) * NANOS, gpu_power_watts=value)
        target.offer([accept("east", "m", [sample])])


@contextlib.asynccontextmanager
async def running(target: SeriesForwarder):  # type: ignore[no-untyped-def]
    task = asyncio.create_task(target.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        target.queue.close()


async def until(target: SeriesForwarder, points: int) -> None:
    async def settled() -> bool:
        return target.stats.accepted + target.stats.rejected == points and target.queue.requests == 0

    await wait_until_async(settled, what=f"{points} points to be accepted or rejected")


async def test_queued_series_survive_a_restart_in_order(tmp_path: Path) -> None:
    database = Database()
    before = forwarder(tmp_path, database)
    offer(before, 1.0, 2.0, 3.0)
    before.queue.close()  # the process ends before anything is sent
    again = forwarder(tmp_path, database)
    assert again.queue.requests == 3
    offer(again, 4.0)
    async with running(again):
        await until(again, 4)
        assert database.values == [1.0, 2.0, 3.0, 4.0]
    assert forwarder(tmp_path, database).queue.requests == 0  # nothing is sent again


async def test_unreachable_database_is_retried_and_refusals_are_not(tmp_path: Path) -> None:
    later, refused = (
        ExportReply(outcome=ExportOutcome.RETRY, detail="answers 503"),
        ExportReply(outcome=ExportOutcome.REJECTED, detail="answers 400: no"),
    )
    database = Database(later, refused)
    target = forwarder(tmp_path, database)
    offer(target, 1.0, 2.0)
    async with running(target):
        await until(target, 2)
        assert database.values == [2.0]
        assert (target.stats.failures, target.stats.rejected, target.stats.accepted) == (1, 1, 1)
        assert target.stats.last_success == T0


async def test_full_queue_drops_the_oldest_and_counts(tmp_path: Path) -> None:
    target = forwarder(tmp_path, Database(), max_bytes=1 << 16)
    offer(target, *map(float, range(1, 2000)))
    assert target.queue.dropped > 0
    assert target.queue.requests + target.queue.dropped == 1999
    assert target.queue.bytes <= 1 << 16
    target.queue.close()
    assert forwarder(tmp_path, Database()).queue.dropped > 0  # also after a restart


async def test_large_group_is_split_into_requests(tmp_path: Path) -> None:
    queue = ForwardQueue.open(tmp_path / "q", max_bytes=1 << 24, encode=encode_1)
    count = 2 * REQUEST_POINTS + 1
    assert queue.put(WritePoint({"__name__": "x", "n": str(number)}, 1.0, T0) for number in range(count)) == count
    assert [parcel.points for _, parcel in queue.read(10)] == [REQUEST_POINTS, REQUEST_POINTS, 1]
    queue.close()


async def test_failing_disk_loses_points_and_raises_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = forwarder(tmp_path, Database())
    target.queue.close()
    offer(target, 1.0)  # raises nothing: the store writer calls it
    assert (target.stats.lost, target.stats.queued) == (1, 0)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_defect_in_a_batch_affects_only_that_batch(tmp_path: Path) -> None:
    def broken(_: Sequence[WritePoint]) -> bytes:
        raise RuntimeError("a defect")

    queue = ForwardQueue.open(tmp_path / "q", max_bytes=1 << 22, encode=broken)
    target = SeriesForwarder(ForwardSeries({}, sends_late=False), queue, Database(), now_ns=lambda: T0)
    offer(target, 1.0)
    assert target.stats.lost == 1
    queue.close()


async def test_request_that_cannot_be_removed_is_posted_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses the acknowledgement: without a pause, the same points would be posted all the time."""
    database = Database()
    target = forwarder(tmp_path, database)
    offer(target, 100)
    pauses: list[float] = []
    done = target.queue.done

    def refuse(number: int) -> None:
        raise SpoolError("the disk is full")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        monkeypatch.setattr(target.queue, "done", done)

    monkeypatch.setattr(target.queue, "done", refuse)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await target.step()
    assert (database.values, len(pauses)) == ([100.0], 1)
    await target.step()
    assert (database.values, target.queue.requests) == ([100.0, 100.0], 0)
    target.queue.close()
