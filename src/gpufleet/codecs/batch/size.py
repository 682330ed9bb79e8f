"""Estimate of the unpacked size of a message from its list headers, before any element is decoded.

64 MB of one-byte elements would become gigabytes of Python objects; a list header of five bytes has their number.
"""

from collections.abc import Iterator

import msgspec

from gpufleet.codecs.batch.limits import Limits
from gpufleet.model.errors import WireLimitError
from gpufleet.model.wire.batch import ClusterPart, MachinePart
from gpufleet.model.wire.matrix import CELL_BYTES

MEASURED_FROM = 1 << 20
"""Message size in bytes from which elements are counted: objects of smaller messages stay under 70 MB."""

_RECORD_WEIGHT = 16
"""Memory of an event, status or holding, in cells."""

_PROCESSES_PLACE = MachinePart.__struct_fields__.index("processes")
"""Position of the process lists, whose elements are columns and not records."""

_BINARIES = (b"\xc4", b"\xc5", b"\xc6")
"""First bytes of a MessagePack binary, by the size of its length field."""

MAX_CLUSTER_PART = 4 << 20
"""Maximum size of a cluster part in bytes. An object of the Kubernetes API has at most 1.5 MiB."""

_PART_BYTES_PER_CELL = 4
"""Bytes of a cluster part that count as one cell. Its smallest texts take 25 times their bytes as Python objects."""

_EMPTY = msgspec.Raw(b"\x90")
_ENCODER = msgspec.msgpack.Encoder()
_LIST_DECODER = msgspec.msgpack.Decoder(list[msgspec.Raw])


class _Shape(msgspec.Struct, array_like=True):
    """`WireBatch` with its lists left as bytes."""

    version: msgspec.Raw
    catalogue: msgspec.Raw
    cluster: msgspec.Raw
    sender: msgspec.Raw
    epoch: msgspec.Raw
    seq: msgspec.Raw
    sent_at: msgspec.Raw
    heartbeat: msgspec.Raw = _EMPTY
    machines: msgspec.Raw = _EMPTY
    views: msgspec.Raw = _EMPTY
    absences: msgspec.Raw = _EMPTY
    samples: msgspec.Raw = _EMPTY
    dims: msgspec.Raw = _EMPTY
    parts: msgspec.Raw = _EMPTY
    cluster_part: msgspec.Raw = _EMPTY


_SHAPE_DECODER = msgspec.msgpack.Decoder(_Shape)


def check_size(message: bytes, limits: Limits) -> None:
    """Count the elements of a message's lists.

    Raises:
        WireLimitError: if there are more than `limits` allow.
        msgspec.DecodeError: if it is not MessagePack, or shorter than a batch.
    """
    shape = _SHAPE_DECODER.decode(message)
    size = len(memoryview(shape.cluster_part))
    if size > MAX_CLUSTER_PART:
        raise WireLimitError("cluster_part", f"{size} bytes, more than {MAX_CLUSTER_PART}")
    counter = _Counter(limits.items)
    counter.take_bytes("cluster_part", size)
    counter.take("machines", shape.machines, limits.machines)
    counter.take("views", shape.views, limits.views)
    for index, entries in counter.open("absences", shape.absences, limits.absences):
        counter.take(f"absences[{index}]", entries)
    for name, blocks in (("samples", shape.samples), ("dims", shape.dims)):
        for index, block in counter.open(name, blocks, limits.blocks):
            counter.take_block(f"{name}[{index}]", block)
    for index, part in counter.open("parts", shape.parts, limits.machines):
        for place, records in counter.open(f"parts[{index}]", part):
            counter.take(f"parts[{index}]", records, weight=_RECORD_WEIGHT)
            if place == _PROCESSES_PLACE:
                for at, block in counter.open(f"parts[{index}].processes", records):
                    counter.take_block(f"parts[{index}].processes[{at}]", block)


def cluster_part_cells(part: ClusterPart) -> int:
    """Return the size of a cluster part in cells, whatever the compression of its message."""
    return len(_ENCODER.encode(part)) // _PART_BYTES_PER_CELL


class _Counter:
    """Counter of elements with a limit."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._left = allowed

    def take(self, field: str, value: msgspec.Raw, limit: int | None = None, *, weight: int = 1) -> int:
        """Count the elements of a list and return its length; 0 for any other value."""
        length = _list_length(value)
        if limit is not None and length > limit:
            raise WireLimitError(field, f"{length} entries, more than {limit}")
        self._count(field, 1 + length * weight)
        return length

    def take_bytes(self, field: str, size: int) -> None:
        """Count a cluster part by its size."""
        self._count(field, size // _PART_BYTES_PER_CELL)

    def _count(self, field: str, cells: int) -> None:
        self._left -= cells
        if self._left < 0:
            raise WireLimitError(field, f"more than {self._allowed} items up to here")

    def open(self, field: str, value: msgspec.Raw, limit: int | None = None) -> Iterator[tuple[int, msgspec.Raw]]:
        """Count a list and yield its elements as bytes; none for any other value."""
        if self.take(field, value, limit):
            yield from enumerate(_LIST_DECODER.decode(value))

    def take_block(self, field: str, block: msgspec.Raw) -> None:
        """Count the lists of a block, and the inner lists of a list that begins with a list.

        The typed decoder rejects a list that begins otherwise and has lists later at its first element.
        """
        for _, value in self.open(field, block):
            if _first_is_list(value):
                for _, inner in self.open(field, value):
                    self.take(field, inner)
            else:
                self.take(field, value)


def _list_length(value: msgspec.Raw) -> int:
    """Read a list's length from its header; 0 for anything else (MessagePack specification, array family).

    A binary counts as the numbers that it can hold.
    """
    start = bytes(memoryview(value)[:5])
    if start[:1] in _BINARIES:
        return len(memoryview(value)) // CELL_BYTES
    return _read_header(start)[0]


def _first_is_list(value: msgspec.Raw) -> bool:
    start = bytes(memoryview(value)[:6])
    length, size = _read_header(start)
    return length > 0 and _read_header(start[size:])[1] > 0


def _read_header(data: bytes) -> tuple[int, int]:
    """Return the length of the list that starts here and the size of its header; (0, 0) for any other value."""
    first = data[0] if data else 0xC0
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    if first == 0xDC:
        return int.from_bytes(data[1:3], "big"), 3
    if first == 0xDD:
        return int.from_bytes(data[1:5], "big"), 5
    return 0, 0
