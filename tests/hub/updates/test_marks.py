"""Marks of changes: who gets them, how often, and how many streams there are."""

import asyncio
import time
from contextlib import ExitStack

import pytest

from gpufleet.hub.updates.marks import (
    MARKS_PER_SECOND,
    MIN_INTERVAL_SECONDS,
    ChangeMarks,
    TooManyStreamsError,
    allocations_key,
    machine_key,
)
from tests.support.accepted import accept

SOON = 0.2


def opened(**limits: float) -> ChangeMarks:
    marks = ChangeMarks(time.monotonic)
    for name, limit in limits.items():
        setattr(marks, name, limit)
    marks.open()
    return marks


async def test_stream_gets_marks_of_its_keys_only() -> None:
    marks = opened()
    with marks.stream("a") as mine, marks.stream("a") as other:
        assert mine.follow({machine_key("m1")})
        assert not mine.follow({machine_key("m1")})
        other.follow({machine_key("m2"), allocations_key("acme")})
        await asyncio.to_thread(marks.note_batches, [accept("c", "m1"), accept("c", "m3")])
        marks.note(allocations_key("rival"), allocations_key(None))
        assert await mine.wait(SOON)
        assert not await other.wait(SOON)


async def test_changes_of_an_interval_are_one_mark() -> None:
    marks = opened(min_interval_seconds=2 * SOON)
    with marks.stream("a") as stream:
        stream.follow({"k"})
        for _ in range(3):
            marks.note("k")
        assert await stream.wait(SOON)
        began = time.monotonic()
        marks.note("k")
        assert not await stream.wait(SOON)  # the interval is not over
        assert await stream.wait(2 * SOON)  # nothing is lost
        assert time.monotonic() - began >= 2 * SOON * 0.9
        assert not await stream.wait(0)


async def test_interval_grows_with_the_number_of_streams() -> None:
    marks = opened()
    with ExitStack() as stack:
        for number in range(200):
            stack.enter_context(marks.stream(str(number)))
        assert marks.interval_seconds == 200 / MARKS_PER_SECOND
    assert (marks.streams, marks.interval_seconds) == (0, MIN_INTERVAL_SECONDS)


async def test_number_of_streams_is_limited() -> None:
    marks = opened(most=3, most_per_token=2)
    with marks.stream("a"):
        with marks.stream("a"), pytest.raises(TooManyStreamsError, match="token"), marks.stream("a"):
            pass
        with marks.stream("a"), marks.stream("b"), pytest.raises(TooManyStreamsError, match="hub"), marks.stream("c"):
            pass


async def test_closing_ends_every_wait() -> None:
    marks = opened()
    with marks.stream("a") as stream:
        stream.follow({"k"})
        marks.note("k")
        assert await stream.wait(SOON)
        waiting = asyncio.create_task(stream.wait(60))
        await asyncio.sleep(0)
        marks.close()
        assert not await asyncio.wait_for(waiting, 1)
        assert stream.is_closed
        with pytest.raises(TooManyStreamsError), marks.stream("a"):
            pass
    marks.note("k")  # changes after the end of the server are ignored
