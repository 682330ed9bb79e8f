"""DCGM replies: decoding, bounds and hostile content."""

import contextlib
import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.dcgm_wire import replies, requests
from gpufleet.codecs.dcgm_wire.codes import blank_of
from gpufleet.codecs.dcgm_wire.commands import (
    ENTITIES,
    FIELDS_CREATE,
    GROUP_CREATE,
    HIERARCHY,
    HISTORY,
    LATEST_FORMS,
    MODULE,
    VERSION,
    Command,
    Latest,
)
from gpufleet.codecs.dcgm_wire.frame import HEADER, MAX_BODY_BYTES, Header, decode_header, encode_frame
from gpufleet.codecs.dcgm_wire.values import (
    COMPUTE_INSTANCE,
    GPU,
    GPU_INSTANCE,
    RECORD,
    Entity,
    FieldValue,
    decode_values,
    encode_value,
)
from gpufleet.model.absence import Reason
from gpufleet.model.errors import WireError, WireLimitError

MOST = 10_000
READERS: list[Callable[[bytes], object]] = [
    replies.read_version,
    replies.read_entities,
    replies.read_hierarchy,
    replies.read_gpu_status,
    replies.read_group,
    replies.read_fields,
    lambda body: replies.read_history(body, MOST),
    *((lambda body, form=form: replies.read_latest(form, body, MOST)) for form in LATEST_FORMS),
]
VALUES = st.builds(
    FieldValue,
    st.builds(Entity, st.integers(0, 9), st.integers(0, 2**32 - 1)),
    st.integers(1, 2000),
    st.integers(-67, 0),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text("abc<>é", max_size=20),
)


def body_of(command: Command, size: int, *parts: tuple[int, bytes]) -> bytes:
    body = bytearray(size)
    MODULE.pack_into(body, 0, size, 0, command.number, 3, 9, command.version)
    for at, data in parts:
        body[at : at + len(data)] = data
    return bytes(body)


@given(st.lists(VALUES, max_size=20), st.sampled_from(LATEST_FORMS))
def test_latest_values_round_trip(values: list[FieldValue], form: Latest) -> None:
    buffer = b"".join(map(encode_value, values))
    body = body_of(form.command, form.fixed, (form.fixed - 4, struct.pack("<I", len(buffer)))) + buffer
    assert replies.read_latest(form, body, 20) == values
    assert replies.read_result(form.command, body) == 0


def test_bytes_after_the_value_buffer_are_ignored() -> None:
    form, buffer = LATEST_FORMS[0], encode_value(FieldValue(Entity(GPU, 1), 252, 0, 1, 5))
    body = body_of(form.command, form.fixed, (form.fixed - 4, struct.pack("<I", len(buffer)))) + buffer + b"\xff" * 100
    assert len(replies.read_latest(form, body, 1)) == 1


def test_history_reply_is_decoded() -> None:
    buffer = b"".join(encode_value(FieldValue(Entity(GPU, 1), 230, 0, at, 79)) for at in (1, 2))
    body = body_of(HISTORY, 72, (60, struct.pack("<iiI", 2, -31, len(buffer)))) + buffer
    assert [value.microseconds for value in replies.read_history(body, 2)] == [1, 2]
    assert replies.read_result(HISTORY, body) == -31


def test_version_entities_and_groups_are_decoded() -> None:
    version = requests.version_request(1)[HEADER.size :]
    body = version[:28] + b"version:4.6.0;arch:x86_64;odd;buildtype:Release".ljust(512, b"\0")
    assert replies.read_version(body) == {"version": "4.6.0", "arch": "x86_64", "buildtype": "Release"}
    listed = body_of(ENTITIES, ENTITIES.size, (28, struct.pack("<3I", 4, 0, 7)), (4124, struct.pack("<I", 3)))
    assert replies.read_entities(listed) == [4, 0, 7]
    fields = body_of(FIELDS_CREATE, FIELDS_CREATE.size, (32, struct.pack("<Q", 2**31)), (552, struct.pack("<i", -1)))
    assert replies.read_fields(fields) == 2**31
    assert replies.read_result(FIELDS_CREATE, fields) == -1


def test_hierarchy_reply_is_decoded() -> None:
    entry = struct.Struct("<IIII128sIIIII")
    instance = entry.pack(GPU_INSTANCE, 8, GPU, 1, b"GPU-1\0junk", 3, 7, 0xFFFF_FFFF, 19, 1)
    compute = entry.pack(COMPUTE_INSTANCE, 9, GPU_INSTANCE, 8, b"GPU-1", 3, 7, 0, 0, 1)
    body = body_of(HIERARCHY, HIERARCHY.size, (28, struct.pack("<I", 2)), (32, instance + compute))
    first, second = replies.read_hierarchy(body)
    assert (first.entity, first.parent, first.gpu_uuid) == (Entity(GPU_INSTANCE, 8), Entity(GPU, 1), "GPU-1")
    assert (first.gpu_index, first.gpu_instance, first.profile, first.slices) == (3, 7, 19, 1)
    assert (second.parent, second.compute_instance) == (Entity(GPU_INSTANCE, 8), 0)


@pytest.mark.parametrize(
    ("reader", "command", "at", "count"),
    [(replies.read_entities, ENTITIES, 4124, 1025), (replies.read_hierarchy, HIERARCHY, 28, 449)],
)
def test_count_beyond_the_struct_is_rejected(
    reader: Callable[[bytes], object], command: Command, at: int, count: int
) -> None:
    with pytest.raises(WireError, match=str(count)):
        reader(body_of(command, command.size, (at, struct.pack("<I", count))))


