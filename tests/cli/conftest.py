"""Fake driver, and a server with the snapshot of an agent."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.codecs.snapshot_json import encode_snapshot
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario
from tests.support.snapshots import example_snapshot


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml(tmp_path, Scenario.healthy(8))


@pytest.fixture
def agent_pages() -> Iterator[dict[str, tuple[int, bytes]]]:
    """Path to (status, body) of a loopback server. The key `url` has its base URL."""
    pages: dict[str, tuple[int, bytes]] = {"/v1/snapshot": (200, encode_snapshot(example_snapshot()))}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = pages.get(self.path, (404, b'{"status":404,"detail":"there is nothing at this path"}'))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        pages["url"] = (0, f"http://127.0.0.1:{server.server_address[1]}".encode())
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield pages
        server.shutdown()
        thread.join()


@pytest.fixture
def agent_url(agent_pages: dict[str, tuple[int, bytes]]) -> str:
    return agent_pages["url"][1].decode()
