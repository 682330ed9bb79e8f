"""Metrics page over vsock, like an exporter behind a forwarder: every request gets /etc/page.

It does not use `http.server`, as its import takes two seconds on an emulated processor.
"""

import socket
import sys
import threading
from pathlib import Path

PORT = 9400
BACKLOG = 64


def serve(connection: socket.socket) -> None:
    """Answer requests until the client closes the connection or requests that."""
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
