"""Supervised tasks of a hub: a failing task is counted and restarted, and affects no other."""

import contextlib
from collections.abc import Sequence
from typing import Any

from gpufleet.config.hub import ExporterHost, HubConfig
from gpufleet.hub.imports.scrape_status import TargetStatuses
from gpufleet.hub.receive.counters import Counters
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.model.access import KnownToken
from gpufleet.runtime import SystemClock
from gpufleet.wiring.hub import load_credentials
from gpufleet.wiring.polling import PollingContext, run_polling
from tests.support.waiting import wait_until_async


class BrokenClock(SystemClock):
    """Clock that fails on its second call."""

    def __init__(self) -> None:
        self.calls = 0

    def now_ns(self) -> int:
        self.calls += 1
        if self.calls == 2:
            raise ZeroDivisionError("no time")
        return super().now_ns()


async def test_failing_poll_task_is_counted_and_affects_no_other() -> None:
    config = HubConfig(
        exporter=(
            ExporterHost(cluster="local", node="n1", name="x", url="http://127.0.0.1:9/metrics"),
            ExporterHost(cluster="local", node="n2", name="x", url="http://127.0.0.1:9/metrics"),
        )
    )
    counters, target_statuses = Counters(), TargetStatuses()
    nothing: Any = None
    context = PollingContext(
        ingest=nothing,
        receiver=nothing,
        counters=counters,
        pressure=ByteBudget(1 << 20),
        target_statuses=target_statuses,
        clock=BrokenClock(),
        states=(),
    )

    async def counted() -> bool:
        return counters.task_restarts["pull"] == 1

    async with run_polling(config, context):
        await wait_until_async(counted, what="the restart to be counted")
        assert [one.error for _, one in target_statuses] == ["", "task crashed: ZeroDivisionError: no time"]
    assert list(target_statuses) == []


class BrokenTokens:
    """Token registry that fails on its second read."""

    def __init__(self) -> None:
        self.reads = 0

    def changes(self) -> int:
        self.reads += 1
        if self.reads > 1:
            raise ZeroDivisionError("a defect")
        return 0

    def known(self) -> Sequence[KnownToken]:
        return ()


async def test_failing_token_refresh_is_counted() -> None:
    counters = Counters()

    async def counted() -> bool:
        return counters.task_restarts["tokens"] == 1

    async with contextlib.AsyncExitStack() as stack:
        await load_credentials(BrokenTokens(), stack, counters)  # type: ignore[arg-type]
        await wait_until_async(counted, what="the restart to be counted")
