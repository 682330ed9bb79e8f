"""Read-only requests of libvirt's RPC protocol, and their replies. Pure.

Packets and numbers are libvirt's `docs/kbase/internals/rpc` and `src/remote/remote_protocol.x`, which are stable once
released: a length that includes itself, a header of six 32-bit integers, and XDR (RFC 4506). No request here can
start, stop or change a domain, and the connection is opened read-only, which libvirt enforces.
"""

import struct
from typing import NoReturn

import msgspec

from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.text import clean

PROGRAM, VERSION = 0x2000_8086, 1

MAX_PACKET_BYTES = 4 << 20
"""Maximum packet size; the XML of a domain is about ten kilobytes."""

MAX_DOMAINS = 1024
"""Maximum number of domains in one list."""

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
_MAX_MESSAGE = 300


class DomainRef(msgspec.Struct, frozen=True):
    """Reference to a domain: name, UUID (16 bytes), and the id while it runs."""

    name: str
    uuid: bytes
    id: int


class RefusedError(WireError):
    """Error reply of libvirt; `code` is libvirt's error number."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__("libvirt", message)


def encode_open(serial: int, uri: str) -> bytes:
    """Encode a request to open a hypervisor read-only."""
    return _call(OPEN, serial, struct.pack(">I", 1) + _string(uri.encode()) + struct.pack(">I", _READ_ONLY))


def encode_close(serial: int) -> bytes:
    """Encode a request to close the connection; libvirt logs an error if a client only disconnects."""
    return _call(CLOSE, serial, b"")


def encode_list(serial: int) -> bytes:
    """Encode a request for all running and paused domains."""
    return _call(LIST, serial, struct.pack(">iI", 1, _ACTIVE))


def encode_xml(serial: int, domain: DomainRef) -> bytes:
    """Encode a request for the current XML of a domain, without secrets."""
    name = domain.name.encode("utf-8", "surrogateescape")
    return _call(XML, serial, _string(name) + domain.uuid + struct.pack(">iI", domain.id, 0))


def packet_bytes(length: bytes) -> int:
    """Return the number of bytes after the first four bytes of a packet.

    Raises:
        WireError: if the length is too small for a packet.
        WireLimitError: if the packet is larger than `MAX_PACKET_BYTES`.
    """
    (size,) = struct.unpack(">I", length)
    if size < LENGTH_BYTES + _HEADER.size:
        raise WireError("length", f"{size} bytes, too small for a packet")
    if size > MAX_PACKET_BYTES:
        raise WireLimitError("length", f"{size} bytes, more than {MAX_PACKET_BYTES}")
    return int(size) - LENGTH_BYTES


def answer_of(packet: bytes, procedure: int, serial: int) -> bytes:
    """Return the payload of a reply.

    Raises:
        RefusedError: if the reply is an error.
        WireError: if it is not the reply to that request.
    """
    if len(packet) < _HEADER.size:
        raise WireError("header", "cut off")
    program, version, answered, kind, number, status = _HEADER.unpack_from(packet)
    if (program, version, answered, kind, number) != (PROGRAM, VERSION, procedure, _REPLY, serial):
        raise WireError("header", f"not the reply to request {serial}")
    body = packet[_HEADER.size :]
    if status != _OK:
        _refused(body)
    return body


def decode_list(body: bytes) -> tuple[DomainRef, ...]:
    """Decode a list of domains. Raises WireError."""
    reader = _XdrReader(body)
    count = reader.integer()
    if count > MAX_DOMAINS:
        raise WireLimitError("domains", f"{count}, more than {MAX_DOMAINS}")
    found: list[DomainRef] = []
    for _ in range(count):
        name = reader.string(_MAX_NAME).decode("utf-8", "surrogateescape")
        found.append(DomainRef(name, reader.take(_UUID_BYTES), reader.integer(signed=True)))
    return tuple(found)


def decode_xml(body: bytes) -> bytes:
    """Decode the XML of a domain. Raises WireError."""
    return _XdrReader(body).string(MAX_PACKET_BYTES)


def _refused(body: bytes) -> NoReturn:
    reader = _XdrReader(body)
    code = reader.integer(signed=True)
    reader.integer()  # the part of libvirt that failed
    message = reader.string(MAX_PACKET_BYTES).decode("utf-8", "replace") if reader.integer() else "no message"
    raise RefusedError(code, clean(message)[:_MAX_MESSAGE])


def _call(procedure: int, serial: int, body: bytes) -> bytes:
    packet = _HEADER.pack(PROGRAM, VERSION, procedure, _CALL, serial, _OK) + body
    return struct.pack(">I", LENGTH_BYTES + len(packet)) + packet


def _string(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text + bytes(-len(text) % 4)


class _XdrReader:
    """XDR reader; raises WireError at the end of the data."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def take(self, count: int) -> bytes:
        piece = self._body[self._at : self._at + count]
        if len(piece) < count:
            raise WireError("body", f"cut off at byte {len(self._body)}")
        self._at += count
        return piece

    def integer(self, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(4), "big", signed=signed)

    def string(self, most: int) -> bytes:
        size = self.integer()
        if size > most:
            raise WireLimitError("string", f"{size} bytes, more than {most}")
        text = self.take(size)
        self.take(-size % 4)
        return text
