"""Webhook: order, retries, dead letters, restarts and mutes, over real HTTP and with a simulated clock."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gpufleet.config.secret_files import TokenFile
from gpufleet.delivery.pacing import MAX_SECONDS
from gpufleet.hub.notify.notices import NoticeFilter
from gpufleet.hub.notify.receiver import QUIET_SECONDS
from gpufleet.hub.notify.schedule import ALONE_SECONDS, MAX_PENDING
from gpufleet.hub.notify.webhook import CONNECTIONS, REMIND_SECONDS, WebhookReceiver
from gpufleet.model.finding import Severity
from tests.fakes.receiver import Answer, Got, Receiver
from tests.support.notices import SECRET, Board

TOO_MANY = Answer(429, b"slow down", {"Retry-After": "100"})


def id_of(got: Got) -> str:
    found: str = json.loads(got.body)["id"]
    return found


def ids(found: list[Got]) -> list[str]:
    return [id_of(one) for one in found]


@contextlib.asynccontextmanager
async def running(
    board: Board, url: str, folder: Path, accepts: NoticeFilter | None = None, timeout_seconds: float = 20.0
) -> AsyncIterator[WebhookReceiver]:
    """Yield the webhook of a hub process that ends without notice."""
    webhook, sender = board.webhook(url, folder, accepts=accepts, timeout_seconds=timeout_seconds)
    async with sender:
        yield webhook


async def known(board: Board, folder: Path) -> None:
    """Make the webhook known, so that it gets every later transition."""
    async with running(board, "http://127.0.0.1:9", folder) as webhook:
        await board.deliver(webhook)


async def test_transitions_arrive_in_order_and_once(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    async with Receiver.running() as server:
        async with running(board, server.url, tmp_path) as webhook:
            first = board.open()
            second = board.open(scope="east/m2/gpu/GPU-2")
            await board.deliver(webhook)
            assert webhook.stats.lag == 0
            worse = board.escalate(first)
            board.close(worse)
            await board.deliver(webhook)
            assert (webhook.stats.sent, webhook.stats.failures, webhook.stats.lag) == (4, 0, 0)
        async with running(board, server.url, tmp_path) as again:  # after a restart
            await board.deliver(again, seconds=120.0)
    expected = [f"{first.id}.opened", f"{second.id}.opened", f"{first.id}.escalated.critical", f"{first.id}.closed"]
    assert sorted(ids(server.got)[:2]) == sorted(expected[:2])
    assert ids(server.got)[2:] == expected[2:]
    assert server.got[0].headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert server.got[0].headers["user-agent"].startswith("gpufleet")
    assert {"gpufleet-timestamp", "gpufleet-signature"} <= server.got[0].headers.keys()


async def test_event_is_repeated_with_its_id_if_the_hub_is_killed(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    finding = board.open()

    def accept_and_kill(_: Got) -> Answer:
        board.registry.is_down = True  # the position of the accepted event is not stored
        return Answer()

    async with Receiver.running(accept_and_kill) as server:
        async with running(board, server.url, tmp_path) as webhook:
            await webhook.advance()
        board.registry.is_down = False
        board.clock.advance(60.0)
        async with running(board, server.url, tmp_path) as again:
            server.answer = lambda _: Answer()
            await board.deliver(again)
    assert ids(server.got) == [f"{finding.id}.opened"] * 2
    first, second = (one.headers for one in server.got)
    assert int(second["gpufleet-timestamp"]) - int(first["gpufleet-timestamp"]) == 60
    assert first["gpufleet-signature"] != second["gpufleet-signature"]


async def test_new_webhook_first_gets_the_open_findings(tmp_path: Path) -> None:
    board = Board()
    over, muted, found = (board.open(scope=f"east/m{number}/gpu/GPU-1") for number in range(3))
    board.close(over)
    board.acknowledge(muted, 3600.0)
    async with Receiver.running(lambda _: Answer(503)) as server:
        async with running(board, server.url, tmp_path) as webhook:
            await board.deliver(webhook)  # killed before the opening is delivered
        server.answer = lambda _: Answer()
        async with running(board, server.url, tmp_path) as again:
            await board.deliver(again)
            board.close(found)
            await board.deliver(again)
    assert set(ids(server.got[:-1])) == {f"{found.id}.opened"}
    assert ids(server.taken) == [f"{found.id}.opened", f"{found.id}.closed"]


async def test_failing_event_delays_only_its_finding(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    bad, good = board.open(), board.open(scope="east/m2/gpu/GPU-2")
    board.close(bad)
    board.close(good)
    receiver = Receiver.running(lambda got: Answer(500 if bad.id in id_of(got) else 200))
    async with receiver as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook)
        assert ids(server.taken) == [f"{good.id}.opened", f"{good.id}.closed"]
        assert (webhook.stats.position, webhook.stats.dead) == (0, 0)
        assert webhook.stats.failures > 1
        server.answer = lambda _: Answer()
        await board.deliver(webhook, seconds=20.0)
        assert (webhook.stats.position, webhook.stats.lag) == (4, 0)
    assert ids(server.taken)[2:] == [f"{bad.id}.opened", f"{bad.id}.closed"]


async def test_retry_after_is_respected(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    board.open()
    board.open(scope="east/m2/gpu/GPU-2")
    async with Receiver.running(lambda _: TOO_MANY) as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook)
        attempts = len(server.got)
        server.answer = lambda _: Answer()
        await board.deliver(webhook, seconds=90.0)
        assert len(server.got) == attempts <= 2
        await board.deliver(webhook, seconds=20.0)
        assert webhook.stats.sent == 2


async def test_rejected_event_is_a_dead_letter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    await known(board, tmp_path)
    bad, good = board.open(), board.open(scope="east/m2/gpu/GPU-2")
    receiver = Receiver.running(lambda got: Answer(400 if bad.id in id_of(got) else 200, b"no"))
    async with receiver as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook)
        assert (webhook.stats.dead, webhook.stats.sent, webhook.stats.lag) == (1, 1, 0)
    assert ids(server.taken) == [f"{good.id}.opened"]
    (file,) = (tmp_path / "dead").iterdir()
    assert json.loads(file.read_bytes())["id"] == f"{bad.id}.opened"
    assert str(file) in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("status_line", ["500 No", "400 No", "MARKER TOKEN"])
async def test_text_of_a_response_is_not_recorded(
    status_line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    board = Board()
    await known(board, tmp_path)
    board.open()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        answer = f"HTTP/1.1 {status_line}\r\nX-Note: MARKER\r\nContent-Length: 12\r\n\r\nMARKER TOKEN"
        writer.write(answer.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        url = f"http://{host}:{port}/PATH-SECRET?key=QUERY-SECRET"
        for receiver, sender in (board.webhook(url, tmp_path), board.alertmanager(url, tmp_path)):
            async with sender:
                await board.deliver(receiver)
            assert host in receiver.stats.last_error
            recorded = caplog.text + repr(receiver.stats)
            recorded += "".join(one.name + one.read_text() for one in (tmp_path / "dead").glob("*"))
            for secret in ("MARKER", "TOKEN", "PATH-SECRET", "QUERY-SECRET", SECRET):
                assert secret not in recorded


async def test_full_disk_does_not_stop_the_delivery(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    (tmp_path / "dead").write_bytes(b"")  # no folder can be created
    bad, good = board.open(), board.open(scope="east/m2/gpu/GPU-2")
    receiver = Receiver.running(lambda got: Answer(400 if bad.id in id_of(got) else 200))
    async with receiver as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook)
        assert (webhook.stats.dead, webhook.stats.lag) == (1, 0)
    assert ids(server.taken) == [f"{good.id}.opened"]


async def test_change_of_state_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpufleet.hub.notify")
    board = Board()
    await known(board, tmp_path)
    bad = board.open()
    receiver = Receiver.running(lambda got: Answer(500 if bad.id in id_of(got) else 200))
    async with receiver as server, running(board, server.url, tmp_path) as webhook:
        for number in range(20):
            board.open(scope=f"east/n{number}")
            await board.deliver(webhook, seconds=20.0)
        assert webhook.stats.failures > 10
        assert [one.levelname for one in caplog.records] == ["WARNING"]
        server.answer = lambda _: Answer()
        await board.deliver(webhook, seconds=2 * QUIET_SECONDS)
        assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]
        assert webhook.stats.last_error == ""


async def test_many_dead_letters_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    await known(board, tmp_path)
    for number in range(20):
        board.open(scope=f"east/n{number}")
    async with Receiver.running(lambda _: Answer(400)) as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook, seconds=60.0)
        assert (webhook.stats.dead, webhook.stats.lag) == (20, 0)
    assert [one.levelname for one in caplog.records] == ["ERROR"]


async def test_lag_counts_every_pending_transition(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    for number in range(MAX_PENDING + 500):
        board.open(scope=f"east/n{number}")
    async with Receiver.running(lambda _: TOO_MANY) as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook)
        assert webhook.stats.lag == MAX_PENDING + 500
        board.open()
        await board.deliver(webhook)
        assert webhook.stats.lag == MAX_PENDING + 501


async def test_event_that_fails_alone_is_given_up(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    bad = board.open()
    receiver = Receiver.running(lambda got: Answer(500 if bad.id in id_of(got) else 200))
    async with receiver as server, running(board, server.url, tmp_path) as webhook:
        for number in range(int(ALONE_SECONDS / 10) + 20):
            board.open(scope=f"east/n{number}")
            await board.deliver(webhook, seconds=10.0)
        assert (webhook.stats.dead, webhook.stats.lag) == (1, 0)
        board.close(bad)
        server.answer = lambda _: Answer()
        await board.deliver(webhook)
    assert ids(server.taken)[-1] == f"{bad.id}.closed"


@pytest.mark.parametrize("status", [401, 404, 302])
async def test_wrong_address_or_credentials_lose_nothing(status: int, tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    board.open()
    answer = Answer(status, b"no", {"Location": "/elsewhere"})
    async with Receiver.running(lambda _: answer) as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook, seconds=60.0)
        assert {one.path for one in server.got} == {"/"}  # the redirect is not followed
        assert (webhook.stats.dead, webhook.stats.lag) == (0, 1)
        server.answer = lambda _: Answer()
        await board.deliver(webhook, seconds=20.0)
        assert (webhook.stats.sent, webhook.stats.lag, webhook.stats.last_error) == (1, 0, "")


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize("serve", [_reset, _hang])
async def test_connection_without_response_is_retried(serve: Serve, tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    board.open()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        async with running(board, f"http://{host}:{port}", tmp_path, timeout_seconds=0.1) as webhook:
            await board.deliver(webhook, seconds=1.5)
            assert webhook.stats.failures >= 2
            assert (webhook.stats.sent, webhook.stats.dead, webhook.stats.lag) == (0, 0, 1)


async def test_endless_response_is_read_in_part(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    board.open()
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        writer.close()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        async with running(board, f"http://{host}:{port}", tmp_path) as webhook:
            await board.deliver(webhook)
            assert (webhook.stats.sent, webhook.stats.lag) == (1, 0)
        await asyncio.wait_for(closed.wait(), 60)


async def test_finding_is_notified_again_after_its_acknowledgement(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    async with Receiver.running() as server:
        async with running(board, server.url, tmp_path) as webhook:
            finding = board.open()
            await board.deliver(webhook)
            board.acknowledge(finding, 600.0)
            until = board.now + 600 * 10**9
            worse = board.escalate(finding)
            await board.deliver(webhook, seconds=300.0)
            assert ids(server.got) == [f"{finding.id}.opened"]
        board.clock.advance(400.0)  # it ends while the hub is down
        for _ in range(2):
            async with running(board, server.url, tmp_path) as again:
                await board.deliver(again, seconds=2 * REMIND_SECONDS)
        async with running(board, server.url, tmp_path) as again:
            board.close(worse)
            await board.deliver(again)
    assert ids(server.got)[1:] == [f"{finding.id}.opened.{until}", f"{finding.id}.closed"]
    assert json.loads(server.got[1].body)["data"]["severity"] == "critical"


async def test_finding_within_a_silence_is_not_notified(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    silence = board.silence(3600.0, scope="east/m1")
    async with Receiver.running() as server, running(board, server.url, tmp_path) as webhook:
        finding, lasting = board.open(), board.open("gpu.hung")
        await board.deliver(webhook, seconds=60.0)
        board.close(finding)
        await board.deliver(webhook, seconds=60.0)
        assert (server.got, webhook.stats.lag) == ([], 0)
        board.registry.end_silence(silence.id, board.now)
        await board.deliver(webhook, seconds=2 * REMIND_SECONDS)
    assert [id_.startswith(f"{lasting.id}.opened.") for id_ in ids(server.got)] == [True]


async def test_opening_stored_after_its_silence_is_notified(tmp_path: Path) -> None:
    """The registry stores an opening seconds after its time: the end of a silence can be handled in between."""
    board = Board()
    await known(board, tmp_path)
    async with Receiver.running() as server, running(board, server.url, tmp_path) as webhook:
        other = board.open()
        await board.deliver(webhook, seconds=REMIND_SECONDS)
        board.acknowledge(other, 20.0)
        board.silence(20.0, scope="east/m2")
        opened_at = board.now
        board.clock.advance(30.0)
        server.answer = lambda _: Answer(503)  # the reminder of the other finding stays pending
        await board.deliver(webhook, seconds=REMIND_SECONDS)
        late = board.open(scope="east/m2/gpu/GPU-2", at=opened_at)
        await board.deliver(webhook, seconds=10.0)
        server.answer = lambda _: Answer()
        await board.deliver(webhook, seconds=2 * REMIND_SECONDS)
    assert len(server.taken) == 3
    assert f"{late.id}.opened" in ids(server.taken)


async def test_finding_muted_during_an_outage_is_not_notified(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    async with Receiver.running(lambda _: Answer(503)) as server, running(board, server.url, tmp_path) as webhook:
        muted, closed = board.open(), board.open("gpu.hung")
        await board.deliver(webhook)
        board.acknowledge(muted, 600.0)
        board.acknowledge(closed, 600.0)
        board.close(closed)
        server.answer = lambda _: Answer()
        await board.deliver(webhook, seconds=30.0)
        assert ids(server.taken) == [f"{closed.id}.closed"]
        assert (webhook.stats.dead, webhook.stats.lag) == (0, 0)
        await board.deliver(webhook, seconds=600.0 + 2 * REMIND_SECONDS)
    assert [id_.startswith(f"{muted.id}.opened.") for id_ in ids(server.taken)] == [False, True]


async def test_webhook_gets_only_selected_findings(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    accepts = NoticeFilter(min_severity=Severity.CRITICAL)
    async with Receiver.running() as server, running(board, server.url, tmp_path, accepts) as webhook:
        board.open("node.missing", "east/m1")
        finding = board.open()
        board.close(board.escalate(finding))
        await board.deliver(webhook)
        assert webhook.stats.lag == 0
    assert ids(server.got) == [f"{finding.id}.escalated.critical", f"{finding.id}.closed"]


async def test_outage_of_the_registry_is_retried(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    async with Receiver.running() as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook)
        board.open()
        board.registry.is_down = True
        await board.deliver(webhook, seconds=60.0)
        assert (server.got, webhook.stats.last_error) == ([], "the registry is down")
        board.registry.is_down = False
        await board.deliver(webhook, seconds=20.0)
        assert webhook.stats.sent == 1


async def test_unreadable_secret_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    await known(board, tmp_path)
    board.open()
    file = tmp_path / "secret"
    async with Receiver.running() as server:
        webhook, sender = board.webhook(server.url, tmp_path, secret=TokenFile(str(file)).token)
        async with sender:
            await board.deliver(webhook)
            assert (server.got, webhook.stats.lag) == ([], 1)
            assert caplog.text.count("the token cannot be read") == 1  # logged once, not for each attempt
            file.write_text(SECRET)
            await board.deliver(webhook, seconds=20.0)
            assert webhook.stats.sent == 1


async def test_receiver_that_is_down_gets_few_requests(tmp_path: Path) -> None:
    board = Board()
    await known(board, tmp_path)
    for number in range(20):
        board.open(scope=f"east/n{number}")
    async with Receiver.running(lambda _: Answer(503)) as server, running(board, server.url, tmp_path) as webhook:
        await board.deliver(webhook, seconds=60.0)
        assert len(server.got) <= CONNECTIONS + 60 / MAX_SECONDS
        server.answer = lambda _: Answer()
        await board.deliver(webhook, seconds=MAX_SECONDS)
        assert (webhook.stats.sent, webhook.stats.lag) == (20, 0)


async def test_backlog_larger_than_memory_is_delivered_in_order(tmp_path: Path) -> None:
    board = Board()
    first = board.open()
    for number in range(MAX_PENDING + 49):
        board.clock.advance(0.001)
        board.open(scope=f"east/n{number}")
    async with Receiver.running() as server, running(board, server.url, tmp_path) as webhook:
        await webhook.advance()
        board.close(first)
        await board.deliver(webhook, seconds=60.0)
    found = ids(server.got)
    assert len(set(found)) == len(found) == MAX_PENDING + 51
    assert found.index(f"{first.id}.opened") < found.index(f"{first.id}.closed")
