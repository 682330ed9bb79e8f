"""Dials of KubeVirt's virtual machines: consent, ports, CIDs and the limit of connections."""

import asyncio
import socket
from pathlib import Path

import pytest

from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.channels.stream.launcher_namespaces import LauncherNamespaces, NamespaceSocket
from gpufleet.channels.stream.vmi_vsock import LOCAL_CID, ConnectionSlots, NodeVsock, VmiVsockDialer
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.ports.channel import Dialer
from gpufleet.ports.vsock import VsockTarget

UID = "0d6f3c5e-8a41-4f2b-9f0e-5b1f5f6d7a01"


class Namespaces(LauncherNamespaces):
    """Namespaces of a given mode."""

    def __init__(self, *, is_local: bool = False) -> None:
        self.is_local = is_local

    async def open(self, pods: tuple[str, ...]) -> NamespaceSocket:
        return NamespaceSocket(socket.socket(socket.AF_UNIX), self.is_local)


def target(cid: int = 42) -> VsockTarget:
    return VsockTarget(uid=UID, namespace="ml", name="train-0", cid=cid, pods=("pod",))


class Guest:
    """Listener in place of a guest, and the addresses that were dialled."""

    def __init__(self, path: Path) -> None:
        self.path, self.dialled = path, list[tuple[int, int]]()

    def make_dialer(self, cid: int, port: int, unconnected: socket.socket) -> Dialer:
        unconnected.close()
        self.dialled.append((cid, port))
        return UnixDialer(self.path)

    def dialer(self, *, is_local: bool = False, cid: int = 42, limit: int = 4) -> VmiVsockDialer:
        connector = NodeVsock(Namespaces(is_local=is_local), self.make_dialer)
        return VmiVsockDialer(UID, 5555, find=lambda _: target(cid), connector=connector, slots=ConnectionSlots(limit))


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def test_mode_of_the_namespace_decides_the_cid(tmp_path: Path) -> None:
    guest = Guest(tmp_path / "guest")
    async with await asyncio.start_unix_server(accept, guest.path):
        for is_local in (False, True):
            stream = await guest.dialer(is_local=is_local).dial()
            await stream.close()
    assert guest.dialled == [(42, 5555), (LOCAL_CID, 5555)]


async def test_host_and_hypervisor_are_never_dialled(tmp_path: Path) -> None:
    guest = Guest(tmp_path / "guest")
    for cid in (0, 1, 2):
        with pytest.raises(ChannelError) as refused:
            await guest.dialer(cid=cid).dial()
        assert refused.value.problem is ChannelProblem.NO_SUCH_VM
    assert guest.dialled == []


@pytest.mark.parametrize("port", [0, 1, 22, 1023])
def test_reserved_ports_are_refused(port: int) -> None:
    connector = NodeVsock(Namespaces())
    with pytest.raises(ValueError, match="reserved"):
        VmiVsockDialer(UID, port, find=lambda _: target(), connector=connector, slots=ConnectionSlots())


async def test_nothing_is_dialled_without_consent(tmp_path: Path) -> None:
    guest = Guest(tmp_path / "guest")

    def find(uid: str) -> VsockTarget:
        raise ChannelError(uid, ChannelProblem.NOT_ENABLED)

    connector = NodeVsock(Namespaces(), guest.make_dialer)
    with pytest.raises(ChannelError):
        await VmiVsockDialer(UID, 5555, find=find, connector=connector, slots=ConnectionSlots()).dial()
    assert guest.dialled == []


async def test_connections_are_limited_and_released(tmp_path: Path) -> None:
    guest = Guest(tmp_path / "guest")
    dialer = guest.dialer(limit=2)
    with pytest.raises(ChannelError):
        await dialer.dial()  # a failed dial uses no slot
    async with await asyncio.start_unix_server(accept, guest.path):
        streams = [await dialer.dial() for _ in range(2)]
        with pytest.raises(ChannelError):
            await dialer.dial()
        assert len(guest.dialled) == 3
        await streams[0].close()
        await streams[0].close()
        again = await dialer.dial()
        with pytest.raises(ChannelError):
            await dialer.dial()
        for stream in (streams[1], again):
            await stream.close()
