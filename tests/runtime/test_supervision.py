"""Supervision: a task that ends is logged and restarted."""

import asyncio
import logging

import pytest

from gpufleet.runtime import supervise
from tests.support.waiting import wait_until_async


async def test_ended_task_is_logged_and_restarted(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0
    reasons: list[str] = []

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("a defect")
        if runs > 2:
            await asyncio.Event().wait()

    task = asyncio.create_task(supervise(run, "scrape http://x", on_end=reasons.append, restart_seconds=0))

    async def is_running_again() -> bool:
        return runs == 3

    with caplog.at_level(logging.ERROR):
        await wait_until_async(is_running_again, what="the third run")
        logged = [one.getMessage() for one in caplog.records]
        assert len(reasons) == 2
        assert "ValueError: a defect" in reasons[0]
        assert all(one.startswith(f"scrape http://x: {reason};") for one, reason in zip(logged, reasons, strict=True))
    assert caplog.records[0].exc_info is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_task_is_not_restarted() -> None:
    async def run() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await supervise(run, "x", restart_seconds=0)
