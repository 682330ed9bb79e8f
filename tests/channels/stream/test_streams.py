"""Streams over real sockets, and the problem code of each refusal."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gpufleet.channels.stream.dialers import (
    CID_ANY,
    HybridVsockDialer,
    TcpDialer,
    UnixDialer,
    VsockDialer,
)
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import Dialer

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
KINDS = ("tcp", "unix", "vsock", "hybrid_vsock")


class StandIn(socket.socket):
    """Unix socket in place of a vsock: it connects to `path`, or fails with `code`."""

    def __init__(self, path: Path | None = None, code: int = 0) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path, self._code = path, code
        self.dialled: object = None

    def connect_ex(self, address: object, /) -> int:
        self.dialled = address
        return self._code or super().connect_ex(str(self._path))


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(kind: str, folder: Path, serve: Serve) -> AsyncIterator[Dialer]:
    """Start a server of a kind, and yield a dialer to it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            if kind == "hybrid_vsock":
                assert await reader.readline() == b"CONNECT 5555\n"
                writer.write(b"OK 1073741824\n")
            await serve(reader, writer)
        await hang_up(writer)

    path = folder / "s"
    if kind == "tcp":
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        dialer: Dialer = TcpDialer("127.0.0.1", server.sockets[0].getsockname()[1])
    else:
        server = await asyncio.start_unix_server(answer, path)
        dialers: dict[str, Dialer] = {
            "unix": UnixDialer(path),
            "vsock": VsockDialer(42, 5555, make_socket=lambda: StandIn(path)),
            "hybrid_vsock": HybridVsockDialer(path, 5555),
        }
        dialer = dialers[kind]
    async with server:
        yield dialer


@pytest.mark.parametrize("kind", KINDS)
async def test_bytes_go_both_ways(kind: str, tmp_path: Path) -> None:
    sent = os.urandom(1_000_000)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")  # immediately after the answer of the hybrid protocol
        writer.write(await reader.readexactly(len(sent)))
        await writer.drain()

    async with serving(kind, tmp_path, echo) as dialer:
        stream = await dialer.dial()
        assert await stream.receive_exactly(5) == b"hello"
        _, back = await asyncio.gather(stream.send(sent), stream.receive_exactly(len(sent)))
        assert back == sent
        assert await stream.receive(10) == b""
        await stream.close()
        await stream.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_unexpected_end_is_an_error(kind: str, tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")

    async with serving(kind, tmp_path, serve) as dialer:
        stream = await dialer.dial()
        with pytest.raises(ChannelError, match=r"\b4\b.*\b8\b") as caught:
            await stream.receive_exactly(8)
        assert caught.value.problem is ChannelProblem.ENDED
        with pytest.raises(ChannelError):
            await stream.send(b"x" * 10_000_000)
        await stream.close()


def descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


async def problem_of(dialer: Dialer) -> ChannelProblem:
    before = descriptors()
    with pytest.raises(ChannelError) as caught:
        await dialer.dial()
    assert descriptors() == before
    return caught.value.problem


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (errno.ENODEV, ChannelProblem.NO_SUCH_VM),
        (errno.ETIMEDOUT, ChannelProblem.NOT_UP),
        (errno.ECONNRESET, ChannelProblem.NO_LISTENER),
        (errno.EPERM, ChannelProblem.NOT_PERMITTED),
        (errno.EIO, ChannelProblem.FAILED),
    ],
)
async def test_vsock_errors_of_the_kernel_have_problem_codes(code: int, problem: ChannelProblem) -> None:
    made: list[StandIn] = []

    def make() -> StandIn:
        made.append(StandIn(code=code))
        return made[-1]

    assert await problem_of(VsockDialer(42, 2**32 - 2, make_socket=make)) is problem
    assert made[0].dialled == (42, 2**32 - 2)


@pytest.mark.parametrize("cid", [0, 2, CID_ANY, -1])
def test_reserved_cids_are_not_dialled(cid: int) -> None:
    with pytest.raises(ValueError, match=str(cid)):
        VsockDialer(cid, 5555)


