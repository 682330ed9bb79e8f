"""The agent's batches if the queue to the hub refuses some of them."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import cast

import pytest

from gpufleet.agent.agent import Agent
from gpufleet.codecs.batch import decode, to_rows
from gpufleet.delivery.batch_queue import BatchQueue
from gpufleet.delivery.outbox import Delivery, Outbox
from gpufleet.delivery.pusher import Pusher
from gpufleet.exporters.agent_page import AgentPages
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import SpoolError
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Round
from gpufleet.model.wire.batch import MachineReport
from gpufleet.runtime import SystemClock
from tests.fakes.readers import ScriptedReader


class RefusingQueue:
    """Queue that refuses the first batches with a report, and sets `done` once it has the expected number."""

    records = waiting_bytes = memory_records = dropped = lost = 0
    oldest_at = None

    def __init__(self, *, refused: int, expected: int) -> None:
        self.reports: list[MachineReport] = []
        self.done = asyncio.Event()
        self._left, self._expected = refused, expected

    async def put(self, make: Callable[[str, int], bytes], _: int) -> None:
        reports = to_rows(decode(make("0" * 32, len(self.reports) + 1))).reports
        if reports and self._left:
            self._left -= 1
            raise SpoolError("full")
        self.reports += reports
        if len(self.reports) >= self._expected:
            self.done.set()


class IdlePusher:
    """Pusher that posts nothing."""

    def wake(self) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def flush(self) -> None:
        pass


async def test_first_queued_report_replaces_the_states_of_an_earlier_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without holder sources, the first report that is queued has an empty list of states."""
    monkeypatch.setattr("gpufleet.agent.agent.BATCH_SECONDS", 0)
    clock, queue = SystemClock(), RefusingQueue(refused=2, expected=3)
    outbox = Outbox(cast(BatchQueue, queue), cluster="c", sender="s", heartbeat_seconds=30, config_hash="", clock=clock)
    agent = Agent(
        [(ScriptedReader.always("host", Round(machine=Machine(name="n"))), 5.0)],
        intervals={lane: 0.01 if lane is Lane.FAST else 60.0 for lane in Lane},
        machine=Machine(name="n"),
        name=None,
        clock=clock,
        pages=AgentPages(),
        delivery=Delivery(outbox, cast(Pusher, IdlePusher())),
    )
    task = asyncio.create_task(agent.run())
    async with asyncio.timeout(30):
        await queue.done.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    states = [report.device_holders for report in queue.reports[:3]]
    assert (states, outbox.stats.lost) == ([(), None, None], 2)
