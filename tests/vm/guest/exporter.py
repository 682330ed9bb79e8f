"""A page of metrics over vsock, as an exporter behind a forwarder serves it: every request gets /etc/page."""

import socket
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

PORT = 9400


class Page(BaseHTTPRequestHandler):
    """Answers each request with the page."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        page = Path("/etc/page").read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def address_string(self) -> str:
        """Name the peer; the base class knows IP addresses only."""
        return str(self.client_address)


class VsockServer(socketserver.ThreadingTCPServer):
    """The standard server, on AF_VSOCK."""

    address_family = socket.AF_VSOCK
    daemon_threads = True
    request_queue_size = 64


server = VsockServer((int(sys.argv[1]), PORT), Page)  # type: ignore[arg-type]  # an id, and no host
print("listens", flush=True)
server.serve_forever()
