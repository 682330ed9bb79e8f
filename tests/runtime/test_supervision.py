"""Tasks that should never end: the end of one is said, and it begins again."""

import asyncio
import logging

import pytest

from gpufleet.runtime import supervise
from tests.support.waiting import wait_until_async


async def test_what_ends_begins_again_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    runs = 0
    words: list[str] = []

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("a defect")
        if runs > 2:
            await asyncio.Event().wait()

    task = asyncio.create_task(supervise(run, "asking http://x", on_end=words.append, restart_seconds=0))

    async def goes_on() -> bool:
        return runs == 3

    with caplog.at_level(logging.ERROR):
        await wait_until_async(goes_on, what="its third run")
    assert words == ["ValueError: a defect", "it ended by itself"]
    assert ["asking http://x" in one.getMessage() for one in caplog.records] == [True, True]
    assert caplog.records[0].exc_info is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_asked_to_end_ends() -> None:
    async def run() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await supervise(run, "x", restart_seconds=0)
