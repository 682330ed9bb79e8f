"""Queries of a libvirt daemon: a scripted daemon that speaks its protocol."""

import asyncio
import struct
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.channels.libvirt import LibvirtDomains
from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.codecs import libvirt_wire as wire
from gpufleet.model.errors import ChannelError, WireError
from gpufleet.ports.hypervisor import DomainDocument

HEADER = struct.Struct(">IIiiIi")
UID = uuid.UUID("5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70")

Daemon = Callable[[int, bytes], tuple[int, bytes]]


def xdr(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text + bytes(-len(text) % 4)


def reference(name: bytes, number: int) -> bytes:
    return xdr(name) + UID.bytes + struct.pack(">i", number)


def error(message: bytes) -> tuple[int, bytes]:
    return 1, struct.pack(">iiI", 42, 10, 1) + xdr(message) + struct.pack(">i", 2)


def daemon_of(names: list[bytes], documents: dict[bytes, bytes]) -> Daemon:
    def answer(procedure: int, body: bytes) -> tuple[int, bytes]:
        if procedure == wire.LIST:
            return 0, struct.pack(">I", len(names)) + b"".join(reference(name, 3) for name in names) + bytes(4)
        if procedure == wire.XML:
            size = int.from_bytes(body[:4], "big")
            document = documents.get(body[4 : 4 + size])
            return error(b"Domain not found") if document is None else (0, xdr(document))
        return 0, b""

    return answer


async def query(folder: Path, daemon: Daemon) -> list[DomainDocument]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                packet = await reader.readexactly(size - 4)
                program, version, procedure, _, serial, _ = HEADER.unpack_from(packet)
                status, body = daemon(procedure, packet[HEADER.size :])
                answer = HEADER.pack(program, version, procedure, 1, serial, status) + body
                writer.write(struct.pack(">I", 4 + len(answer)) + answer)
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()
            ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_unix_server(serve, folder / "sock"):
        try:
            return await LibvirtDomains(UnixDialer(folder / "sock"), "qemu:///system").domains()
        finally:
            await ended.wait()


async def test_running_domains_have_their_definitions(tmp_path: Path) -> None:
    found = await query(tmp_path, daemon_of([b"train-0", b"ended"], {b"train-0": b"<domain/>"}))
    assert found == [DomainDocument(name="train-0", uuid=str(UID), id=3, xml=b"<domain/>")]


async def test_name_of_a_domain_is_bounded_and_harmless(tmp_path: Path) -> None:
    name = b"\x1b[2J\xff" + b"a" * 3000
    (found,) = await query(tmp_path, daemon_of([name], {name: b"<domain/>"}))
    assert found.name.startswith("[2J�aaa")
    assert len(found.name) == 253


async def test_refused_connection_and_missing_socket_are_errors(tmp_path: Path) -> None:
    with pytest.raises(WireError):
        await query(tmp_path, lambda *_: error(b"no connection driver available"))
    with pytest.raises(ChannelError):
        await LibvirtDomains(UnixDialer(tmp_path / "none"), "qemu:///system").domains()
