"""Dialers by kind of address. Each maps the kernel's errors to `ChannelProblem`."""

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path

from gpufleet.channels.stream.sockets import SocketStream, connect
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import Dialer

DIAL_SECONDS = 5.0

MAX_ADDRESSES = 4
"""Maximum addresses of a host name that are tried."""

CID_LOCAL, CID_FIRST_GUEST, CID_ANY = 1, 3, 0xFFFF_FFFF
"""vsock addresses (vsock(7)). 0 and 2 are the hypervisor and the host, never a guest."""

MAX_LINE_BYTES = 32
"""Longest line of the hybrid protocol in both directions (Firecracker's `docs/vsock.md`)."""


class TcpDialer:
    """Dials an IP address or a host name."""

    def __init__(self, host: str, port: int, *, timeout_seconds: float = DIAL_SECONDS) -> None:
        self._host, self._port, self._timeout = host, port, timeout_seconds

    async def dial(self) -> SocketStream:
        """Open a stream to the first address that accepts. The addresses share the time limit."""
        name = f"tcp://{self._host}:{self._port}"
        try:
            async with asyncio.timeout(self._timeout):
                found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise ChannelError(f"{name}: name resolution timed out", ChannelProblem.TIMEOUT) from None
        except UnicodeError as error:  # a label that is empty or too long
            raise ChannelError(f"{name}: invalid host name: {error}", ChannelProblem.UNREACHABLE) from None
        except OSError as error:
            raise ChannelError(f"{name}: {error.strerror or error}", ChannelProblem.UNREACHABLE) from None
        tried = found[:MAX_ADDRESSES]
        failures: list[ChannelError] = []
        for family, kind, protocol, _, address in tried:
            try:
                return await connect(
                    _tcp_socket(family, kind, protocol, name),
                    address,
                    name,
                    timeout_seconds=self._timeout / len(tried),
                    on_timeout=ChannelProblem.UNREACHABLE,
                    problems={},
                )
            except ChannelError as error:
                failures.append(error)
        try:  # an answer such as a refusal is more informative than an unreachable address
            raise next(
                (failure for failure in failures if failure.problem is not ChannelProblem.UNREACHABLE), failures[0]
            )
        finally:
            failures.clear()  # breaks the reference cycle with this frame


def _tcp_socket(family: int, kind: int, protocol: int, name: str) -> socket.socket:
    try:
        return socket.socket(family, kind, protocol)
    except OSError as error:  # IPv6, on a kernel without it
        raise ChannelError(f"{name}: {error.strerror or error}", ChannelProblem.UNREACHABLE) from None


class UnixDialer:
    """Dials a Unix socket of this machine."""

    def __init__(self, path: Path, *, timeout_seconds: float = DIAL_SECONDS) -> None:
        self._path, self._timeout = path, timeout_seconds

    async def dial(self) -> SocketStream:
        """Open a stream."""
        return await connect(
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
            str(self._path),
            f"unix://{self._path}",
            timeout_seconds=self._timeout,
            on_timeout=ChannelProblem.TIMEOUT,
            problems={errno.ENOENT: ChannelProblem.NO_SUCH_VM},
        )


def vsock_socket() -> socket.socket:
    """Return an AF_VSOCK socket. Raises ChannelError if this system does not support vsock."""
    if not hasattr(socket, "AF_VSOCK"):
        raise ChannelError("this system has no vsock", ChannelProblem.NOT_PERMITTED)
    try:
        return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    except OSError as error:
        raise ChannelError(f"no vsock socket: {error.strerror or error}", ChannelProblem.NOT_PERMITTED) from None


