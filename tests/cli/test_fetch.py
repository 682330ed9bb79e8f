"""HTTP client of the commands: where a token is sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpufleet.cli.fetch import Access, get


@contextmanager
def recording_server() -> Iterator[tuple[str, list[str | None]]]:
    """Yield the URL of a server and the `Authorization` headers that it received."""
    received: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", received
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_token_for_this_machine_is_sent_to_no_proxy(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("gpf_secret\n")
    token.chmod(0o600)
    with recording_server() as (proxy, intercepted), recording_server() as (hub, received):
        monkeypatch.setenv(variable, proxy)
        get(hub, "/v1/nodes", Access(token_file=token))
    assert (received, intercepted) == (["Bearer gpf_secret"], [])
