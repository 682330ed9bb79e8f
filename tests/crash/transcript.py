"""Requests and responses of recorded connections, which show the acknowledged batches."""

from collections.abc import Iterable, Iterator

import msgspec

from gpufleet.codecs.bundle import BUNDLE_CONTENT_TYPE, BundleAnswer, unpack
from tests.crash.proxy import Exchange

BATCHES = "/v1/batches"


class Posted(msgspec.Struct, frozen=True):
    """Posted body, and the status of its response; 0 for none."""

    body: bytes
    status: int


class _Message(msgspec.Struct, frozen=True):
    first_line: str
    headers: dict[str, str]
    content: bytes


def posted(exchanges: Iterable[Exchange]) -> list[Posted]:
    """Return every body that was sent completely, with the status of its response."""
    return [one for exchange in exchanges for one in _of(exchange)]


def _of(exchange: Exchange) -> Iterator[Posted]:
    answers = list(_messages(bytes(exchange.response)))
    for number, request in enumerate(_messages(bytes(exchange.request))):
        if BATCHES not in request.first_line:
            continue
        answer = answers[number] if number < len(answers) else None
        status = int(answer.first_line.split()[1]) if answer else 0
        if request.headers.get("content-type") != BUNDLE_CONTENT_TYPE:
            yield Posted(request.content, status)
            continue
        bodies = unpack(request.content)
        if answer is None or status != 200:
            yield from (Posted(body, status) for body in bodies)
            continue
        each = msgspec.json.decode(answer.content, type=BundleAnswer).answers
        yield from (Posted(body, one.status) for body, one in zip(bodies, each, strict=True))


def _messages(data: bytes) -> Iterator[_Message]:
    """Yield each complete HTTP/1.1 message. Its length is given by Content-Length."""
    at = 0
    while (end := data.find(b"\r\n\r\n", at)) >= 0:
        first, *lines = data[at:end].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        at = end + 4 + int(headers.get("content-length", "0"))
        if at > len(data):
            return
        yield _Message(first, headers, data[end + 4 : at])