async def test_system_without_vsock_is_not_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(ChannelError) as caught:
        await VsockDialer(3, 5555).dial()
    assert caught.value.problem is ChannelProblem.NOT_PERMITTED


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[int, str]) -> None:
    """Resolve every name to these addresses, in this order."""

    async def found(_: str, port: int, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(family, socket.SOCK_STREAM, 0, "", (address, port)) for family, address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` may resolve to ::1 first, while the engine listens on 127.0.0.1."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    no_such_family = 99  # like IPv6 on a kernel without it
    async with server:
        resolve_to(monkeypatch, (no_such_family, "::1"), (socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1"))
        stream = await TcpDialer("name", port).dial()
        assert await stream.receive(1) == b"x"
        await stream.close()
        resolve_to(monkeypatch, (socket.AF_INET, "127.0.0.2"), (no_such_family, "::1"))
        assert await problem_of(TcpDialer("name", port)) is ChannelProblem.NO_LISTENER
        resolve_to(monkeypatch, (no_such_family, "::1"))
        assert await problem_of(TcpDialer("name", port)) is ChannelProblem.UNREACHABLE


@pytest.mark.parametrize("name", ["a..b", "x" * 70, "\udcff"])
async def test_invalid_host_name_is_unreachable(name: str) -> None:
    assert await problem_of(TcpDialer(name, 1)) is ChannelProblem.UNREACHABLE


async def test_refusals_of_tcp_and_unix(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert await problem_of(TcpDialer("127.0.0.1", unused.getsockname()[1])) is ChannelProblem.NO_LISTENER
    assert await problem_of(TcpDialer("name.invalid", 1)) is ChannelProblem.UNREACHABLE
    assert await problem_of(UnixDialer(tmp_path / "none")) is ChannelProblem.NO_SUCH_VM
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    assert await problem_of(UnixDialer(tmp_path / "dead")) is ChannelProblem.NO_LISTENER
    assert await problem_of(UnixDialer(tmp_path / ("x" * 200))) is ChannelProblem.FAILED


@pytest.mark.parametrize(
    ("greeting", "problem"),
    [
        (b"", ChannelProblem.NO_LISTENER),
        (b"OK", ChannelProblem.NO_LISTENER),  # then the end of the stream
        (b"NO 1\n", ChannelProblem.PROTOCOL),
        (b"OK x\n", ChannelProblem.PROTOCOL),
        (b"OK " + b"x" * 100, ChannelProblem.PROTOCOL),
        (b"\xff\x00\n", ChannelProblem.PROTOCOL),
    ],
)
async def test_other_answer_of_a_hypervisor_is_an_error(
    greeting: bytes, problem: ChannelProblem, tmp_path: Path
) -> None:
    requests = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readline())
        writer.write(greeting)
        await hang_up(writer)

    async with await asyncio.start_unix_server(answer, tmp_path / "s"):
        with pytest.raises(ChannelError) as caught:
            await HybridVsockDialer(tmp_path / "s", 7).dial()
    assert caught.value.problem is problem
    assert requests == [b"CONNECT 7\n"]


async def test_hypervisor_without_answer_is_not_up(tmp_path: Path) -> None:
    done = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await hang_up(writer)
        done.set()

    async with await asyncio.start_unix_server(never_answer, tmp_path / "s"):
        dialer = HybridVsockDialer(tmp_path / "s", 7, timeout_seconds=0.05)
        with pytest.raises(ChannelError) as caught:
            await dialer.dial()
        await done.wait()
    assert caught.value.problem is ChannelProblem.NOT_UP


async def test_missing_hypervisor_socket_is_no_such_vm(tmp_path: Path) -> None:
    assert await problem_of(HybridVsockDialer(tmp_path / "none", 7)) is ChannelProblem.NO_SUCH_VM
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    assert await problem_of(HybridVsockDialer(tmp_path / "dead", 7)) is ChannelProblem.NO_SUCH_VM


async def test_full_queue_of_a_unix_socket_is_waited_for(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        first = await UnixDialer(tmp_path / "s").dial()
        with pytest.raises(ChannelError) as caught:
            await UnixDialer(tmp_path / "s", timeout_seconds=0.1).dial()
        assert caught.value.problem is ChannelProblem.TIMEOUT
        waiting = asyncio.create_task(UnixDialer(tmp_path / "s", timeout_seconds=20).dial())
        await asyncio.sleep(0)
        stack.enter_context(listener.accept()[0])
        second = await waiting
        await first.close()
        await second.close()
