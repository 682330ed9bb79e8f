"""Alertmanager: posts of transitions and of open findings, over real HTTP and to a real Alertmanager."""

import asyncio
import contextlib
import datetime as dt
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpufleet.hub.notify.alertmanager import (
    OVERDUE_SECONDS,
    POST_ALERTS,
    RESEND_SECONDS,
    AlertmanagerReceiver,
)
from gpufleet.hub.notify.feed import READ_TRANSITIONS
from gpufleet.model.finding import Severity
from gpufleet.model.time import to_datetime
from tests.fakes.receiver import Answer, Got, Receiver
from tests.support.alertmanager import alertmanager
from tests.support.notices import Board
from tests.support.waiting import wait_until_async


def alerts_of(got: Got) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(got.body)
    return found


def states(board: Board, found: list[Got]) -> list[tuple[str, bool]]:
    """Return severity and whether it fires, of each alert in order."""
    now = to_datetime(board.now)
    return [
        (alert["labels"]["severity"], dt.datetime.fromisoformat(alert["endsAt"]) > now)
        for one in found
        for alert in alerts_of(one)
    ]


@contextlib.asynccontextmanager
async def running(board: Board, url: str, folder: Path) -> AsyncIterator[AlertmanagerReceiver]:
    """Yield the Alertmanager of a hub process that ends without notice."""
    found, sender = board.alertmanager(url, folder, {"site": "lab"})
    async with sender:
        yield found


async def test_open_findings_are_sent_at_once_and_every_minute(tmp_path: Path) -> None:
    board = Board()
    first = board.open()
    async with Receiver.running() as server, running(board, server.url, tmp_path) as target:
        await board.deliver(target)
        assert [one.path for one in server.got] == ["/api/v2/alerts"]
        assert server.got[0].headers["content-type"] == "application/json"
        (alert,) = alerts_of(server.got[0])
        assert (alert["labels"]["site"], alert["labels"]["node"]) == ("lab", "node-1")
        assert alert["annotations"]["finding"] == first.id
        board.open(scope="east/m2/gpu/GPU-2")
        await board.deliver(target)
        assert [len(alerts_of(one)) for one in server.got] == [1, 1]
        await board.deliver(target, seconds=RESEND_SECONDS)
        assert [len(alerts_of(one)) for one in server.got] == [1, 1, 2]
        assert target.stats.lag == 0


async def test_escalation_and_closing_end_alerts(tmp_path: Path) -> None:
    board = Board()
    async with Receiver.running() as server:
        async with running(board, server.url, tmp_path) as target:
            finding = board.open()
            await board.deliver(target)
            worse = board.escalate(finding)
            await board.deliver(target)
        assert states(board, server.got[1:]) == [("info", False), ("warning", False), ("critical", True)]
        board.close(worse)
        async with running(board, server.url, tmp_path) as again:  # after kill -9
            await board.deliver(again)
        assert states(board, server.got[2:]) == [("critical", False)]
        assert alerts_of(server.got[2])[0]["labels"] == alerts_of(server.got[1])[2]["labels"]


async def test_alert_of_a_muted_finding_ends_and_starts_again(tmp_path: Path) -> None:
    board = Board()
    async with Receiver.running() as server, running(board, server.url, tmp_path) as target:
        finding = board.open()
        await board.deliver(target)
        board.acknowledge(finding, 150.0)
        for expected in ([("warning", False)], [], [("warning", True)]):
            server.got.clear()
            await board.deliver(target, seconds=RESEND_SECONDS)
            assert states(board, server.got) == expected


async def test_failed_post_is_repeated_before_later_transitions(tmp_path: Path) -> None:
    board = Board()
    async with Receiver.running(lambda _: Answer(503)) as server, running(board, server.url, tmp_path) as target:
        await board.deliver(target)
        finding = board.open()
        await board.deliver(target)
        assert (target.stats.sent, target.stats.lag, target.stats.dead) == (0, 1, 0)
        server.answer = lambda _: Answer()
        board.close(finding)
        await board.deliver(target, seconds=20.0)
        assert target.stats.lag == 0
        assert states(board, server.taken) == [("warning", True), ("warning", False)]


async def test_rejected_transitions_are_dead_letters(tmp_path: Path) -> None:
    board = Board()
    async with Receiver.running(lambda _: Answer(400)) as server, running(board, server.url, tmp_path) as target:
        await board.deliver(target)
        board.open()
        await board.deliver(target, seconds=2 * RESEND_SECONDS)
        assert (target.stats.dead, target.stats.lag) == (1, 0)
        assert len(server.got) >= 3  # the open finding is still sent every minute
    assert len(list((tmp_path / "dead").iterdir())) == 1


