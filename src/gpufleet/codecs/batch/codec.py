"""The whole way between a batch and its bytes."""

import msgspec

from gpufleet.codecs.batch.columns import to_wire
from gpufleet.codecs.batch.compression import MAGIC, decompress, unpacked_bytes
from gpufleet.codecs.batch.compression import compress as compress_message
from gpufleet.codecs.batch.limits import Limits
from gpufleet.codecs.batch.paths import name_place
from gpufleet.codecs.batch.size import MEASURED_FROM, check_size
from gpufleet.codecs.batch.structure import check
from gpufleet.model.batch import Batch
from gpufleet.model.errors import WireError, WireLimitError, WireVersionError
from gpufleet.model.wire import WIRE_VERSION, WireBatch

CONTENT_TYPE = "application/vnd.gpufleet.batch"
"""Of the body of `POST /v1/batches`, compressed or not."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(WireBatch)
_ELEMENTS_DECODER = msgspec.msgpack.Decoder(list[msgspec.Raw])
_EPOCH_PLACE, _SEQ_PLACE = (WireBatch.__struct_fields__.index(name) for name in ("epoch", "seq"))
_DEFAULT_LIMITS = Limits()


class _Head(msgspec.Struct, array_like=True):
    """The one field that every version of the format begins with."""

    version: int


_HEAD_DECODER = msgspec.msgpack.Decoder(_Head)


def encode(batch: Batch, *, compress: bool = True) -> bytes:
    """Turn a batch into the body of a post.

    Raises:
        WireLimitError: if a receiver with the default limits would refuse it: split it.
        WireError: if a field of the batch cannot be said, or zstd is asked for and not installed.
    """
    return encode_wire(to_wire(batch), compress=compress)


def encode_wire(wire: WireBatch, *, compress: bool = True) -> bytes:
    """Turn columns into the body of a post; raises as `encode`."""
    check(wire, _DEFAULT_LIMITS)
    try:
        message = _ENCODER.encode(wire)
    except UnicodeEncodeError as error:
        raise WireError("", f"a text with a lone surrogate, which UTF-8 cannot say: {error.object[:100]!r}") from error
    if len(message) > _DEFAULT_LIMITS.message_bytes:
        raise WireLimitError("", f"message of {len(message)} bytes, more than {_DEFAULT_LIMITS.message_bytes}")
    if len(message) >= MEASURED_FROM:
        check_size(message, _DEFAULT_LIMITS)
    body = compress_message(message) if compress else message
    if len(body) > _DEFAULT_LIMITS.body_bytes:
        raise WireLimitError("", f"body of {len(body)} bytes, more than {_DEFAULT_LIMITS.body_bytes}")
    return body


def weigh(body: bytes) -> int:
    """Return how many bytes decoding a body will look at, told by its first few alone; see `unpacked_bytes`."""
    return unpacked_bytes(body, _DEFAULT_LIMITS.message_bytes)


def decode(body: bytes, *, limits: Limits = _DEFAULT_LIMITS) -> WireBatch:
    """Turn the body of a post into columns, with everything about its structure checked.

    Metrics that the catalogue does not know, and values that it does not allow, are not errors here.

    Raises:
        WireVersionError: if it is of another version of the format.
        WireLimitError: if it passes one of `limits`.
        WireError: if it does not follow the format; names the field.
    """
    if len(body) > limits.body_bytes:
        raise WireLimitError("", f"body of {len(body)} bytes, more than {limits.body_bytes}")
    message = decompress(body, limits.message_bytes) if body.startswith(MAGIC) else body
    try:
        version = _HEAD_DECODER.decode(message).version
        if version != WIRE_VERSION:
            raise WireVersionError("version", f"{version}, and this build reads {WIRE_VERSION}")
        if len(message) >= MEASURED_FROM:
            check_size(message, limits)
        wire = _DECODER.decode(message)
    except msgspec.ValidationError as error:
        raise WireError(*name_place(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("", f"not a MessagePack message: {error}") from error
    check(wire, limits)
    return wire


def renumber(body: bytes, epoch: str, seq: int) -> bytes:
    """Return the same batch under another epoch and number, with whatever in it is newer than this build.

    Raises as `decode`.
    """
    decode(body)  # what is not well formed is not passed on
    is_packed = body.startswith(MAGIC)
    message = decompress(body, _DEFAULT_LIMITS.message_bytes) if is_packed else body
    elements = _ELEMENTS_DECODER.decode(message)
    for place, value in ((_EPOCH_PLACE, epoch), (_SEQ_PLACE, seq)):
        elements[place] = msgspec.Raw(_ENCODER.encode(value))
    message = _ENCODER.encode(elements)
    return compress_message(message) if is_packed else message
