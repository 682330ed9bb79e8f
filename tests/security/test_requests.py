"""Malformed, ambiguous and oversized requests: refused while a good client is served."""

import random

import pytest

from gpufleet.web.protocol import HEAD_BYTES, PIPELINED
from tests.security.daemons import Daemon, under_attack

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /healthz HTTP/1.1\r\nHost: x\r\n"

SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
"""Request that a second parser could find inside the message."""

AMBIGUOUS = {
    "length and chunked": b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\n" + SMUGGLED + b"0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + SMUGGLED,
    "a list of lengths": b"Content-Length: 0, 44\r\n\r\n" + SMUGGLED,
    "a length with a sign": b"Content-Length: +0\r\n\r\n" + SMUGGLED,
    "a length below zero": b"Content-Length: -1\r\n\r\n" + SMUGGLED,
    "a length of 65 bits": b"Content-Length: 36893488147419103232\r\n\r\n" + SMUGGLED,
    "a length in hexadecimal": b"Content-Length: 0x2c\r\n\r\n" + SMUGGLED,
    "chunked and identity": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "almost chunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a folded header": b"X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk without a size": b"Transfer-Encoding: chunked\r\n\r\n\r\n" + SMUGGLED,
    "a chunk of a size below zero": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + SMUGGLED,
    "a chunk of 65 bits": b"Transfer-Encoding: chunked\r\n\r\n1ffffffffffffffff\r\n" + SMUGGLED,
    "a chunk without its end": b"Transfer-Encoding: chunked\r\n\r\n1\r\nGET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
    "a bare line feed": b"X: y\nContent-Length: 44\r\n\r\n" + SMUGGLED,
    "a bare carriage return": b"X: y\rContent-Length: 44\r\n\r\n" + SMUGGLED,
    "a zero in a header": b"X: y\x00z\r\n\r\n" + SMUGGLED,
    "no name": b": y\r\n\r\n" + SMUGGLED,
    "no colon": b"Transfer-Encoding chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_message_is_refused(plain: Daemon, name: str) -> None:
    with under_attack(plain):
        answers = plain.send_raw(POST + AMBIGUOUS[name])
    assert answers.count(b"HTTP/1.1 ") <= 1, answers
    assert answers == b"" or answers.startswith(b"HTTP/1.1 4"), answers
    assert b"smuggled" not in answers


MALFORMED = {
    "noise": random.Random(3).randbytes(20_000) + b"\r\n\r\n",
    "lines": b"hello\r\n" * 5_000,
    "a hello of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
    "an invalid path": b"GET :// HTTP/1.1\r\nHost: x\r\n\r\n",
    "a path of bytes": b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    "a star": b"GET * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "a tunnel": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\nSSH-2.0-x\r\n",
    "a tunnel in a path": b"CONNECT /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + b"\x00" * 1000,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_is_refused(plain: Daemon, name: str) -> None:
    with under_attack(plain):
        answers = plain.send_raw(MALFORMED[name])
    assert answers == b"" or answers.startswith(b"HTTP/1.1 4"), answers


METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "M-SEARCH", "get"]
METHODS += ["G" * 1000, "G\tT", "É"]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method[:10])
def test_any_method_is_answered_without_5xx(plain: Daemon, method: str) -> None:
    with under_attack(plain):
        for path in ("/", "/healthz", plain.guarded, "/v1/batches", "/metrics", "/v1/allocations/x", "/none"):
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {plain.token}\r\n"
            )
            answer = plain.send_raw(head.encode() + b"Content-Length: 2\r\n\r\n{}")
            assert answer[9:12].isdigit(), (path, answer)
            assert int(answer[9:12]) < 500, (path, answer)
            assert method == "TRACE" or plain.token.encode() not in answer


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c", b"TLS/1.0", b"x" * 4000])
def test_upgrade_is_ignored(plain: Daemon, upgrade: bytes) -> None:
    with under_attack(plain):
        request = GET + b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n" + SMUGGLED
        with plain.connect() as connection:
            connection.sendall(request)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")


TOO_LARGE = {
    "a header": GET + b"X: " + b"y" * (1 << 20),
    "a header's name": GET + b"y" * (1 << 20),
    "a path": b"GET /" + b"y" * (1 << 20),
    "a query": b"GET /healthz?" + b"y=z&" * (1 << 18),
    "a method": b"G" * (1 << 20),
    "many headers": GET + b"a:b\r\n" * 200_000,
    "trailers": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200_000,
    "one trailer": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\na: " + b"y" * (8 << 20),
    "an extension of a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n1;x=" + b"y" * (8 << 20),
    "many small chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 500_000,
    "empty lines": b"\r\n" * 500_000,
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_oversized_request_is_aborted(daemon: Daemon, name: str) -> None:
    growth_mib = {"hub": 40, "agent": 12}[daemon.kind]  # same HTTP code; the hub also has a store in memory
    with under_attack(daemon, growth_mib=growth_mib):
        answers = daemon.send_raw(TOO_LARGE[name])
    assert b"HTTP/1.1 5" not in answers
    assert len(answers) < 1000


@pytest.mark.parametrize("size", [HEAD_BYTES - 1000, HEAD_BYTES + 1000])
def test_request_head_limit_is_as_documented(plain: Daemon, size: int) -> None:
    answer = plain.send_raw(GET + b"Connection: close\r\nX: " + b"y" * (size - 100) + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200" if size < HEAD_BYTES else b"HTTP/1.1 431"), answer


def test_pipelined_requests_are_bounded(daemon: Daemon) -> None:
    get = GET + b"\r\n"
    count = PIPELINED // 2
    with under_attack(daemon, growth_mib=20):
        answers = daemon.send_raw(get * count + GET + b"Connection: close\r\n\r\n")
        assert answers.count(b"HTTP/1.1 200") == count + 1
        for _ in range(20):
            assert daemon.send_raw(get * 50_000).count(b"HTTP/1.1 200") <= 2 * PIPELINED


def test_malformed_pipelined_request_raises_no_traceback(daemon: Daemon) -> None:
    request = f"GET {daemon.guarded} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {daemon.token}\r\n\r\n".encode()
    with under_attack(daemon):
        for _ in range(20):
            daemon.send_raw(request + b"\x00 nonsense\r\n\r\n")
    assert "Traceback" not in daemon.log


def test_malformed_requests_do_not_fill_the_log(plain: Daemon) -> None:
    before = len(plain.log)
    with under_attack(plain):
        for _ in range(100):
            plain.send_raw(MALFORMED["lines"])
            plain.send_raw(GET + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n")
            plain.request(plain.guarded, "wrong")
    assert len(plain.log) - before < 4_000