async def test_many_alerts_are_split_into_requests(tmp_path: Path) -> None:
    board = Board()
    for number in range(POST_ALERTS + 1):
        board.open(scope=f"east/n{number}/gpu/GPU-1")
    async with Receiver.running() as server, running(board, server.url, tmp_path) as target:
        await board.deliver(target)
        assert [len(alerts_of(one)) for one in server.got] == [POST_ALERTS, 1]


async def test_transitions_are_sent_between_parts_of_a_resend(tmp_path: Path) -> None:
    board = Board()
    findings = []
    for number in range(2 * POST_ALERTS + 1):
        board.clock.advance(0.001)
        findings.append(board.open(scope=f"east/n{number}/gpu/GPU-1"))
    async with Receiver.running() as server, running(board, server.url, tmp_path) as target:
        await target.advance()
        board.close(findings[0])  # the last of the resend
        new = board.open()
        await board.deliver(target)
        sent = [[alert["annotations"]["finding"] for alert in alerts_of(got)] for got in server.got]
        assert [len(one) for one in sent] == [POST_ALERTS, 2, POST_ALERTS]
        assert sent[1] == [findings[0].id, new.id]
        assert findings[0].id not in sent[2]
        assert board.name_reads == 3  # one for each request


async def test_overdue_resend_alternates_with_transitions(tmp_path: Path) -> None:
    board = Board()
    old = board.open()
    async with Receiver.running() as server, running(board, server.url, tmp_path) as target:
        await board.deliver(target)
        for number in range(2 * READ_TRANSITIONS):
            board.open(scope=f"east/n{number}/gpu/GPU-1", at=board.now - 3600 * 10**9)
        board.clock.advance(RESEND_SECONDS + OVERDUE_SECONDS)
        server.got.clear()
        await target.advance()
        assert sum(len(alerts_of(one)) for one in server.got) == READ_TRANSITIONS + POST_ALERTS
        assert old.id in {alert["annotations"]["finding"] for alert in alerts_of(server.got[-1])}


async def test_lag_grows_while_a_retry_is_delayed(tmp_path: Path) -> None:
    board = Board()
    answer = Answer(503, b"", {"Retry-After": "3600"})
    async with Receiver.running(lambda _: answer) as server, running(board, server.url, tmp_path) as target:
        await board.deliver(target)
        for number in range(3):
            board.open(scope=f"east/n{number}/gpu/GPU-1")
            await board.deliver(target)
        assert target.stats.lag == 3
        assert len(server.got) == 1


@pytest.mark.system
async def test_real_alertmanager_reports_each_finding_once(tmp_path: Path, peer: Callable[[str], Path]) -> None:
    board = Board(time.time_ns())
    async with Receiver.running() as pager:
        with alertmanager(peer("alertmanager"), tmp_path / "am", pager.url) as real:

            async def until(*expected: tuple[str, str]) -> None:
                """Wait until the pager was notified exactly of these (status, severity)."""

                async def is_notified() -> bool:
                    return len(_notifications(pager)) >= len(expected)

                await wait_until_async(is_notified, what=f"{len(expected)} notifications")
                assert sorted(_notifications(pager)) == sorted(expected)

            async def advance() -> None:
                """Start a hub process that delivers and is then killed."""
                async with running(board, real.url, tmp_path) as target:
                    await target.advance()
                    assert target.stats.last_error == ""

            await advance()
            finding = board.open(severity=Severity.WARNING)
            await advance()
            await until(("firing", "warning"))
            (alert,) = await asyncio.to_thread(real.alerts)
            assert alert["labels"]["alertname"] == "GpufleetGpuLost"
            assert alert["annotations"]["finding"] == finding.id

            board.registry.set_notified("alertmanager/a", 0)  # as if the position had not been stored
            await advance()
            await advance()
            worse = board.escalate(finding)
            await advance()
            await until(("firing", "warning"), ("resolved", "warning"), ("firing", "critical"))

            board.close(worse)
            await advance()
            await until(
                ("firing", "warning"), ("resolved", "warning"), ("firing", "critical"), ("resolved", "critical")
            )
            assert await asyncio.to_thread(real.alerts) == []


def _notifications(pager: Receiver) -> list[tuple[str, str]]:
    """Return status and severity of each alert that the pager was notified of."""
    return [
        (alert["status"], alert["labels"]["severity"]) for got in pager.got for alert in json.loads(got.body)["alerts"]
    ]
