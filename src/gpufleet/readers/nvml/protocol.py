"""What the reader and its child process say to each other: length-prefixed MessagePack over two pipes.

The child answers a `Request` with one `SessionRecord`, and for each GPU with an `AttachedRecord` whenever it
got hold of the device, and one `DeviceRecord` or `BusyRecord`. Records come as soon as they are known, in any
order of devices, so that one silent GPU withholds nothing of the others.
"""

import struct
from typing import Any

import msgspec

UNTOUCHED = -1
"""Pseudo return code: the driver answered a batch of fields and left this entry as it was."""

NOT_OFFERED = -2
"""Pseudo return code: this driver version does not know the field id, so it was not asked."""

DEFECT = -3
"""Pseudo return code: asking raised something that is no NVML error; the value is the exception's name."""

UNPROVEN = -4
"""Pseudo return code: the field has another id in some drivers around this version, so it was not asked."""

NOT_ASKED = -5
"""Pseudo return code: the device is not in the role that the call is about."""

NO_VALUE = -6
"""Pseudo return code: the driver answered a field with all ones of the field's own type, which stand for no value."""

LASTING_ENTRIES = frozenset({2, 3, 13, 26})
"""Codes of one entry of many that stay true until the device is attached again; it is not asked again."""

SESSION_SLOT = 0
"""Breadcrumb of the session; GPU i has slot i + 1."""

SLOTS = 1024
"""Breadcrumbs in the shared memory: native unsigned 32-bit numbers of `calls.LABELS`."""

MAX_FRAME_BYTES = 1 << 20

Value = int | float | str | list[Any] | None
"""A raw value as the driver gave it; a list where a call gives several."""


class Request(msgspec.Struct, array_like=True, frozen=True):
    """Asks for one pass of a lane; `round` comes back in every answer to it."""

    round: int
    lane: str


class Answer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one call came to.

    Attributes:
        code: nvmlReturn_t, or a pseudo code above; 0 is success.
        value: what it gave.
        asked: index in `calls.LABELS` of the function that was asked last.
    """

    code: int
    value: Value = None
    asked: int = 0


class SessionRecord(msgspec.Struct, array_like=True, frozen=True, tag="session"):
    """How NVML as a whole is.

    Attributes:
        round: of the request.
        code: 0, or the code that makes the whole session useless.
        words: the driver's words for `code`.
        asked: index in `calls.LABELS` of the call that failed.
        no_access: why the driver's control device cannot be opened, or empty; told with an unknown error only.
        count: GPUs the driver shows.
        driver, library, cuda: versions.
        measured_at: nanoseconds since 1970.
        system: one a call of `calls.SYSTEM_CALLS`, on the static lane; empty on the others.
    """

    round: int
    code: int = 0
    words: str = ""
    asked: int = 0
    no_access: str = ""
    count: int = 0
    driver: Answer = Answer(0)
    library: Answer = Answer(0)
    cuda: Answer = Answer(0)
    measured_at: int = 0
    system: tuple[Answer, ...] = ()


class AttachedRecord(msgspec.Struct, array_like=True, frozen=True, tag="attached"):
    """Which device stands behind an index in this session; an empty text where the driver would not tell.

    Attributes:
        index: which.
        uuid, pci: what names it.
        pci_code: return code of the question for `pci`.
    """

    index: int
    uuid: str
    pci: str
    pci_code: int = 0


class InstanceRecord(msgspec.Struct, array_like=True, frozen=True):
    """The answers of one part of a GPU: a MIG device, or a vGPU instance.

    Attributes:
        kind: key of `calls.INSTANCE_CALLS`.
        identity: what names it, by the name of the part.
        code: 0, or the code that ended asking about it.
        asked: index in `calls.LABELS` of the call that ended it.
        answers: one a call of the kind and lane, in the order of `calls.INSTANCE_CALLS`; empty if `code` is not 0.
    """

    kind: str
    identity: dict[str, Answer]
    code: int = 0
    asked: int = 0
    answers: tuple[Answer, ...] = ()


class DeviceRecord(msgspec.Struct, array_like=True, frozen=True, tag="device"):
    """One GPU's answers.

    Attributes:
        round, index: which.
        measured_at: nanoseconds since 1970, when the last value was read.
        code: 0, or the code that ended the pass over this device.
        words: the driver's words for `code`.
        asked: index in `calls.LABELS` of the call that ended it.
        mig, virtualization: modes as they are in this pass.
        answers: one a call of the lane, in the order of `calls.CALLS[lane]`; empty if `code` is not 0.
        found: kind of instance to how many of them there are, or why that cannot be told; only kinds that were
            looked for.
        instances: the parts that the GPU is cut or shared into.
        roles: what the GPU is in this pass (`calls.call.MIG_PARENT`, ...).
    """

    round: int
    index: int
    measured_at: int
    code: int = 0
    words: str = ""
    asked: int = 0
    mig: Answer = Answer(0)
    virtualization: Answer = Answer(0)
    answers: tuple[Answer, ...] = ()
    found: dict[str, Answer] = {}
    instances: tuple[InstanceRecord, ...] = ()
    roles: tuple[str, ...] = ()


class BusyRecord(msgspec.Struct, array_like=True, frozen=True, tag="busy"):
    """This GPU's thread is still inside a call of an earlier round: it was not asked again."""

    round: int
    index: int


class EventRecord(msgspec.Struct, array_like=True, frozen=True, tag="event"):
    """The driver told of an event; comes on its own, not in answer to a request.

    Attributes:
        index: of the GPU, or -1 for one that was not registered.
        kind, data: nvmlEventData_t's type and data; for an XID the data is its number.
        gpu_instance, compute_instance: of a MIG device, or 0xffffffff.
        at: nanoseconds since 1970 when it was told.
    """

    index: int
    kind: int
    data: int
    gpu_instance: int
    compute_instance: int
    at: int


class SystemEventRecord(msgspec.Struct, array_like=True, frozen=True, tag="system"):
    """A kernel driver takes a GPU or gives one up; comes on its own.

    Attributes:
        kind: nvmlSystemEventData_v1_t's type.
        gpu: its `gpuId`, which names no device that NVML lists.
        at: nanoseconds since 1970 when it was told.
    """

    kind: int
    gpu: int
    at: int


class WatchedRecord(msgspec.Struct, array_like=True, frozen=True, tag="watched"):
    """Whether the driver tells of events: the return code of each GPU's registration, by index; comes on its own."""

    codes: tuple[int, ...]


Record = SessionRecord | AttachedRecord | DeviceRecord | BusyRecord | EventRecord | WatchedRecord | SystemEventRecord

_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_request = msgspec.msgpack.Decoder(Request).decode


def encode_frame(message: Request | Record) -> bytes:
    """Return the message with its length before it."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_request(body: bytes) -> Request:
    """Decode a request's body; raises msgspec.MsgspecError for anything else."""
    return _decode_request(body)


class Frames:
    """Cuts a byte stream into records."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[Record]:
        """Take more bytes; return the records that are complete now.

        Raises:
            ValueError: if the bytes are not what a child says (msgspec's errors are ValueErrors).
        """
        stream = self._pending + data if self._pending else data
        records, begin = [], 0
        while len(stream) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(stream, begin)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a record of {length} bytes")
            body = begin + _LENGTH.size
            if len(stream) < body + length:
                break
            begin = body + length
            records.append(_decode_record(memoryview(stream)[body:begin]))
        self._pending = stream[begin:]
        return records
