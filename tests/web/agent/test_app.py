"""HTTP endpoints of the agent, over a real socket."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator

import aiohttp
import pytest

from gpufleet.agent.publish.pages import PageForm
from gpufleet.codecs.snapshot_json import decode_snapshot
from gpufleet.model.errors import GpufleetError
from gpufleet.model.snapshot import Snapshot
from gpufleet.web.agent import AgentApp
from gpufleet.web.server import serve
from tests.support.snapshots import example_snapshot


class FakeSource:
    def __init__(self) -> None:
        self.document: Snapshot = example_snapshot()
        self.requested: list[PageForm] = []
        self.text = "x 1\n"
        self.missing: tuple[str, ...] = ()

    async def snapshot(self) -> Snapshot:
        return self.document

    async def page(self, form: PageForm) -> bytes:
        self.requested.append(form)
        page = f"{self.text}# EOF\n" if form.openmetrics else self.text
        return gzip.compress(page.encode()) if form.gzip else page.encode()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
async def url(source: FakeSource) -> AsyncIterator[str]:
    async with serve(AgentApp(source), "127.0.0.1", 0, connections=64, stop_seconds=2) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_metrics_are_the_bytes_of_the_source(url: str, client: aiohttp.ClientSession, source: FakeSource) -> None:
    async with client.get(f"{url}/metrics") as answer:
        assert (answer.status, await answer.read()) == (200, b"x 1\n")
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    source.text = "x 2\n"
    async with client.get(f"{url}/metrics?collect[]=all") as answer:
        assert await answer.read() == b"x 2\n"


async def test_metrics_page_follows_accept_and_accept_encoding(url: str, source: FakeSource) -> None:
    openmetrics = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        async with session.get(f"{url}/metrics", headers={**openmetrics, "Accept-Encoding": "gzip"}) as answer:
            assert gzip.decompress(await answer.read()) == b"x 1\n# EOF\n"
            assert answer.headers["Content-Encoding"] == "gzip"
            assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
            assert answer.headers["Vary"] == "Accept, Accept-Encoding"
        async with session.get(f"{url}/metrics", headers={"Accept-Encoding": "gzip;q=0"}) as answer:
            assert await answer.read() == b"x 1\n"
            assert "Content-Encoding" not in answer.headers
            assert answer.headers["Vary"] == "Accept, Accept-Encoding"
        async with session.head(f"{url}/metrics", headers={**openmetrics, "Accept-Encoding": "identity"}) as answer:
            assert (answer.headers["Content-Length"], await answer.read()) == (str(len("x 1\n# EOF\n")), b"")
    assert source.requested == [PageForm(openmetrics=True, gzip=True), PageForm(), PageForm(openmetrics=True)]


async def test_repeated_header_is_joined_into_one_list(url: str, source: FakeSource) -> None:
    headers = [("Accept", "text/plain;q=0.1"), ("Accept", "application/openmetrics-text"), ("Accept-Encoding", "br")]
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        await session.get(f"{url}/metrics", headers=headers)
    assert source.requested == [PageForm(openmetrics=True)]


async def test_snapshot_is_the_newest(url: str, client: aiohttp.ClientSession, source: FakeSource) -> None:
    for _ in range(2):
        async with client.get(f"{url}/v1/snapshot") as answer:
            assert answer.headers["Content-Type"] == "application/json"
            assert decode_snapshot(await answer.read()) == source.document
        source.document = example_snapshot()


async def test_ready_names_what_is_missing(url: str, client: aiohttp.ClientSession, source: FakeSource) -> None:
    async with client.get(f"{url}/readyz") as answer:
        assert (answer.status, await answer.json()) == (200, {"ready": True, "missing": []})
    source.missing = ("nvml/fast",)
    async with client.get(f"{url}/readyz") as answer:
        assert (answer.status, await answer.json()) == (503, {"ready": False, "missing": ["nvml/fast"]})
    async with client.get(f"{url}/healthz") as answer:
        assert answer.status == 200


async def test_root_page_lists_the_endpoints(url: str, client: aiohttp.ClientSession) -> None:
    async with client.get(url) as answer:
        page = await answer.text()
    assert all(path in page for path in ("/metrics", "/v1/snapshot", "/healthz", "/readyz"))


@pytest.mark.parametrize("token", [None, "secret"])
async def test_page_needs_no_token_and_its_data_does(source: FakeSource, token: str | None) -> None:
    app = AgentApp(source, None if token is None else lambda: token)
    async with serve(app, "127.0.0.1", 0, connections=64, stop_seconds=2) as port, aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{port}"
        async with client.get(f"{url}/ui") as answer:  # redirected
            document = await answer.text()
        assert (answer.status, answer.url.path) == (200, "/ui/")
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
        assert f'data-access="{"open" if token is None else "token"}" data-site="agent"' in document
        assert source.document.node.name not in document
        script = re.findall(r'src="([^"]+)"', document)[0]
        async with client.head(f"{url}/ui/{script}") as answer:
            assert (answer.status, answer.headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
        async with client.get(f"{url}/v1/snapshot") as answer:
            assert answer.status == (200 if token is None else 401)
        async with client.get(f"{url}/uix") as answer:
            assert answer.status == (404 if token is None else 401)


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "//metrics", "/v1", "/%00"])
async def test_unknown_path_returns_404_as_json(url: str, client: aiohttp.ClientSession, path: str) -> None:
    async with client.get(f"{url}{path}") as answer:
        assert answer.status == 404
        assert (await answer.json())["status"] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_get_and_head_are_allowed(url: str, client: aiohttp.ClientSession, method: str) -> None:
    async with client.request(method, f"{url}/metrics") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_head_has_content_length_and_no_body(url: str, client: aiohttp.ClientSession) -> None:
    async with client.head(f"{url}/metrics", headers={"Accept-Encoding": "identity"}) as answer:
        assert (answer.status, answer.headers["Content-Length"], await answer.read()) == (200, "4", b"")


async def test_oversized_request_head_returns_431(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_address_in_use_is_reported(url: str) -> None:
    port = int(url.rpartition(":")[2])
    with pytest.raises(GpufleetError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
        async with serve(AgentApp(FakeSource()), "127.0.0.1", port, connections=64, stop_seconds=2):
            pass


async def test_unavailable_address_is_reported_as_such() -> None:
    with pytest.raises(GpufleetError) as caught:
        async with serve(AgentApp(FakeSource()), "192.0.2.1", 0, connections=64, stop_seconds=2):
            pass
    assert "192.0.2.1:0: Cannot assign requested address" in str(caught.value)


async def test_errors_are_json_documents(url: str, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{url}/x") as answer:
        assert json.loads(await answer.text()) == {"status": 404, "detail": "no such path"}


async def test_unknown_parameter_of_the_snapshot_is_400(url: str, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{url}/v1/snapshot?device=0") as answer:
        assert answer.status == 400
        assert "device" in (await answer.json())["detail"]
