"""Frame of requests and replies."""

import struct
from typing import NamedTuple

from gpufleet.model.errors import WireError, WireLimitError

MAGIC = 0xADBCBCAD
"""Magic of DCGM 3.0 and newer. It has no version."""

MODULE_COMMAND = 0x300
"""Message type of every request and its reply; the engine pushes other types, which are not replies."""

MAX_BODY_BYTES = 4_194_612
"""Largest reply: DCGM 4.5 and older return a rejected version 3 request for latest values in full."""

HEADER = struct.Struct("<IIiii")
"""Magic, request id, length of the body, message type, status."""


class Header(NamedTuple):
    """Header of a frame.

    Attributes:
        request: id chosen by the client and repeated in the reply.
        length: size of the body in bytes.
        type: `MODULE_COMMAND`, or the type of a pushed message.
        status: dcgmReturn_t of the dispatch; 0 is success.
    """

    request: int
    length: int
    type: int
    status: int


def encode_frame(request: int, body: bytes) -> bytes:
    """Return the frame of a request; `request` is not 0."""
    return HEADER.pack(MAGIC, request, len(body), MODULE_COMMAND, 0) + body


def decode_header(data: bytes) -> Header:
    """Decode the 20 bytes before a body.

    Raises:
        WireError: if the peer does not use this protocol.
        WireLimitError: if the body is larger than any valid reply.
    """
    magic, request, length, kind, status = HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError("magic", f"{magic:#010x} is not {MAGIC:#010x}: not a DCGM host engine of version 3 or newer")
    if not 0 <= length <= MAX_BODY_BYTES:
        raise WireLimitError("length", f"{length} bytes, more than {MAX_BODY_BYTES}")
    return Header(request, length, kind, status)
