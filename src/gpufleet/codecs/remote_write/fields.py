"""Protobuf's wire format, as far as remote write needs it."""

from gpufleet.model.errors import WireError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned number; return it and where it ends.

    Raises:
        WireError: if it has no end, or more than 64 bits.
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


def signed(value: int) -> int:
    """Read a 64-bit number's bits as int64."""
    return value - (1 << 64) if value >> 63 else value


def span(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a length; return where what it measures begins and ends.

    Raises:
        WireError: if that is beyond `end`.
    """
    length, at = varint(data, at)
    if length > end - at:
        raise WireError(f"byte {at}", f"a field of {length} bytes, {end - at} left")
    return at, at + length


def skip(data: bytes, at: int, end: int, key: int) -> int:
    """Return the end of a field of that key that is not wanted.

    Raises:
        WireError: if it has none, or is of a kind that the format gave up (groups).
    """
    kind = key & 7
    if kind == VARINT:
        at = varint(data, at)[1]
    elif kind == BYTES:
        at = span(data, at, end)[1]
    elif kind in (FIXED64, FIXED32):
        at += 8 if kind == FIXED64 else 4
    else:
        raise WireError(f"byte {at}", f"a field of wire type {kind}")
    if at > end:
        raise WireError(f"byte {at}", "a field that passes the end of its message")
    return at


def text(data: bytes, start: int, end: int) -> str:
    """Read a text; bytes that are none are replaced."""
    return data[start:end].decode("utf-8", "replace")


def write_varint(value: int) -> bytes:
    """Write an unsigned number of 64 bits."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_bytes(key: int, content: bytes) -> bytes:
    """Write a field of bytes with its key and length; `key` is of one byte."""
    return bytes((key,)) + write_varint(len(content)) + content
