"""Messages between the reader and its child process: length-prefixed MessagePack over two pipes.

The child answers a `Request` with one `SessionRecord`, and for each GPU with an `AttachedRecord` whenever it attached
the device, and one `GpuPassRecord` or `BusyRecord`. Records are sent as soon as they are complete, in any order of
devices, so a GPU that hangs does not delay the others.
"""

import struct
from typing import Any

import msgspec

UNTOUCHED = -1
"""Pseudo return code: the driver answered a batch of fields and left this entry unchanged."""

NOT_OFFERED = -2
"""Pseudo return code: this driver version does not have the field id, so it was not queried."""

DEFECT = -3
"""Pseudo return code: the call raised an exception other than NVMLError; the value is the exception's name."""

UNPROVEN = -4
"""Pseudo return code: the field has another id in some drivers around this version, so it was not queried."""

NOT_APPLICABLE = -5
"""Pseudo return code: the device is not in the role of the call, so it was not queried."""

NO_VALUE = -6
"""Pseudo return code: the driver answered a field with all ones of the field's type, which mean no value."""

PERMANENT_ENTRY_CODES = frozenset({2, 3, 13, 26})
"""Codes of a list entry that remain valid until the device is attached again; the entry is not queried again."""

SESSION_SLOT = 0
"""Breadcrumb of the session; GPU i has slot i + 1."""

SLOTS = 1024
"""Breadcrumbs in the shared memory: native unsigned 32-bit indices of `calls.LABELS`."""

MAX_FRAME_BYTES = 1 << 20

Value = int | float | str | list[Any] | None
"""A raw value of the driver; a list if a call returns several."""


class Request(msgspec.Struct, array_like=True, frozen=True):
    """Request for one pass of a lane; every answer to it repeats `round`."""

    round: int
    lane: str


