"""Export loop: nothing is lost at a stop, and a defect of the source is contained."""

import asyncio
import contextlib
import threading
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Self

import pytest

from gpufleet.delivery.export import AgentStats, Draft, Export
from gpufleet.delivery.export_queue import ExportOutcome, ExportQueue, ExportReply, ExportRequest
from gpufleet.model.event import Event
from gpufleet.model.snapshot import Snapshot
from tests.support.snapshots import example_snapshot
from tests.support.waiting import wait_until_async

STATS = AgentStats(started_at=1, lanes={})


class Source:
    """Source that collects the kinds of its events and its offers; it encodes while `may_write` is set."""

    def __init__(self) -> None:
        self.pending: list[str] = []
        self.defect = ""
        self.may_write = threading.Event()
        self.may_write.set()
        self.writing = threading.Event()

    def offer(self, snapshot: Snapshot, stats: AgentStats) -> Generator[None, None, None]:
        yield
        if self.defect == "offer":
            raise ZeroDivisionError("a defect")
        self.pending.append("offer")

    def add_events(self, snapshot: Snapshot, events: Sequence[Event]) -> None:
        self.pending += [event.kind for event in events]

    def take(self) -> Draft | None:
        pending, self.pending = self.pending, []
        return Draft(len(pending), lambda: self._write(pending)) if pending else None

    def _write(self, pending: list[str]) -> bytes:
        self.writing.set()
        self.may_write.wait(10)
        if self.defect == "write":
            raise ZeroDivisionError("a defect")
        return ",".join(pending).encode()


class Wire:
    """Transport that accepts everything."""

    address = "there"

    def __init__(self) -> None:
        self.posted: list[bytes] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def post(self, parcel: ExportRequest) -> ExportReply:
        self.posted.append(parcel.body)
        return ExportReply(outcome=ExportOutcome.ACCEPTED)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def export(source: Source, wire: Wire) -> Export:
    return Export(source, ExportQueue("there", wire, max_bytes=1000, now_ns=lambda: 7), interval_seconds=0.01)


async def test_offered_points_are_sent_at_the_interval(export: Export, source: Source, wire: Wire) -> None:
    await export.offer(example_snapshot(), STATS, [Event(view=None, kind="xid", at=1)])
    task = asyncio.create_task(export.run())

    async def posted() -> bool:
        return bool(wire.posted)

    await wait_until_async(posted)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert wire.posted == [b"xid,offer"]
    assert (export.stats.points, export.stats.accepted, export.capability) == (2, 2, "available")


async def test_stop_while_a_request_is_encoded_loses_nothing(export: Export, source: Source, wire: Wire) -> None:
    await export.offer(example_snapshot(), STATS)
    source.may_write.clear()
    task = asyncio.create_task(export.run())
    await asyncio.to_thread(source.writing.wait, 10)
    task.cancel()
    source.may_write.set()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await export.offer(example_snapshot(), STATS)
    await export.flush()
    assert wire.posted == [b"offer", b"offer"]


@pytest.mark.parametrize("step", ["offer", "write"])
async def test_defect_is_reported_and_export_recovers(
    export: Export, source: Source, wire: Wire, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    source.defect = step
    for _ in range(2):
        await export.offer(example_snapshot(), STATS)
        await export.flush()
    assert export.capability == "failing: ZeroDivisionError: a defect"
    assert [record.levelname for record in caplog.records if record.levelname == "ERROR"] == ["ERROR"]
    source.defect = ""
    await export.offer(example_snapshot(), STATS)
    await export.flush()
    assert export.capability == "available"
    assert wire.posted == [b"offer"]