class VsockDialer:
    """Dials a guest of this host by its context id.

    Errors of Linux 6.1 with a vhost-vsock guest: ENODEV at once if the guest does not exist; ETIMEDOUT after 2 s if its
    driver is not up; ECONNRESET if nothing listens in the guest or the listener is too busy.
    """

    def __init__(
        self,
        cid: int,
        port: int,
        *,
        timeout_seconds: float = DIAL_SECONDS,
        make_socket: Callable[[], socket.socket] = vsock_socket,
    ) -> None:
        """Take the address.

        Args:
            cid: context id of a guest (3 and up), or 1 for this machine.
            port: 32 bits.
            timeout_seconds: time limit of a connection. The kernel's own limit is 2 s.
            make_socket: returns a new socket.

        Raises:
            ValueError: if the id cannot be a guest's.
        """
        if cid != CID_LOCAL and not CID_FIRST_GUEST <= cid < CID_ANY:
            raise ValueError(f"vsock CID {cid} is not a guest: guests begin at {CID_FIRST_GUEST}")
        self._cid, self._port, self._timeout, self._make_socket = cid, port, timeout_seconds, make_socket

    async def dial(self) -> SocketStream:
        """Open a stream."""
        return await connect(
            self._make_socket(),
            (self._cid, self._port),
            f"vsock://{self._cid}:{self._port}",
            timeout_seconds=self._timeout,
            on_timeout=ChannelProblem.NOT_UP,
            problems={
                errno.ENODEV: ChannelProblem.NO_SUCH_VM,
                errno.ETIMEDOUT: ChannelProblem.NOT_UP,
                errno.ECONNRESET: ChannelProblem.NO_LISTENER,
                errno.EADDRNOTAVAIL: ChannelProblem.NO_SUCH_VM,
            },
        )


class HybridVsockDialer:
    """Dials a guest's vsock port through its hypervisor's Unix socket.

    For Firecracker, Cloud Hypervisor and vhost-device-vsock. The request is `CONNECT port` and a line end, in one write
    with nothing after it. The answer is `OK number`, or the end of the stream for a refusal. The number's meaning
    varies.
    """

    def __init__(self, path: Path, port: int, *, timeout_seconds: float = DIAL_SECONDS) -> None:
        self._path, self._port, self._timeout = path, port, timeout_seconds

    async def dial(self) -> SocketStream:
        """Open a stream. The guest's first bytes are left unread."""
        name = f"{self._path}, vsock port {self._port}"
        stream = await connect(
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
            str(self._path),
            name,
            timeout_seconds=self._timeout,
            on_timeout=ChannelProblem.TIMEOUT,
            problems={errno.ENOENT: ChannelProblem.NO_SUCH_VM, errno.ECONNREFUSED: ChannelProblem.NO_SUCH_VM},
        )
        try:
            async with asyncio.timeout(self._timeout):
                await stream.send(f"CONNECT {self._port}\n".encode())
                answer = await self._line(stream)
        except TimeoutError:
            await stream.close()
            message = f"{name}: no answer in {self._timeout:g} s"
            raise ChannelError(message, ChannelProblem.NOT_UP) from None
        except BaseException:
            await stream.close()
            raise
        status, _, number = answer.partition(b" ")
        if not answer:
            problem, message = ChannelProblem.NO_LISTENER, "the hypervisor refused: nothing listens on that port"
        elif status != b"OK" or not number.isdigit():
            problem, message = ChannelProblem.PROTOCOL, f"unexpected answer {answer!r}, expected OK and a number"
        else:
            return stream
        await stream.close()
        raise ChannelError(f"{name}: {message}", problem)

    @staticmethod
    async def _line(stream: SocketStream) -> bytes:
        """Read up to the line end byte by byte: the following bytes are the guest's. Empty at the end of the stream."""
        line = bytearray()
        while len(line) < MAX_LINE_BYTES:
            try:
                byte = await stream.receive(1)
            except ChannelError:
                byte = b""
            if not byte:
                return b""
            if byte == b"\n":
                return bytes(line)
            line += byte
        return b"unterminated line: " + bytes(line)


ADDRESS_FORMS = "tcp://HOST:PORT, unix:///PATH, vsock://CID:PORT or hybrid-vsock:///PATH:PORT"

LAST_TCP_PORT, LAST_VSOCK_PORT = 0xFFFF, 0xFFFF_FFFE


def make_dialer(address: str) -> Dialer:
    """Return a dialer for an address.

    Raises:
        ValueError: if the address is invalid; the message lists the valid forms.
    """
    scheme, found, rest = address.partition("://")
    if found and scheme == "unix" and rest.startswith("/"):
        return UnixDialer(Path(rest))
    host, colon, port = rest.rpartition(":")
    if found and colon and port.isascii() and port.isdigit() and host:
        number = int(port)
        if scheme == "tcp" and 0 < number <= LAST_TCP_PORT:
            return TcpDialer(host.strip("[]"), number)
        if scheme == "hybrid-vsock" and host.startswith("/") and number <= LAST_VSOCK_PORT:
            return HybridVsockDialer(Path(host), number)
        if scheme == "vsock" and host.isascii() and host.isdigit() and number <= LAST_VSOCK_PORT:
            return VsockDialer(int(host), number)
    raise ValueError(f"{address!r} is not a stream address: write {ADDRESS_FORMS}")
