"""Polled host: lost passes are counted, and batches have the time of the last answer."""

import asyncio
from collections.abc import Callable

from gpufleet.codecs.batch import decode
from gpufleet.hub.imports.federation import start_offset
from gpufleet.hub.imports.scrape_status import TargetStatus
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError, SpoolError
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import Round
from gpufleet.model.wire.batch import WireBatch
from gpufleet.runtime import SystemClock
from gpufleet.wiring.polled_host import INTERVALS, PolledHost
from tests.fakes.batches import gpu_sample, gpu_view
from tests.support.waiting import wait_until_async


class OneReader:
    """Reader of one lane that succeeds or fails."""

    name = "exporter/x"
    lanes = (Lane.FAST,)

    def __init__(self, fails: bool, *events: Event) -> None:
        self.fails, self.events = fails, events

    async def read(self, lane: Lane) -> Round:
        if self.fails:
            raise ReaderError(Reason.TIMEOUT, "timed out")
        sample = gpu_sample(gpu_view(0), SystemClock().now_ns(), gpu_power_watts=1.0)
        return Round(samples=(sample,), events=self.events)

    async def close(self) -> None:
        pass


class FakeIngest:
    """Ingest that accepts batches or is full."""

    def __init__(self, full: bool = False) -> None:
        self.full = full
        self.taken: list[WireBatch] = []

    async def receive(self, body: bytes, received_at: int) -> None:
        if self.full:
            raise SpoolError("the log is full")
        self.taken.append(decode(body))


async def run(
    reader: OneReader, ingest: FakeIngest, until: Callable[[TargetStatus], bool], answered_at: int = 0
) -> TargetStatus:
    target_status = TargetStatus("http://x/metrics")
    # The name with the earliest start, so that the test does not wait.
    node = min(
        (f"n{number}" for number in range(5000)),
        key=lambda one: start_offset(f"c/exporter/x/{one}", INTERVALS[Lane.FAST]),
    )
    host = PolledHost("c", node, reader, ingest, SystemClock(), target_status, answered_at)  # type: ignore[arg-type]
    task = asyncio.create_task(host.run())

    async def is_done() -> bool:
        return until(target_status)

    try:
        await wait_until_async(is_done, what="the first pass")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return target_status


async def test_pass_refused_by_a_full_hub_is_counted_as_lost() -> None:
    target_status = await run(OneReader(fails=False), FakeIngest(full=True), lambda it: it.lost > 0)
    assert (target_status.up, target_status.answers, target_status.lost) == (True, 1, 1)


async def test_batch_has_the_time_of_the_answer() -> None:
    ingest = FakeIngest()
    target_status = await run(OneReader(fails=False), ingest, lambda it: bool(ingest.taken))
    (batch,) = ingest.taken
    assert (target_status.up, target_status.failures) == (True, 0)
    assert batch.heartbeat is not None
    assert batch.heartbeat.answered_at is not None
    assert 0 <= batch.sent_at - batch.heartbeat.answered_at < 10**9
    assert len(batch.samples) == 1


async def test_batch_has_the_events_of_the_reader() -> None:
    ingest = FakeIngest()
    lost = Event(view=gpu_view(0), kind=EventKind.GPU_LOST, at=SystemClock().now_ns())
    await run(OneReader(False, lost), ingest, lambda it: bool(ingest.taken))
    (batch,) = ingest.taken
    assert [one.kind for part in batch.parts for one in part.events] == [EventKind.GPU_LOST]


async def test_unreachable_host_reports_its_last_answer() -> None:
    for answered_at, machines in ((0, 0), (1_700_000_000_000_000_000, 1)):
        ingest = FakeIngest()
        reader = OneReader(fails=True)
        target_status = await run(reader, ingest, lambda it, ingest=ingest: bool(ingest.taken), answered_at)  # type: ignore[misc]
        (batch,) = ingest.taken
        assert (target_status.up, target_status.failures, target_status.error) == (False, 1, "timed out")
        assert batch.heartbeat is not None
        assert batch.heartbeat.answered_at == answered_at
        assert len(batch.machines) == machines
