"""Export queue: order, retries, drops and counters."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import pytest

from gpufleet.delivery.export_queue import ExportOutcome, ExportQueue, ExportReply, ExportRequest
from tests.support.waiting import wait_until_async


class Wire:
    """Transport with its next replies; afterwards it accepts everything."""

    address = "http://there"

    def __init__(self, *replies: ExportReply) -> None:
        self.replies = list(replies)
        self.posted: list[bytes] = []
        self.is_open = False
        self.blocked: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    async def post(self, parcel: ExportRequest) -> ExportReply:
        assert self.is_open
        self.posted.append(parcel.body)
        if self.blocked is not None:
            await self.blocked.wait()
        return self.replies.pop(0) if self.replies else ExportReply(outcome=ExportOutcome.ACCEPTED)


def outlet_of(wire: Wire, max_bytes: int = 1000, slept: list[float] | None = None) -> ExportQueue:
    async def sleep(seconds: float) -> None:
        if slept is None:
            await asyncio.sleep(seconds)
        else:
            slept.append(seconds)
            await asyncio.sleep(0)

    return ExportQueue("there", wire, max_bytes=max_bytes, now_ns=lambda: 7, jitter=lambda: 0.0, sleep=sleep)


@contextlib.asynccontextmanager
async def running(outlet: ExportQueue) -> AsyncIterator[None]:
    task = asyncio.create_task(outlet.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def counts(outlet: ExportQueue) -> dict[str, int]:
    stats = outlet.stats
    return {name: getattr(stats, name) for name in ("points", "accepted", "rejected", "dropped", "requests", "bytes")}


async def test_requests_go_in_order_and_are_counted() -> None:
    wire = Wire()
    outlet = outlet_of(wire)
    outlet.put(ExportRequest(b"one", 3))
    outlet.put(ExportRequest(b"two", 4))
    async with running(outlet):

        async def taken() -> bool:
            return outlet.stats.accepted == 7

        await wait_until_async(taken)
        outlet.put(ExportRequest(b"three", 5))

        async def all_taken() -> bool:
            return outlet.stats.accepted == 12

        await wait_until_async(all_taken)
    assert wire.posted == [b"one", b"two", b"three"]
    assert counts(outlet) == {"points": 12, "accepted": 12, "rejected": 0, "dropped": 0, "requests": 0, "bytes": 0}
    assert outlet.stats.last_success == 7


async def test_request_to_retry_is_sent_again_first() -> None:
    wire = Wire(ExportReply(outcome=ExportOutcome.RETRY, detail="busy", retry_after=0.0))
    outlet = outlet_of(wire)
    outlet.put(ExportRequest(b"one", 1))
    outlet.put(ExportRequest(b"two", 1))
    async with running(outlet):

        async def taken() -> bool:
            return outlet.stats.accepted == 2

        await wait_until_async(taken)
    assert wire.posted == [b"one", b"one", b"two"]
    assert outlet.stats.failures == 1
    assert outlet.stats.last_error == ""


async def test_retry_after_of_the_receiver_is_respected() -> None:
    wire = Wire(ExportReply(outcome=ExportOutcome.RETRY, detail="busy", retry_after=3000.0))
    outlet = outlet_of(wire)
    outlet.put(ExportRequest(b"one", 1))
    async with running(outlet):

        async def failed() -> bool:
            return outlet.stats.failures == 1

        await wait_until_async(failed)
        outlet.put(ExportRequest(b"two", 1))  # a new request does not end the pause
        for _ in range(20):
            await asyncio.sleep(0)
        assert wire.posted == [b"one"]
        assert outlet.stats.last_error == "http://there: busy"


async def test_pauses_grow_and_are_at_least_retry_after() -> None:
    later = [
        ExportReply(outcome=ExportOutcome.RETRY, detail="busy", retry_after=retry_after)
        for retry_after in (None, None, None, 40.0, None)
    ]
    slept: list[float] = []
    outlet = outlet_of(Wire(*later), slept=slept)
    outlet.put(ExportRequest(b"one", 1))
    async with running(outlet):

        async def taken() -> bool:
            return outlet.stats.accepted == 1

        await wait_until_async(taken)
    assert slept == [0.5, 1.0, 2.0, 40.0, 7.5]


async def test_rejected_request_is_dropped_and_blocks_nothing() -> None:
    wire = Wire(
        ExportReply(outcome=ExportOutcome.REJECTED, detail="bad"),
        ExportReply(outcome=ExportOutcome.REJECTED, detail="part", rejected=1),
    )
    outlet = outlet_of(wire)
    for body in (b"one", b"two", b"three"):
        outlet.put(ExportRequest(body, 5))
    await outlet.flush()
    assert wire.posted == [b"one", b"two", b"three"]
    assert counts(outlet) == {"points": 15, "accepted": 9, "rejected": 6, "dropped": 0, "requests": 0, "bytes": 0}


async def test_rejected_points_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire(*[ExportReply(outcome=ExportOutcome.ACCEPTED, detail="too old", rejected=2)] * 2)
    outlet = outlet_of(wire)
    for _ in range(2):
        outlet.put(ExportRequest(b"one", 5))
    await outlet.flush()
    assert (outlet.stats.accepted, outlet.stats.rejected) == (6, 4)
    assert "too old" in outlet.stats.last_error
    assert [record.message.count("too old") for record in caplog.records] == [1]


async def test_full_queue_drops_the_oldest_requests() -> None:
    wire = Wire()
    outlet = outlet_of(wire, max_bytes=10)
    for number in range(4):
        outlet.put(ExportRequest(bytes([number]) * 4, 1))
    assert counts(outlet) == {"points": 4, "accepted": 0, "rejected": 0, "dropped": 2, "requests": 2, "bytes": 8}
    outlet.put(ExportRequest(b"x" * 100, 1))
    assert counts(outlet) == {"points": 5, "accepted": 0, "rejected": 0, "dropped": 4, "requests": 1, "bytes": 100}
    await outlet.flush()
    assert wire.posted == [b"x" * 100]


async def test_request_in_flight_is_neither_lost_nor_counted_twice() -> None:
    wire = Wire(ExportReply(outcome=ExportOutcome.RETRY, detail="busy"))
    wire.blocked = asyncio.Event()
    outlet = outlet_of(wire, max_bytes=10)
    outlet.put(ExportRequest(b"aaaa", 1))
    async with running(outlet):

        async def posted() -> bool:
            return bool(wire.posted)

        await wait_until_async(posted)
        for _ in range(3):
            outlet.put(ExportRequest(b"bbbb", 1))
        wire.blocked.set()

        async def failed() -> bool:
            return outlet.stats.failures == 1

        await wait_until_async(failed)
    assert counts(outlet) == {"points": 4, "accepted": 0, "rejected": 0, "dropped": 2, "requests": 2, "bytes": 8}
    await outlet.flush()
    assert wire.posted[1:] == [b"aaaa", b"bbbb"]


async def test_stop_during_a_post_keeps_the_request_for_the_flush() -> None:
    wire = Wire()
    wire.blocked = asyncio.Event()
    outlet = outlet_of(wire)
    outlet.put(ExportRequest(b"one", 1))
    async with running(outlet):

        async def posted() -> bool:
            return bool(wire.posted)

        await wait_until_async(posted)
    wire.blocked = None
    await outlet.flush()
    assert wire.posted == [b"one", b"one"]
    assert outlet.stats.accepted == 1


async def test_error_of_a_flush_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    outlet = outlet_of(Wire(ExportReply(outcome=ExportOutcome.RETRY, detail="busy")))
    outlet.put(ExportRequest(b"one", 1))
    await outlet.flush()
    assert "busy" in caplog.text
