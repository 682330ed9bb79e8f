"""The frame around every message, both ways."""

import struct
from typing import NamedTuple

from gpufleet.model.errors import WireError, WireLimitError

MAGIC = 0xADBCBCAD
"""Of DCGM 3.0 and newer. It carries no version."""

MODULE_COMMAND = 0x300
"""Message type of every request and its reply; other types are pushed by the engine and answer nothing."""

MAX_BODY_BYTES = 4_194_612
"""The largest reply there is: a refused request for latest values, version 3, comes back whole (DCGM 4.5 and older)."""

HEADER = struct.Struct("<IIiii")
"""Magic, request id, length of the body, message type, status."""


class Header(NamedTuple):
    """What stands before a body.

    Attributes:
        request: id that the asker chose; it comes back in the reply.
        length: bytes of the body.
        type: `MODULE_COMMAND`, or something that was not asked for.
        status: dcgmReturn_t of the dispatch; 0 is success.
    """

    request: int
    length: int
    type: int
    status: int


def encode_frame(request: int, body: bytes) -> bytes:
    """Return a request's frame; `request` is not 0."""
    return HEADER.pack(MAGIC, request, len(body), MODULE_COMMAND, 0) + body


def decode_header(data: bytes) -> Header:
    """Decode the 20 bytes before a body.

    Raises:
        WireError: if the peer does not speak this protocol.
        WireLimitError: if the body would be longer than any there is.
    """
    magic, request, length, kind, status = HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError("magic", f"{magic:#010x} is not {MAGIC:#010x}: no DCGM host engine of version 3 or newer")
    if not 0 <= length <= MAX_BODY_BYTES:
        raise WireLimitError("length", f"{length} bytes, of {MAX_BODY_BYTES} allowed")
    return Header(request, length, kind, status)
