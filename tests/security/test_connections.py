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
from gpufleet.wiring import hub, running
from tests.security.daemons import Daemon, under_attack
from tests.support.profiles import examples

LIMITS = {"hub": hub.CONNECTIONS, "agent": running.CONNECTIONS}
"""Connections that a daemon accepts at once."""

UNFINISHED = examples(400, 5_000)
"""Count of unfinished requests: below the connection limit."""

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def above_limit(daemon: Daemon) -> int:
    """Return a connection count above the daemon's limit, capped by the open file limit of this process."""
    return min(LIMITS[daemon.kind] + 400, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)


@contextlib.contextmanager
def connections(daemon: Daemon, count: int, content: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections that send `content` only, without a TLS handshake.

    With TLS they use another source address than the good client: unfinished handshakes have a lower limit than
    connections, and evict handshakes of the same address.
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
    """Send a piece five times a second until the daemon closes. Fail if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    connection.settimeout(0.2)
    while True:
        assert time.monotonic() < deadline, f"the connection is still open after {seconds} s"
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
    "content", [HALF, b"\r\n", b"\x16\x03\x01\x02\x00\x01"], ids=["partial head", "empty line", "partial client hello"]
)
def test_good_client_is_served_beside_unfinished_requests(daemon: Daemon, content: bytes) -> None:
    with under_attack(daemon), connections(daemon, UNFINISHED, content):
        daemon.answers_well()


def test_used_connection_is_not_displaced_by_idle_ones(plain: Daemon) -> None:
    with plain.connect() as used:

        def use() -> None:
            used.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            with used.makefile("rb") as answer:  # head and body may arrive separately
                assert answer.readline().startswith(b"HTTP/1.1 200")
                head = dict(line.lower().split(b": ", 1) for line in iter(answer.readline, b"\r\n"))
                assert answer.read(int(head[b"content-length"]))

        use()
        with connections(plain, above_limit(plain)):
            pass
        use()


def body_after_the_response(daemon: Daemon) -> None:
    with daemon.connect() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200")
        drip(slow, b"y", LINGER_SECONDS + 10)


def slow_head(daemon: Daemon) -> None:
    with daemon.connect() as slow:
        slow.sendall(HALF)
        drip(slow, b"y", HEAD_SECONDS + 10)


def empty_lines(daemon: Daemon) -> None:
    with daemon.connect() as slow:
        drip(slow, b"\r\n", HEAD_SECONDS + 10)


def empty_lines_after_a_response(daemon: Daemon) -> None:
    with daemon.connect() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(65_536).startswith(b"HTTP/1.1 200")
        drip(slow, b"\r\n", HEAD_SECONDS + 10)


def slow_client_hello(daemon: Daemon) -> None:
    with socket.create_connection(("127.0.0.1", daemon.port)) as slow:
        drip(slow, b"\x16\x03\x01\x02\x00", HEAD_SECONDS + 10)


def unread_responses(daemon: Daemon) -> None:
    request = f"GET {daemon.guarded} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {daemon.token}\r\n\r\n".encode()
    deadline = time.monotonic() + 2 * STALL_SECONDS + 10
    with daemon.connect() as stalled:
        stalled.settimeout(1)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while True:
                assert time.monotonic() < deadline, "a client that reads nothing is still connected"
                with contextlib.suppress(TimeoutError):
                    stalled.sendall(request)


def test_slow_clients_are_disconnected(daemon_of: Callable[[str, bool], Daemon]) -> None:
    """All attacks run in parallel against a plain hub and an agent with TLS."""
    attacks = [
        *(slow_head, empty_lines, empty_lines_after_a_response, slow_client_hello, unread_responses),
        body_after_the_response,
    ]
    first, second = daemon_of("hub", False), daemon_of("agent", True)
    with under_attack(first), under_attack(second), ThreadPoolExecutor(2 * len(attacks)) as pool:
        for done in [pool.submit(attack, daemon) for attack in attacks for daemon in (first, second)]:
            done.result()


def test_sender_of_a_too_large_body_receives_413(
    daemon_of: Callable[[str, bool], Daemon],
) -> None:
    for secure in (False, True):
        hub = daemon_of("hub", secure)
        for _ in range(5):
            reply = hub.request("/v1/allocations/x", hub.token, "PUT", bytes(4 << 20))
            assert (reply.status, reply.error) == (413, "too_large")
