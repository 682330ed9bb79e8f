"""One dialer an address kind; the words of `ChannelProblem` are each kind's own reading of the kernel's errors.

Addresses of streams, as people write them.
"""

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
"""Of a name, that are tried."""

CID_LOCAL, CID_FIRST_GUEST, CID_ANY = 1, 3, 0xFFFF_FFFF
"""vsock addresses (vsock(7)): 0 and 2 are the hypervisor and the host, never a guest."""

HELLO_BYTES = 32
"""The longest line of the hybrid protocol, both ways (Firecracker's `docs/vsock.md`)."""


class TcpDialer:
    """Dials an IP address, or a name that the system resolves."""

    def __init__(self, host: str, port: int, *, timeout_seconds: float = DIAL_SECONDS) -> None:
        self._host, self._port, self._timeout = host, port, timeout_seconds

    async def dial(self) -> SocketStream:
        """Open a stream to the first address of the name that takes it; each has its part of the time."""
        name = f"tcp://{self._host}:{self._port}"
        try:
            async with asyncio.timeout(self._timeout):
                found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise ChannelError(f"{name}: the name was not resolved in time", ChannelProblem.TIMEOUT) from None
        except UnicodeError as error:  # a label that is empty or too long
            raise ChannelError(f"{name}: is no name: {error}", ChannelProblem.UNREACHABLE) from None
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
                    silence=ChannelProblem.UNREACHABLE,
                    problems={},
                )
            except ChannelError as error:
                failures.append(error)
        try:  # of an address that is not reached, and one at which something was said, the second tells more
            raise next((one for one in failures if one.problem is not ChannelProblem.UNREACHABLE), failures[0])
        finally:
            failures.clear()  # they hold this frame, and it them


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
            silence=ChannelProblem.TIMEOUT,
            problems={errno.ENOENT: ChannelProblem.NO_SUCH_VM},
        )


def vsock_socket() -> socket.socket:
    """Return an AF_VSOCK socket. Raises ChannelError where this system has none."""
    if not hasattr(socket, "AF_VSOCK"):
        raise ChannelError("this system has no vsock", ChannelProblem.NOT_PERMITTED)
    try:
        return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    except OSError as error:
        raise ChannelError(f"no vsock socket: {error.strerror or error}", ChannelProblem.NOT_PERMITTED) from None


class VsockDialer:
    """Dials a guest of this host by its context id.

    The kernel's answers were seen on Linux 6.1 against a vhost-vsock guest: no such guest is ENODEV at once, a guest
    whose driver is not up ETIMEDOUT after 2 s, a guest in which nobody listens (or is too busy) ECONNRESET.
    """

    def __init__(
        self,
        cid: int,
        port: int,
        *,
        timeout_seconds: float = DIAL_SECONDS,
        make_socket: Callable[[], socket.socket] = vsock_socket,
    ) -> None:
        """Prepare it.

        Args:
            cid: of a guest (3 and up), or 1 for this machine itself.
            port: 32 bits.
            timeout_seconds: for a connection; the kernel gives up after 2 s by itself.
            make_socket: where the socket comes from.

        Raises:
            ValueError: if the id is no guest's.
        """
        if cid != CID_LOCAL and not CID_FIRST_GUEST <= cid < CID_ANY:
            raise ValueError(f"vsock id {cid} is no guest's: those begin at {CID_FIRST_GUEST}")
        self._cid, self._port, self._timeout, self._make_socket = cid, port, timeout_seconds, make_socket

    async def dial(self) -> SocketStream:
        """Open a stream."""
        return await connect(
            self._make_socket(),
            (self._cid, self._port),
            f"vsock://{self._cid}:{self._port}",
            timeout_seconds=self._timeout,
            silence=ChannelProblem.NOT_UP,
            problems={
                errno.ENODEV: ChannelProblem.NO_SUCH_VM,
                errno.ETIMEDOUT: ChannelProblem.NOT_UP,
                errno.ECONNRESET: ChannelProblem.NOBODY_LISTENS,
                errno.EADDRNOTAVAIL: ChannelProblem.NO_SUCH_VM,
            },
        )


class HybridVsockDialer:
    """Dials a guest's vsock port through its hypervisor's Unix socket.

    Firecracker, Cloud Hypervisor and vhost-device-vsock: `CONNECT port` and a line end, in one write and nothing
    behind it; the answer is `OK number` (whose number means different things), or the end for a refusal.
    """

    def __init__(self, path: Path, port: int, *, timeout_seconds: float = DIAL_SECONDS) -> None:
        self._path, self._port, self._timeout = path, port, timeout_seconds

    async def dial(self) -> SocketStream:
        """Open a stream; what the guest says first is still to be read from it."""
        name = f"{self._path}, vsock port {self._port}"
        stream = await connect(
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
            str(self._path),
            name,
            timeout_seconds=self._timeout,
            silence=ChannelProblem.TIMEOUT,
            problems={errno.ENOENT: ChannelProblem.NO_SUCH_VM, errno.ECONNREFUSED: ChannelProblem.NO_SUCH_VM},
        )
        try:
            async with asyncio.timeout(self._timeout):
                await stream.send(f"CONNECT {self._port}\n".encode())
                answer = await self._line(stream)
        except TimeoutError:
            await stream.close()
            words = f"{name}: no answer in {self._timeout:g} s"
            raise ChannelError(words, ChannelProblem.NOT_UP) from None
        except BaseException:
            await stream.close()
            raise
        word, _, number = answer.partition(b" ")
        if not answer:
            problem, words = ChannelProblem.NOBODY_LISTENS, "the hypervisor refused: nobody listens there"
        elif word != b"OK" or not number.isdigit():
            problem, words = ChannelProblem.PROTOCOL, f"the answer is {answer!r}, not OK and a number"
        else:
            return stream
        await stream.close()
        raise ChannelError(f"{name}: {words}", problem)

    @staticmethod
    async def _line(stream: SocketStream) -> bytes:
        """Read to the line's end byte by byte: what follows is the guest's. Empty if the other side ended."""
        line = bytearray()
        while len(line) < HELLO_BYTES:
            try:
                byte = await stream.receive(1)
            except ChannelError:
                byte = b""
            if not byte:
                return b""
            if byte == b"\n":
                return bytes(line)
            line += byte
        return b"a line without an end: " + bytes(line)


FORMS = "tcp://HOST:PORT, unix:///PATH, vsock://CID:PORT or hybrid-vsock:///PATH:PORT"

LAST_TCP_PORT, LAST_VSOCK_PORT = 0xFFFF, 0xFFFF_FFFE


def dialer_of(address: str) -> Dialer:
    """Return a dialer to an address.

    Raises:
        ValueError: if it is none; the words name the forms there are.
    """
    scheme, found, rest = address.partition("://")
    if found and scheme == "unix" and rest.startswith("/"):
        return UnixDialer(Path(rest))
    place, colon, port = rest.rpartition(":")
    if found and colon and port.isascii() and port.isdigit() and place:
        number = int(port)
        if scheme == "tcp" and 0 < number <= LAST_TCP_PORT:
            return TcpDialer(place.strip("[]"), number)
        if scheme == "hybrid-vsock" and place.startswith("/") and number <= LAST_VSOCK_PORT:
            return HybridVsockDialer(Path(place), number)
        if scheme == "vsock" and place.isascii() and place.isdigit() and number <= LAST_VSOCK_PORT:
            return VsockDialer(int(place), number)
    raise ValueError(f"{address!r} is no address of a stream: write {FORMS}")
