"""Primitives of the protobuf wire format, for untrusted messages."""

from gpufleet.model.errors import WireError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint; return it and its end.

    Raises:
        WireError: if it is truncated, or has more than 64 bits.
    """
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise WireError(f"byte {at}", "a number of more than ten bytes")
    except IndexError:
        raise WireError(f"byte {at}", "the message ends inside a number") from None
    if value > 0xFFFF_FFFF_FFFF_FFFF:
        raise WireError(f"byte {at}", "a number of more than 64 bits")
    return value, at


def span(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode a length; return start and end of its content.

    Raises:
        WireError: if the content ends beyond `end`.
    """
    length, at = varint(data, at)
    if length > end - at:
        raise WireError(f"byte {at}", f"a field of {length} bytes, {end - at} left")
    return at, at + length


def skip(data: bytes, at: int, end: int, key: int) -> int:
    """Return the end of a field to skip.

    Raises:
        WireError: if it is truncated, or of an unsupported wire type (groups).
    """
    kind = key & 7
    if kind == VARINT:
        at = varint(data, at)[1]
    elif kind == BYTES:
        at = span(data, at, end)[1]
    elif kind in (FIXED64, FIXED32):
        at += 8 if kind == FIXED64 else 4
    else:
        raise WireError(f"byte {at}", f"a field of unsupported wire type {kind}")
    if at > end:
        raise WireError(f"byte {at}", "a field that passes the end of its message")
    return at


def text(data: bytes, start: int, end: int) -> str:
    """Decode UTF-8; invalid bytes are replaced."""
    return data[start:end].decode("utf-8", "replace")


def write_varint(value: int) -> bytes:
    """Encode an unsigned 64-bit number as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_bytes(key: int, content: bytes) -> bytes:
    """Encode a length-delimited field; `key` is one byte."""
    return bytes((key,)) + write_varint(len(content)) + content
