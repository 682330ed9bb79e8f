"""A page of metrics over vsock, as an exporter behind a forwarder serves it: every request gets /etc/page.

`http.server` would do, but importing it takes two seconds on an emulated processor.
"""

import socket
import sys
import threading
from pathlib import Path

PORT = 9400
BACKLOG = 64


def serve(connection: socket.socket) -> None:
    """Answer one request after another until the client wants or makes an end."""
    closes = False
    with connection, connection.makefile("rb") as lines:
        while not closes and lines.readline():
            while (line := lines.readline()) not in (b"\r\n", b""):
                closes |= line.lower().split() == [b"connection:", b"close"]
            page = Path("/etc/page").read_bytes()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(page)}\r\n\r\n"
            connection.sendall(head.encode() + page)


with socket.socket(socket.AF_VSOCK) as server:
    server.bind((int(sys.argv[1]), PORT))
    server.listen(BACKLOG)
    print("listens", flush=True)
    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
