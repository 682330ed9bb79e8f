"""Connections of a guest's vsock. The host's end is a Unix socket, after `CONNECT port` and `OK number`."""

import contextlib
import socket
import struct
from collections.abc import Callable

HEADER = struct.Struct("<QQIIIHHIII")
"""Packet header: ids and ports of source and destination, length, type, operation, flags, space, forwarded."""

REQUEST, RESPONSE, RESET, SHUTDOWN, DATA, CREDIT, CREDIT_REQUEST = range(1, 8)
HOST, STREAM = 2, 1
NO_MORE_RECEIVE, NO_MORE_SEND = 1, 2
ROOM = 256 << 10
MAX_DATA = 3072
HELLO_BYTES = 32
FIRST_PORT = 1 << 30


class Connection:
    """Stream between a socket of this host and a port of the guest."""

    def __init__(self, sock: socket.socket, host_port: int, guest_port: int) -> None:
        self.socket, self.host_port, self.guest_port = sock, host_port, guest_port
        self.is_open = self.ended = False
        self.sent = self.forwarded = 0
        self.guest_room = self.guest_forwarded = 0
        self.out = bytearray()

    @property
    def credit(self) -> int:
        """Number of bytes that the guest can receive."""
        return self.guest_room - ((self.sent - self.guest_forwarded) & 0xFFFF_FFFF)


class Connections:
    """Connections of one guest. `send` queues packets for the guest."""

    def __init__(self, cid: int, path: str, send: Callable[[bytes], None]) -> None:
        self._cid, self._path, self._send = cid, path, send
        self._open: dict[tuple[int, int], Connection] = {}
        self._hellos: dict[socket.socket, bytearray] = {}
        self._next_port = FIRST_PORT

    def waiting(self) -> tuple[list[socket.socket], list[socket.socket]]:
        """Return the sockets to read from, and to write to."""
        every = self._open.values()
        reading = [one.socket for one in every if one.is_open and not one.ended and one.credit > 0]
        return [*reading, *self._hellos], [one.socket for one in every if one.out]

    def accept(self, sock: socket.socket) -> None:
        """Accept a client of this host, which then sends `CONNECT`."""
        sock.setblocking(False)
        self._hellos[sock] = bytearray()

    def readable(self, sock: socket.socket) -> None:
        """Read data of a client of this host."""
        if sock in self._hellos:
            self._hello(sock)
            return
        one = self._of(sock)
        if one is None:
            return
        try:
            data = sock.recv(min(one.credit, MAX_DATA))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            one.sent += len(data)
            self._packet(one, DATA, data)
        else:
            one.ended = True
            self._packet(one, SHUTDOWN, flags=NO_MORE_RECEIVE | NO_MORE_SEND)

    def writable(self, sock: socket.socket) -> None:
        """Write buffered data to a client of this host."""
        one = self._of(sock)
        if one is None:
            return
        try:
            done = sock.send(one.out)
        except BlockingIOError:
            return
        except OSError:
            self._drop(one, reset=True)
            return
        del one.out[:done]
        one.forwarded += done
        self._packet(one, CREDIT)

    def from_guest(self, packet: bytes) -> None:
        """Handle a packet of the guest."""
        _, _, guest_port, host_port, length, _, operation, flags, room, forwarded = HEADER.unpack_from(packet)
        one = self._open.get((host_port, guest_port))
        if one is None:
            if operation == REQUEST:
                one = self._dial(host_port, guest_port)
            elif operation != RESET:
                self._refuse(host_port, guest_port)
            if one is None:
                return
        one.guest_room, one.guest_forwarded = room, forwarded
        if operation == REQUEST:
            self._packet(one, RESPONSE)
        elif operation == RESPONSE:
            one.is_open = True
            one.forwarded -= len(greeting := b"OK %d\n" % one.host_port)  # not the guest's bytes
            one.out += greeting
        elif operation == DATA:
            one.out += packet[HEADER.size : HEADER.size + length]
        elif operation == CREDIT_REQUEST:
            self._packet(one, CREDIT)
        elif operation == RESET or (operation == SHUTDOWN and flags & NO_MORE_SEND):
            self._finish(one, reset=operation == SHUTDOWN)

    def _hello(self, sock: socket.socket) -> None:
        line = self._hellos[sock]
        with contextlib.suppress(OSError):
            line += sock.recv(1)
        whole = line.endswith(b"\n")
        if line and not whole and len(line) < HELLO_BYTES:
            return
        del self._hellos[sock]
        parts = line.split()
        if not whole or len(parts) != 2 or parts[0].upper() != b"CONNECT" or not parts[1].isdigit():
            sock.close()
            return
        one = self._add(sock, self._next_port, int(parts[1]))
        self._next_port += 1
        self._packet(one, REQUEST)

    def _dial(self, host_port: int, guest_port: int) -> Connection | None:
        """Dial this host for the guest: port P is the socket `PATH_P`."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(f"{self._path}_{host_port}")
        except OSError:
            sock.close()
            self._refuse(host_port, guest_port)
            return None
        sock.setblocking(False)
        one = self._add(sock, host_port, guest_port)
        one.is_open = True
        return one

    def _add(self, sock: socket.socket, host_port: int, guest_port: int) -> Connection:
        one = self._open[host_port, guest_port] = Connection(sock, host_port, guest_port)
        return one

    def _of(self, sock: socket.socket) -> Connection | None:
        return next((one for one in self._open.values() if one.socket is sock), None)

    def _packet(self, one: Connection, operation: int, data: bytes = b"", flags: int = 0) -> None:
        ports = (HOST, self._cid, one.host_port, one.guest_port)
        forwarded = max(0, one.forwarded) & 0xFFFF_FFFF
        self._send(HEADER.pack(*ports, len(data), STREAM, operation, flags, ROOM, forwarded) + data)

    def _refuse(self, host_port: int, guest_port: int) -> None:
        self._send(HEADER.pack(HOST, self._cid, host_port, guest_port, 0, STREAM, RESET, 0, 0, 0))

    def _finish(self, one: Connection, *, reset: bool) -> None:
        """Close a connection that the guest ended, after writing its data."""
        with contextlib.suppress(OSError):
            one.socket.setblocking(True)
            one.socket.settimeout(1)
            one.socket.sendall(one.out)
        self._drop(one, reset=reset)

    def _drop(self, one: Connection, *, reset: bool) -> None:
        if reset:
            self._packet(one, RESET)
        self._open.pop((one.host_port, one.guest_port), None)
        one.socket.close()
