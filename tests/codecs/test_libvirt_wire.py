"""libvirt packets: requests as libvirt's own client sends them, replies, and hostile packets."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs import libvirt_wire as wire
from gpufleet.model.errors import WireError, WireLimitError

REF = wire.DomainRef("vm", bytes(range(16)), 7)


def reply(procedure: int, serial: int, body: bytes, *, kind: int = 1, status: int = 0) -> bytes:
    return struct.pack(">IIiiIi", 0x20008086, 1, procedure, kind, serial, status) + body


def xdr(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text + bytes(-len(text) % 4)


def test_requests_match_those_of_libvirts_client() -> None:
    assert wire.encode_open(0, "qemu:///system").hex() == (
        "00000038200080860000000100000001000000000000000000000000"
        "000000010000000e71656d753a2f2f2f73797374656d000000000001"
    )  # fmt: skip
    assert wire.encode_close(9).hex() == "0000001c200080860000000100000002000000000000000900000000"
    assert wire.encode_list(1).hex() == (
        "000000242000808600000001000001110000000000000001000000000000000100000001"
    )  # fmt: skip
    assert wire.encode_xml(2, REF).hex() == (
        "0000003c20008086000000010000000e000000000000000200000000"
        "00000002766d0000000102030405060708090a0b0c0d0e0f0000000700000000"
    )  # fmt: skip


def test_domain_list_is_decoded() -> None:
    one = xdr(b"train-0") + bytes(16) + struct.pack(">i", 3)
    two = xdr("größe".encode()) + b"\xff" * 16 + struct.pack(">i", -1)
    body = wire.answer_of(reply(273, 5, struct.pack(">I", 2) + one + two + struct.pack(">I", 2)), 273, 5)
    assert wire.decode_list(body) == (
        wire.DomainRef("train-0", bytes(16), 3),
        wire.DomainRef("größe", b"\xff" * 16, -1),
    )
    assert wire.decode_xml(xdr(b"<domain/>")) == b"<domain/>"


def test_libvirt_error_has_its_code_and_message() -> None:
    body = struct.pack(">iiI", 42, 10, 1) + xdr(b"Domain not found\x1b[2J") + struct.pack(">i", 2)
    with pytest.raises(wire.RefusedError, match=r"libvirt: Domain not found\[2J") as caught:
        wire.answer_of(reply(14, 1, body, status=1), 14, 1)
    assert caught.value.code == 42


@pytest.mark.parametrize(
    "packet",
    [
        reply(14, 2, b""),  # of another request
        reply(1, 1, b""),  # of another procedure
        reply(14, 1, b"", kind=2),  # an event
        b"\x20\x00\x80\x87" + reply(14, 1, b"")[4:],  # of another program
        b"",
        reply(14, 1, b"")[:-1],
    ],
)
def test_unexpected_packet_is_rejected(packet: bytes) -> None:
    with pytest.raises(WireError):
        wire.answer_of(packet, 14, 1)


def test_packet_lengths_are_bounded() -> None:
    assert wire.packet_bytes(struct.pack(">I", 28)) == 24
    for size in (0, 27, wire.MAX_PACKET_BYTES + 1, 0xFFFF_FFFF):
        with pytest.raises(WireError):
            wire.packet_bytes(struct.pack(">I", size))
    with pytest.raises(WireLimitError):
        wire.decode_list(struct.pack(">I", wire.MAX_DOMAINS + 1))
    with pytest.raises(WireLimitError):
        wire.decode_list(struct.pack(">II", 1, 1 << 30))


@given(st.binary(max_size=300))
def test_any_bytes_raise_at_most_a_wire_error(content: bytes) -> None:
    with pytest.raises(WireError):
        wire.answer_of(reply(14, 1, content, status=1), 14, 1)
    domains: tuple[wire.DomainRef, ...] = ()
    with contextlib.suppress(WireError):
        domains = wire.decode_list(content)
    assert sum(len(one.uuid) for one in domains) <= len(content)
    text = b""
    with contextlib.suppress(WireError):
        text = wire.decode_xml(content)
    assert text in content
