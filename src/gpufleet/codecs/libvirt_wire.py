"""The few read-only questions of libvirt's RPC protocol, and their answers. Pure.

Packets and numbers are libvirt's `docs/kbase/internals/rpc` and `src/remote/remote_protocol.x`, which never change once
released: a length that counts itself, a header of six words, XDR behind it (RFC 4506). There is nothing here that
could start, stop or change a domain, and the connection is opened read-only, which libvirt enforces.
"""

import struct
from typing import NoReturn

import msgspec

from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.text import clean

PROGRAM, VERSION = 0x2000_8086, 1

MAX_PACKET_BYTES = 4 << 20
"""A domain's XML is some ten kilobytes."""

MAX_DOMAINS = 1024
"""Domains in one list."""

OPEN, CLOSE, XML, LIST = 1, 2, 14, 273
"""CONNECT_OPEN, CONNECT_CLOSE, DOMAIN_GET_XML_DESC, CONNECT_LIST_ALL_DOMAINS."""

LENGTH_BYTES = 4
_READ_ONLY = 1  # VIR_CONNECT_RO
_ACTIVE = 1  # VIR_CONNECT_LIST_DOMAINS_ACTIVE
_CALL, _REPLY = 0, 1
_OK = 0
_HEADER = struct.Struct(">IIiiIi")
_UUID_BYTES = 16
_MAX_NAME = 4096
_WORDS = 300


class DomainRef(msgspec.Struct, frozen=True):
    """A domain as libvirt names it: its name, the 16 bytes of its UUID, and its number while it runs."""

    name: str
    uuid: bytes
    id: int


class RefusedError(WireError):
    """libvirt answered that it does not do what was asked; carries its number of the error."""

    def __init__(self, code: int, words: str) -> None:
        self.code = code
        super().__init__("libvirt", words)


def encode_open(serial: int, uri: str) -> bytes:
    """Ask to open a hypervisor read-only."""
    return _call(OPEN, serial, struct.pack(">I", 1) + _string(uri.encode()) + struct.pack(">I", _READ_ONLY))


def encode_close(serial: int) -> bytes:
    """Say that it was all: libvirt logs an error of who only hangs up."""
    return _call(CLOSE, serial, b"")


def encode_list(serial: int) -> bytes:
    """Ask for every domain that runs or is paused."""
    return _call(LIST, serial, struct.pack(">iI", 1, _ACTIVE))


def encode_xml(serial: int, domain: DomainRef) -> bytes:
    """Ask how a domain is made now, without its secrets."""
    name = domain.name.encode("utf-8", "surrogateescape")
    return _call(XML, serial, _string(name) + domain.uuid + struct.pack(">iI", domain.id, 0))


def packet_bytes(length: bytes) -> int:
    """Return how many bytes follow a packet's first four.

    Raises:
        WireError: if it is no length of a packet.
        WireLimitError: if it is longer than `MAX_PACKET_BYTES`.
    """
    (size,) = struct.unpack(">I", length)
    if size < LENGTH_BYTES + _HEADER.size:
        raise WireError("length", f"{size} bytes are no packet")
    if size > MAX_PACKET_BYTES:
        raise WireLimitError("length", f"{size} bytes, more than {MAX_PACKET_BYTES}")
    return int(size) - LENGTH_BYTES


def answer_of(packet: bytes, procedure: int, serial: int) -> bytes:
    """Return what a reply holds.

    Raises:
        RefusedError: if it is an error of libvirt's.
        WireError: if it is no reply to that question.
    """
    if len(packet) < _HEADER.size:
        raise WireError("header", "cut off")
    program, version, answered, kind, number, status = _HEADER.unpack_from(packet)
    if (program, version, answered, kind, number) != (PROGRAM, VERSION, procedure, _REPLY, serial):
        raise WireError("header", f"not the reply to question {serial}")
    body = packet[_HEADER.size :]
    if status != _OK:
        _refused(body)
    return body


def decode_list(body: bytes) -> tuple[DomainRef, ...]:
    """Read the domains of a list. Raises WireError."""
    reader = _Reader(body)
    count = reader.word()
    if count > MAX_DOMAINS:
        raise WireLimitError("domains", f"{count}, more than {MAX_DOMAINS}")
    found: list[DomainRef] = []
    for _ in range(count):
        name = reader.string(_MAX_NAME).decode("utf-8", "surrogateescape")
        found.append(DomainRef(name, reader.take(_UUID_BYTES), reader.word(signed=True)))
    return tuple(found)


def decode_xml(body: bytes) -> bytes:
    """Read a domain's description. Raises WireError."""
    return _Reader(body).string(MAX_PACKET_BYTES)


def _refused(body: bytes) -> NoReturn:
    reader = _Reader(body)
    code = reader.word(signed=True)
    reader.word()  # which part of libvirt says so
    words = reader.string(MAX_PACKET_BYTES).decode("utf-8", "replace") if reader.word() else "no words"
    raise RefusedError(code, clean(words)[:_WORDS])


def _call(procedure: int, serial: int, body: bytes) -> bytes:
    packet = _HEADER.pack(PROGRAM, VERSION, procedure, _CALL, serial, _OK) + body
    return struct.pack(">I", LENGTH_BYTES + len(packet)) + packet


def _string(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text + bytes(-len(text) % 4)


class _Reader:
    """Goes through XDR; raises WireError where it is cut off."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def take(self, count: int) -> bytes:
        piece = self._body[self._at : self._at + count]
        if len(piece) < count:
            raise WireError("body", f"cut off at byte {len(self._body)}")
        self._at += count
        return piece

    def word(self, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(4), "big", signed=signed)

    def string(self, most: int) -> bytes:
        size = self.word()
        if size > most:
            raise WireLimitError("string", f"{size} bytes, more than {most}")
        text = self.take(size)
        self.take(-size % 4)
        return text