class CallResult(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Result of one call.

    Attributes:
        code: nvmlReturn_t, or a pseudo code above; 0 is success.
        value: returned value.
        breadcrumb: index in `calls.LABELS` of the function called last.
    """

    code: int
    value: Value = None
    breadcrumb: int = 0


class SessionRecord(msgspec.Struct, array_like=True, frozen=True, tag="session"):
    """State of NVML as a whole.

    Attributes:
        round: of the request.
        code: 0, or the code that ended the session.
        message: the driver's text for `code`.
        breadcrumb: index in `calls.LABELS` of the call that failed.
        open_error: reason that the driver's control device cannot be opened, or empty; only with an unknown error.
        count: number of GPUs.
        driver, library, cuda: versions.
        measured_at: nanoseconds since 1970.
        system: one result per call of `calls.SYSTEM_CALLS` on the static lane; empty on the others.
    """

    round: int
    code: int = 0
    message: str = ""
    breadcrumb: int = 0
    open_error: str = ""
    count: int = 0
    driver: CallResult = CallResult(0)
    library: CallResult = CallResult(0)
    cuda: CallResult = CallResult(0)
    measured_at: int = 0
    system: tuple[CallResult, ...] = ()


class AttachedRecord(msgspec.Struct, array_like=True, frozen=True, tag="attached"):
    """Identity of the device at an index in this session; an empty text if the driver does not report it.

    Attributes:
        index: index of the device.
        uuid, pci: its UUID and PCI address.
        pci_code: return code of the query for `pci`.
    """

    index: int
    uuid: str
    pci: str
    pci_code: int = 0


class InstanceRecord(msgspec.Struct, array_like=True, frozen=True):
    """Answers of one MIG device or vGPU instance.

    Attributes:
        kind: key of `calls.INSTANCE_CALLS`.
        identity: its identifiers by name.
        code: 0, or the code that ended its pass.
        breadcrumb: index in `calls.LABELS` of the call that ended it.
        answers: one per call of the kind and lane, in the order of `calls.INSTANCE_CALLS`; empty if `code` is not 0.
    """

    kind: str
    identity: dict[str, CallResult]
    code: int = 0
    breadcrumb: int = 0
    answers: tuple[CallResult, ...] = ()


class GpuPassRecord(msgspec.Struct, array_like=True, frozen=True, tag="device"):
    """Answers of one GPU in one pass.

    Attributes:
        round: of the request.
        index: index of the GPU.
        measured_at: nanoseconds since 1970, when the last value was read.
        code: 0, or the code that ended the pass over this device.
        message: the driver's text for `code`.
        breadcrumb: index in `calls.LABELS` of the call that ended it.
        mig, virtualization: modes in this pass.
        answers: one per call of the lane, in the order of `calls.CALLS[lane]`; empty if `code` is not 0.
        totals: kind of instance to their number, or the reason that it is unknown; only kinds that were listed.
        instances: MIG devices and vGPU instances of the GPU.
        roles: roles of the GPU in this pass (`calls.call.MIG_PARENT`, ...).
        parts: part of the board, as in `fleet.board` (`ecc`, `nvlink`), to the answer that shows whether it has it.
        product: answer with the product name; None if it was not queried.
    """

    round: int
    index: int
    measured_at: int
    code: int = 0
    message: str = ""
    breadcrumb: int = 0
    mig: CallResult = CallResult(0)
    virtualization: CallResult = CallResult(0)
    answers: tuple[CallResult, ...] = ()
    totals: dict[str, CallResult] = {}
    instances: tuple[InstanceRecord, ...] = ()
    roles: tuple[str, ...] = ()
    parts: dict[str, CallResult] = {}
    product: CallResult | None = None


class BusyRecord(msgspec.Struct, array_like=True, frozen=True, tag="busy"):
    """A GPU whose thread is still inside a call of an earlier round: it was not queried."""

    round: int
    index: int


class DriverEventRecord(msgspec.Struct, array_like=True, frozen=True, tag="event"):
    """An event of the driver; unsolicited.

    Attributes:
        index: of the GPU, or -1 for an unregistered GPU.
        kind, data: nvmlEventData_t's type and data; for an XID the data is its number.
        gpu_instance, compute_instance: of a MIG device, or 0xffffffff.
        at: nanoseconds since 1970 when it was received.
    """

    index: int
    kind: int
    data: int
    gpu_instance: int
    compute_instance: int
    at: int


class BindingRecord(msgspec.Struct, array_like=True, frozen=True, tag="system"):
    """Binding or unbinding of a GPU by a kernel driver; unsolicited.

    Attributes:
        kind: nvmlSystemEventData_v1_t's type.
        gpu: its `gpuId`, which does not identify a device that NVML lists.
        at: nanoseconds since 1970 when it was received.
    """

    kind: int
    gpu: int
    at: int


class RegistrationRecord(msgspec.Struct, array_like=True, frozen=True, tag="watched"):
    """Return code of each GPU's registration for events, by index; unsolicited."""

    codes: tuple[int, ...]


Record = (
    SessionRecord | AttachedRecord | GpuPassRecord | BusyRecord | DriverEventRecord | RegistrationRecord | BindingRecord
)

_LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_request = msgspec.msgpack.Decoder(Request).decode


def encode_frame(message: Request | Record) -> bytes:
    """Return the message prefixed with its length."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


def decode_request(body: bytes) -> Request:
    """Decode a request's body; raises msgspec.MsgspecError for anything else."""
    return _decode_request(body)


class Frames:
    """Splitter of a byte stream into records."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[Record]:
        """Add bytes; return the records that are now complete.

        Raises:
            ValueError: if the bytes are not records (msgspec's errors are ValueErrors).
        """
        stream = self._pending + data if self._pending else data
        records, begin = [], 0
        while len(stream) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(stream, begin)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"record of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
            body = begin + _LENGTH.size
            if len(stream) < body + length:
                break
            begin = body + length
            records.append(_decode_record(memoryview(stream)[body:begin]))
        self._pending = stream[begin:]
        return records
