"""Client session: the proxy of the environment."""

import asyncio

import pytest

from gpufleet.delivery.post import HubClient
from gpufleet.delivery.session import environment_proxy
from tests.support.waiting import PATIENCE

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://hub.example:8470/v1/batches", PROXY),
        ("http://hub.example/v1/batches", None),
        ("https://127.0.0.1:8470", None),
        ("https://[::1]:8470", None),
        ("https://localhost", None),
        ("https://relay.gpufleet.svc:8470", None),
        ("https://[2001:db8::1]:8470", None),
        ("https://other.example:8470", None),
        ("https://other.example", PROXY),
    ],
)
def test_proxy_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "localhost,.svc,2001:db8::1,other.example:8470")
    assert environment_proxy(url) == proxy


async def test_batch_is_posted_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(4)
        content = b'{"status": "accepted"}'
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    monkeypatch.setenv("HTTP_PROXY", f"http://{host}:{port}")
    monkeypatch.setenv("NO_PROXY", "")
    async with server, HubClient("http://hub.invalid:8470", name="test", timeout_seconds=5 * PATIENCE) as client:
        answer = await client.post(b"body")
    assert answer.status == 200
    assert heads[0].startswith(b"POST http://hub.invalid:8470/v1/batches HTTP/1.1\r\n")