def test_reply_to_another_command_is_rejected() -> None:
    with pytest.raises(WireError) as caught:
        replies.read_hierarchy(body_of(ENTITIES, HIERARCHY.size))
    assert caught.value.field == "GET_GPU_INSTANCE_HIERARCHY"


@pytest.mark.parametrize("length", [0, 1, RECORD.size - 1, RECORD.size + 9, 0xFFFF])
def test_record_with_a_wrong_length_is_rejected(length: int) -> None:
    record = bytearray(encode_value(FieldValue(Entity(GPU, 0), 252, 0, 1, 5)))
    record[:2] = struct.pack("<H", length)
    with pytest.raises(WireError) as caught:
        decode_values(bytes(record), 1)
    assert caught.value.field == "values[0]"


def test_number_of_records_is_bounded() -> None:
    record = encode_value(FieldValue(Entity(GPU, 0), 252, 0, 1, 5))
    assert len(decode_values(record * 10, most=10)) == 10
    with pytest.raises(WireError) as caught:
        decode_values(record * 11, most=10)
    assert caught.value.field == "values"


@given(
    st.sampled_from(READERS), st.binary(max_size=300) | st.integers(0, 75_000).map(bytes), st.sampled_from([0, 8500])
)
def test_any_reply_raises_at_most_a_wire_error(reader: Callable[[bytes], object], data: bytes, more: int) -> None:
    content = data + b"\x01" * more
    found: object = None
    with contextlib.suppress(WireError):
        found = reader(content)
    assert len(repr(found)) <= 2000 + 200 * len(content), "the result is bounded by the size of the reply"


@given(st.sampled_from(LATEST_FORMS), st.binary(max_size=200), st.integers(0, 2**32 - 1) | st.integers(0, 200))
def test_any_value_buffer_is_read_or_rejected(form: Latest, buffer: bytes, size: int) -> None:
    body = body_of(form.command, form.fixed, (form.fixed - 4, struct.pack("<I", size))) + buffer
    try:
        assert all(isinstance(value, FieldValue) for value in replies.read_latest(form, body, MOST))
    except WireError:
        return


def test_frame_headers() -> None:
    frame = encode_frame(5, b"abc")
    assert decode_header(frame[: HEADER.size]) == Header(5, 3, 0x300, 0)
    with pytest.raises(WireError) as caught:
        decode_header(b"\xad\xcb\xbc\xab" + frame[4:20])
    assert caught.value.field == "magic"
    for length in (-1, MAX_BODY_BYTES + 1):
        with pytest.raises(WireLimitError):
            decode_header(HEADER.pack(0xADBCBCAD, 1, length, 0x300, 0))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (0x7FFFFFF0, Reason.NO_DATA),
        (0x7FFFFFF1, Reason.NO_DATA),
        (0x7FFFFFF2, Reason.NOT_SUPPORTED),
        (0x7FFFFFF3, Reason.NOT_PERMITTED),
        (0x7FFFFFEF, None),
        (0x80000000, None),
        (0x7FFFFFFFFFFFFFF0, Reason.NO_DATA),
        (0x7FFFFFFFFFFFFFF2, Reason.NOT_SUPPORTED),
        (0x7FFFFFFFFFFFFFEF, None),
        (140737488355328.0, Reason.NO_DATA),
        (140737488355330.0, Reason.NOT_SUPPORTED),
        (140737488355331.0, Reason.NOT_PERMITTED),
        (140737488355327.0, None),
        (1e300, Reason.NO_DATA),
        (math.nan, Reason.INVALID_VALUE),
        (math.inf, Reason.INVALID_VALUE),
        ("<<<NULL>>>", Reason.NO_DATA),
        ("<<<NOT_PERM>>>", Reason.NOT_PERMITTED),
        ("<<<", None),
        (0, None),
        (0.0, None),
        (-1, None),
    ],
)
def test_blank_values_have_a_reason(value: float | str, reason: Reason | None) -> None:
    assert blank_of(value) is reason


@pytest.mark.parametrize(
    ("reader", "command", "at"), [(replies.read_group, GROUP_CREATE, 1056), (replies.read_fields, FIELDS_CREATE, 32)]
)
def test_ids_beyond_32_bits_are_rejected(reader: Callable[[bytes], object], command: Command, at: int) -> None:
    assert reader(body_of(command, command.size, (at, struct.pack("<Q", 2**32 - 1)))) == 2**32 - 1
    with pytest.raises(WireError, match="32"):
        reader(body_of(command, command.size, (at, struct.pack("<Q", 2**32))))


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 5))
def test_history_returns_at_most_the_requested_values(tail: bytes, size: int, most: int) -> None:
    body = body_of(HISTORY, 72, (68, struct.pack("<I", size))) + tail
    try:
        assert len(replies.read_history(body, most)) <= most
    except WireError:
        return


@given(st.sampled_from([VERSION, ENTITIES, HIERARCHY]), st.binary(min_size=100, max_size=600), st.data())
def test_structs_with_any_content_are_bounded(command: Command, noise: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(MODULE.size, command.size - 1))
    body = bytearray(body_of(command, command.size))
    body[at : at + len(noise)] = noise[: command.size - at]
    reader = {VERSION: replies.read_version, ENTITIES: replies.read_entities, HIERARCHY: replies.read_hierarchy}[
        command
    ]
    try:
        found = reader(bytes(body))
    except WireError:
        return
    assert len(found) <= 1024
