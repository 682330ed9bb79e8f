"""HTTP methods of a path: HEAD, OPTIONS, and 405 with `Allow` (RFC 9110)."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gpufleet.config.hub import HubConfig, RelayConfig
from gpufleet.web.hub.access import ACCESS
from gpufleet.web.hub.http import PathMethods
from gpufleet.wiring.relay import running_relay
from tests.fakes.hub import FakeHub
from tests.support.waiting import PATIENCE
from tests.web.hub.site import running_site

READ = "GET, HEAD, OPTIONS"
Response = tuple[int, dict[str, str], bytes]


async def send(url: str, method: str) -> Response:
    def exchange() -> Response:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20 * PATIENCE) as answer:
                return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {name.lower(): value for name, value in error.headers.items()}, error.read()

    return await asyncio.to_thread(exchange)


async def test_head_has_no_body_and_405_lists_methods(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        for path in sorted({path for method, path in ACCESS if method == "GET"}):
            url = site.hub.url + path.replace("{cluster_id}", "local").replace("{path}", "x")
            got, head = await send(url, "GET"), await send(url, "HEAD")
            assert (head[0], head[2]) == (got[0], b""), path
            assert head[1]["content-type"] == got[1]["content-type"], path
            assert int(head[1]["content-length"]) > 0, path
            if path in ("/", "/healthz"):  # other pages contain the current time
                assert head[1]["content-length"] == str(len(got[2]))
        for path in sorted({path for _, path in ACCESS}):
            url = site.hub.url + path.replace("{cluster_id}", "local")
            own = {method for method, known in ACCESS if known == path}
            status, headers, body = await send(url, "OPTIONS")
            assert (status, body) == (204, b""), path
            assert set(headers["allow"].split(", ")) == own | {"OPTIONS"} | ({"HEAD"} if "GET" in own else set()), path
            refused = await send(url, "PATCH")
            assert (refused[0], refused[1]["allow"]) == (405, headers["allow"]), path
            assert b'"error":"method_not_allowed"' in refused[2]
        for path in ("/v1/batches", "/v1/metrics", "/v1/logs", "/api/v1/write"):
            for method in ("GET", "HEAD"):
                status, headers, _ = await send(site.hub.url + path, method)
                assert (status, headers["allow"]) == (405, "POST, OPTIONS"), path
        for method in ("HEAD", "OPTIONS", "PATCH"):
            assert (await send(f"{site.hub.url}/nowhere", method))[0] == 404


async def test_relay_lists_its_methods_too(tmp_path: Path) -> None:
    async with FakeHub.running() as hub:
        config = HubConfig(listen="127.0.0.1:0", state=str(tmp_path), relay=RelayConfig(to=hub.url))
        async with running_relay(config) as relay:
            for path in ("/healthz", "/metrics", "/v1/senders"):
                status, headers, body = await send(relay.url + path, "HEAD")
                assert (status, body) == (200, b"")
                assert int(headers["content-length"]) > 0
                assert (await send(relay.url + path, "DELETE"))[1]["allow"] == READ
            assert (await send(f"{relay.url}/v1/batches", "HEAD"))[:1] == (405,)
            assert (await send(f"{relay.url}/v1/batches", "OPTIONS"))[1]["allow"] == "POST, OPTIONS"
            assert (await send(f"{relay.url}/nowhere", "OPTIONS"))[0] == 404


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/x", ("GET", "HEAD", "OPTIONS")),
        ("/v1/x/a b", ("GET", "HEAD", "PUT", "OPTIONS")),
        ("/v1/x/more", ("POST", "OPTIONS")),
        ("/v1/x/", ()),
        ("/v1/x/a/b", ()),
        ("/v1/{id}", ()),
        ("*", ()),
    ],
)
def test_methods_of_a_path(path: str, methods: tuple[str, ...]) -> None:
    routes = [("PUT", "/v1/x/{id}"), ("GET", "/v1/x/{id}"), ("GET", "/v1/x"), ("POST", "/v1/x/more")]
    assert PathMethods(routes).of(path) == methods
