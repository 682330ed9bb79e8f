"""Idle, slow and stalled connections: a good client is served beside them, and descriptors are released."""

import contextlib
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.web.protocol import HEAD_SECONDS, LINGER_SECONDS, STALL_SECONDS
from gpufleet.wiring import agent, hub
from tests.security.daemons import Daemon, under_attack
from tests.support.profiles import examples

LIMITS = {"hub": hub.CONNECTIONS, "agent": agent.CONNECTIONS}
"""Connections that a daemon accepts at once."""

SOME = examples(400, 5_000)
"""Connections of a kind that is not the one that exceeds the limit."""

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def above_limit(daemon: Daemon) -> int:
    """Return a number of connections above the daemon's limit; fewer where this process may not open so many."""
    return min(LIMITS[daemon.kind] + 400, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)


@contextlib.contextmanager
def connections(daemon: Daemon, count: int, content: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections that send this and nothing more, without any handshake.

    At a daemon with TLS they come from another address than the good client's: unfinished handshakes have a lower
    limit than connections, and displace those of their own address.
    """
    source = "127.0.0.2" if daemon.tls else "127.0.0.1"
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", daemon.port), timeout=20, source_address=(source, 0))
            stack.enter_context(one)
            with contextlib.suppress(ConnectionError):
                one.sendall(content)
            opened.append(one)
        yield opened


def drip(connection: socket.socket, piece: bytes, seconds: float) -> None:
    """Send a piece five times a second until the other side closes; fail if it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    connection.settimeout(0.2)
    while True:
        assert time.monotonic() < deadline, f"the connection lives on after {seconds} s"
        try:
            connection.sendall(piece)
            if connection.recv(65_536) == b"":
                return
        except TimeoutError:
            continue
        except OSError:
            return


def test_good_client_is_served_beside_thousands_of_connections(daemon: Daemon) -> None:
    with under_attack(daemon), connections(daemon, above_limit(daemon)):
        daemon.answers_well()


@pytest.mark.parametrize(
    "content", [HALF, b"\r\n", b"\x16\x03\x01\x02\x00\x01"], ids=["half a head", "an empty line", "half a hello"]
)
def test_good_client_is_served_beside_unfinished_requests(daemon: Daemon, content: bytes) -> None:
    with under_attack(daemon), connections(daemon, SOME, content):
        daemon.answers_well()


def test_used_connection_is_not_displaced_by_idle_ones(plain: Daemon) -> None:
    with plain.connect() as used:

        def use() -> None:
            used.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            with used.makefile("rb") as answer:  # head and body may come apart
                assert answer.readline().startswith(b"HTTP/1.1 200")
                head = dict(line.lower().split(b": ", 1) for line in iter(answer.readline, b"\r\n"))
                assert answer.read(int(head[b"content-length"]))

        use()
        with connections(plain, above_limit(plain)):
            pass
        use()


def body_after_the_answer(daemon: Daemon) -> None:
    with daemon.connect() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200")
        drip(slow, b"y", LINGER_SECONDS + 10)


def a_slow_head(daemon: Daemon) -> None:
    with daemon.connect() as slow:
        slow.sendall(HALF)
        drip(slow, b"y", HEAD_SECONDS + 10)


def empty_lines(daemon: Daemon) -> None:
    with daemon.connect() as slow:
        drip(slow, b"\r\n", HEAD_SECONDS + 10)


def empty_lines_after_an_answer(daemon: Daemon) -> None:
    with daemon.connect() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200")
        drip(slow, b"\r\n", HEAD_SECONDS + 10)


def a_slow_hello(daemon: Daemon) -> None:
    with socket.create_connection(("127.0.0.1", daemon.port)) as slow:
        drip(slow, b"\x16\x03\x01\x02\x00", HEAD_SECONDS + 10)


def taking_no_answers(daemon: Daemon) -> None:
    question = f"GET {daemon.guarded} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {daemon.token}\r\n\r\n".encode()
    deadline = time.monotonic() + 2 * STALL_SECONDS + 10
    with daemon.connect() as stalled:
        stalled.settimeout(1)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while True:
                assert time.monotonic() < deadline, "a client that reads nothing is still connected"
                with contextlib.suppress(TimeoutError):
                    stalled.sendall(question)


def test_slow_clients_are_disconnected(daemon_of: Callable[[str, bool], Daemon]) -> None:
    """All ways at a plain hub and at an agent with TLS, in the same seconds."""
    ways = [
        *(a_slow_head, empty_lines, empty_lines_after_an_answer, a_slow_hello, taking_no_answers),
        body_after_the_answer,
    ]
    first, second = daemon_of("hub", False), daemon_of("agent", True)
    with under_attack(first), under_attack(second), ThreadPoolExecutor(2 * len(ways)) as pool:
        for done in [pool.submit(way, daemon) for way in ways for daemon in (first, second)]:
            done.result()


def test_sender_of_a_too_large_body_can_read_the_answer(
    daemon_of: Callable[[str, bool], Daemon],
) -> None:
    for secure in (False, True):
        hub = daemon_of("hub", secure)
        for _ in range(5):
            reply = hub.ask("/v1/allocations/x", hub.token, "PUT", bytes(4 << 20))
            assert (reply.status, reply.error) == (413, "too_large")
