"""Encoding and decoding of batches."""

import msgspec

from gpufleet.codecs.batch.columns import to_wire
from gpufleet.codecs.batch.compression import MAGIC, decompress
from gpufleet.codecs.batch.compression import compress as compress_message
from gpufleet.codecs.batch.limits import Limits, name_place
from gpufleet.codecs.batch.message import pack_message, unpack_message
from gpufleet.codecs.batch.size import MEASURED_FROM, check_size
from gpufleet.codecs.batch.structure import check, check_contents
from gpufleet.model.errors import WireError, WireLimitError, WireVersionError
from gpufleet.model.wire.batch import WIRE_VERSION, Batch, WireBatch

CONTENT_TYPE = "application/vnd.gpufleet.batch"
"""Content type of `POST /v1/batches`, compressed or not."""

_ENCODER = msgspec.msgpack.Encoder()
_ELEMENTS_DECODER = msgspec.msgpack.Decoder(list[msgspec.Raw])
_EPOCH_PLACE, _SEQ_PLACE = (WireBatch.__struct_fields__.index(name) for name in ("epoch", "seq"))
_DEFAULT_LIMITS = Limits()


class _Head(msgspec.Struct, array_like=True):
    """First field of every version of the format."""

    version: int


_HEAD_DECODER = msgspec.msgpack.Decoder(_Head)
_BEGINNING = bytes((0x90 + len(WireBatch.__struct_fields__),))
"""Header of the message: a list of all fields (MessagePack specification, fixarray)."""


class EncodedColumns(msgspec.Struct, frozen=True):
    """An encoded batch.

    Attributes:
        wire: its columns; they must not be modified.
        body: request body.
        message_bytes: size of the uncompressed message.
    """

    wire: WireBatch
    body: bytes
    message_bytes: int


def encode(batch: Batch, *, compress: bool = True) -> bytes:
    """Encode a batch as a request body.

    Raises:
        WireLimitError: if the batch exceeds the default limits of a receiver: split it.
        WireError: if a field cannot be encoded, or `compress` is set and zstandard is not installed.
    """
    return encode_with_columns(batch, compress=compress).body


def encode_with_columns(batch: Batch, *, compress: bool = True) -> EncodedColumns:
    """Encode a batch as a request body, and return its columns too. Raises as `encode`."""
    wire = to_wire(batch)
    check_contents(wire, _DEFAULT_LIMITS)
    return _encode(wire, compress=compress)


def encode_wire(wire: WireBatch, *, compress: bool = True) -> bytes:
    """Encode columns as a request body. Raises as `encode`."""
    check(wire, _DEFAULT_LIMITS)
    return _encode(wire, compress=compress).body


def _encode(wire: WireBatch, *, compress: bool) -> EncodedColumns:
    """Encode checked columns. Raises as `encode`."""
    try:
        message = pack_message(wire)
    except UnicodeEncodeError as error:
        raise WireError(
            "", f"a text with a lone surrogate, which UTF-8 cannot encode: {error.object[:100]!r}"
        ) from error
    if len(message) > _DEFAULT_LIMITS.message_bytes:
        raise WireLimitError("", f"message of {len(message)} bytes, more than {_DEFAULT_LIMITS.message_bytes}")
    if len(message) >= MEASURED_FROM:
        check_size(message, _DEFAULT_LIMITS)
    body = compress_message(message) if compress else message
    if len(body) > _DEFAULT_LIMITS.body_bytes:
        raise WireLimitError("", f"body of {len(body)} bytes, more than {_DEFAULT_LIMITS.body_bytes}")
    return EncodedColumns(wire, body, len(message))


def decode(body: bytes, *, limits: Limits = _DEFAULT_LIMITS, as_matrix: bool = False) -> WireBatch:
    """Decode a request body into columns and validate the structure.

    Unknown metrics, and values that the catalogue does not allow, are not errors here.

    Args:
        body: request body.
        limits: bounds on the batch.
        as_matrix: keep the packed numbers of a block as a `Matrix`. Lists of machines, views and names are then shared
            with other batches and must not be modified.

    Raises:
        WireVersionError: if the format version is not supported.
        WireLimitError: if it exceeds one of `limits`.
        WireError: if it does not follow the format; names the field.
    """
    if len(body) > limits.body_bytes:
        raise WireLimitError("", f"body of {len(body)} bytes, more than {limits.body_bytes}")
    message = decompress(body, limits.message_bytes) if body.startswith(MAGIC) else body
    try:
        version = _version_of(message)
        if version != WIRE_VERSION:
            raise WireVersionError("version", f"{version} is not supported; this build reads version {WIRE_VERSION}")
        if len(message) >= MEASURED_FROM:
            check_size(message, limits)
        return unpack_message(message, limits, as_matrix=as_matrix)
    except msgspec.ValidationError as error:
        raise WireError(*name_place(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("", f"not a MessagePack message: {error}") from error


def _version_of(message: bytes) -> int:
    """Read the version; small numbers, as all are, from the first two bytes alone."""
    if message[:1] == _BEGINNING and len(message) > 1 and message[1] < 0x80:
        return message[1]
    return _HEAD_DECODER.decode(message).version


def renumber(body: bytes, epoch: str, seq: int) -> bytes:
    """Return the same batch with another epoch and number; fields newer than this build are kept.

    Raises as `decode`.
    """
    decode(body)  # malformed batches are not forwarded
    is_packed = body.startswith(MAGIC)
    message = decompress(body, _DEFAULT_LIMITS.message_bytes) if is_packed else body
    elements = _ELEMENTS_DECODER.decode(message)
    for place, value in ((_EPOCH_PLACE, epoch), (_SEQ_PLACE, seq)):
        elements[place] = msgspec.Raw(_ENCODER.encode(value))
    message = _ENCODER.encode(elements)
    return compress_message(message) if is_packed else message
