"""Server of exporter pages on loopback whose responses can be changed between requests."""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Thread

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class PageServer:
    """Response of the server, and the requests received.

    Attributes:
        page: the body, or a function that returns it.
        status, headers: of the response.
        requests: headers of each request, in lower case.
        chunked: whether the body is sent in chunks, without its length.
    """

    def __init__(self, page: bytes | Callable[[], bytes]) -> None:
        self.page = page
        self.status = 200
        self.headers = {"content-type": TEXT}
        self.requests: list[dict[str, str]] = []
        self.chunked = False

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """Return the request handler class."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.requests.append({name.lower(): value for name, value in self.headers.items()})
                body = server.page() if callable(server.page) else server.page
                self.send_response(server.status)
                for name, value in server.headers.items():
                    self.send_header(name, value)
                self.send_header("connection", "close")
                self.send_header(
                    *(("transfer-encoding", "chunked") if server.chunked else ("content-length", str(len(body))))
                )
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if server.chunked else body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        return Handler


class _UnixServer(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[object, tuple[str, int]]:  # type: ignore[override]
        request, _ = super().get_request()
        return request, ("unix", 0)


@contextlib.contextmanager
def serving(
    page: bytes | Callable[[], bytes], socket: Path | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[PageServer, str]]:
    """Serve pages; yield the server and its address (a URL, or the address of a Unix socket)."""
    pages = PageServer(page)
    if socket is None:
        http = ThreadingHTTPServer(("127.0.0.1", 0), pages.handler())
        if tls is not None:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        scheme = "https" if tls is not None else "http"
        server, address = http, f"{scheme}://127.0.0.1:{http.server_address[1]}/metrics"
    else:
        server, address = _UnixServer(str(socket), pages.handler()), f"unix://{socket}"  # type: ignore[assignment]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield pages, address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
