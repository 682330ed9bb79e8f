"""Housekeeping: old findings, ended silences, and positions of receivers that are no longer configured."""

import pytest

from gpufleet.hub.notify.housekeeping import (
    PART,
    PAUSE_SECONDS,
    REMOVE_SECONDS,
    RETENTION_DAYS,
    RETRY_SECONDS,
    UNDELIVERED_DAYS,
    FindingHousekeeping,
)
from gpufleet.model.stored.findings import FindingQuery
from tests.support.notices import Board, DirectExecutor

DAY = 86_400.0


def housekeeping(board: Board, *cursors: str) -> FindingHousekeeping:
    return FindingHousekeeping(board.registry, cursors, threads=DirectExecutor(), clock=board.clock)


def count(board: Board) -> int:
    return len(board.registry.findings(FindingQuery(limit=10_000)))


async def test_positions_of_other_receivers_are_removed_at_start() -> None:
    board = Board()
    for name in ("store", "webhook/old"):
        board.registry.set_notified(name, 7)
    task = housekeeping(board, "store", "webhook/new")
    assert await task.advance() == REMOVE_SECONDS
    assert [board.registry.notified(one) for one in ("store", "webhook/old")] == [7, None]


async def test_old_findings_and_silences_are_removed_in_parts() -> None:
    board = Board()
    board.open(scope="east/open")
    board.silence(DAY)
    for number in range(PART + 1):
        board.close(board.open(scope=f"east/n{number}"))
    task = housekeeping(board)
    board.clock.advance(RETENTION_DAYS * DAY)
    assert (await task.advance(), count(board)) == (REMOVE_SECONDS, PART + 2)
    board.clock.advance(1.0)
    assert (await task.advance(), count(board)) == (PAUSE_SECONDS, 2)
    assert (await task.advance(), count(board)) == (REMOVE_SECONDS, 1)
    assert len(board.registry.silences(0)) == 1
    board.clock.advance(DAY)
    await task.advance()
    assert board.registry.silences(0) == ()


async def test_undelivered_findings_are_kept_longer() -> None:
    board = Board()
    board.registry.set_notified("webhook/w", 0)
    board.close(board.open())
    task = housekeeping(board, "webhook/w")
    board.clock.advance(RETENTION_DAYS * DAY + 1)
    await task.advance()
    assert count(board) == 1
    board.clock.advance((UNDELIVERED_DAYS - RETENTION_DAYS) * DAY)
    await task.advance()
    assert count(board) == 0


async def test_outage_of_the_registry_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    board.registry.is_down = True
    task = housekeeping(board)
    assert [await task.advance() for _ in range(3)] == [RETRY_SECONDS] * 3
    assert len(caplog.records) == 1
    board.registry.is_down = False
    assert await task.advance() == REMOVE_SECONDS
