"""The protobuf wire format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.protobuf import BYTES, skip, span, text, varint, write_bytes, write_varint
from gpufleet.model.errors import WireError


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_number_is_read_as_written(value: int, rest: bytes) -> None:
    written = write_varint(value)
    assert varint(written + rest, 0) == (value, len(written))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 11, b"\xff" * 9 + b"\x02"])
def test_truncated_or_large_number_is_rejected(data: bytes) -> None:
    with pytest.raises(WireError):
        varint(data, 0)


@given(st.binary(max_size=300))
def test_field_is_read_and_skipped_as_written(content: bytes) -> None:
    written = write_bytes(1 << 3 | BYTES, content)
    start, end = span(written, 1, len(written))
    assert written[start:end] == content
    assert skip(written, 1, len(written), written[0]) == len(written) == end
    with pytest.raises(WireError):
        span(written, 1, len(written) - 1)


@pytest.mark.parametrize("key", [3, 4, 6, 7])
def test_unsupported_wire_type_is_rejected(key: int) -> None:
    with pytest.raises(WireError):
        skip(b"\0" * 16, 0, 16, key)


@pytest.mark.parametrize("key", [1, 5])
def test_truncated_fixed_field_is_rejected(key: int) -> None:
    with pytest.raises(WireError):
        skip(b"\0\0", 0, 2, key)


def test_invalid_utf8_is_replaced() -> None:
    assert text(b"a\xff", 0, 2) == "a\ufffd"
