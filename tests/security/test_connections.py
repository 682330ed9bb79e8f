"""Connections that hold on to something: a good client is served beside them, and what they took comes back."""

import contextlib
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.web.protocol import HEAD_SECONDS, LINGER_SECONDS, STALL_SECONDS
from tests.security.daemons import Daemon, under_attack

MANY = 5_000
"""Connections at once; fewer where this process may not open so many."""

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def many() -> int:
    return min(MANY, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)


@contextlib.contextmanager
def crowd(daemon: Daemon, count: int, say: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections that say this and nothing more, without any handshake.

    At a daemon that speaks TLS they come from another address than the good client's: handshakes that never end are
    bounded more closely than connections, and crowd out those of their own address.
    """
    source = "127.0.0.2" if daemon.tls else "127.0.0.1"
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", daemon.port), timeout=20, source_address=(source, 0))
            stack.enter_context(one)
            with contextlib.suppress(ConnectionError):
                one.sendall(say)
            opened.append(one)
        yield opened


def drip(connection: socket.socket, piece: bytes, seconds: float) -> None:
    """Send a piece every now and then until the other side closes, which it does within so many seconds."""
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


@pytest.mark.parametrize(
    "say",
    [b"", HALF, b"\r\n", b"\x16\x03\x01\x02\x00\x01"],
    ids=["idle", "half a head", "an empty line", "half a hello"],
)
def test_thousands_of_connections_that_ask_nothing(daemon: Daemon, say: bytes) -> None:
    with under_attack(daemon), crowd(daemon, many(), say):
        for _ in range(3):
            daemon.answers_well()


def test_a_connection_that_is_used_outlives_a_crowd_that_says_nothing(plain: Daemon) -> None:
    with plain.connect() as used:
        for _ in range(2):
            used.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            with used.makefile("rb") as answer:  # head and body may come apart
                assert answer.readline().startswith(b"HTTP/1.1 200")
                head = dict(line.lower().split(b": ", 1) for line in iter(answer.readline, b"\r\n"))
                assert answer.read(int(head[b"content-length"]))
            with crowd(plain, many()):
                pass


def test_the_body_of_a_question_that_is_answered_is_not_waited_for(daemon: Daemon) -> None:
    with under_attack(daemon), daemon.connect() as slow:
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
    with daemon.connect() as deaf:
        deaf.settimeout(1)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while True:
                assert time.monotonic() < deadline, "who takes nothing is still connected"
                with contextlib.suppress(TimeoutError):
                    deaf.sendall(question)


@pytest.mark.parametrize("of", [("hub", False), ("agent", True)], ids=["hub", "agent-tls"])
def test_clients_that_take_their_time(daemon_of: Callable[[str, bool], Daemon], of: tuple[str, bool]) -> None:
    daemon = daemon_of(*of)
    ways = [a_slow_head, empty_lines, empty_lines_after_an_answer, a_slow_hello, taking_no_answers]
    with under_attack(daemon), ThreadPoolExecutor(len(ways)) as pool:
        for done in [pool.submit(way, daemon) for way in ways]:
            done.result()


def test_the_answer_to_a_body_that_is_too_large_is_read_by_who_sends_it(
    daemon_of: Callable[[str, bool], Daemon],
) -> None:
    for secure in (False, True):
        hub = daemon_of("hub", secure)
        for _ in range(5):
            reply = hub.ask("/v1/allocations/x", hub.token, "PUT", bytes(4 << 20))
            assert (reply.status, reply.error) == (413, "too_large")
