"""How much a message would unpack to, found from its list headers before anything in them is made.

Sixty-four megabytes of one-byte elements would become gigabytes of Python objects; a header of five
bytes says how many there are.
"""

from collections.abc import Iterator

import msgspec

from gpufleet.codecs.batch.limits import Limits
from gpufleet.model.errors import WireLimitError
from gpufleet.model.wire.batch import MachinePart
from gpufleet.model.wire.matrix import CELL_BYTES

MEASURED_FROM = 1 << 20
"""Bytes from which a message is measured: the objects of a smaller one stay under 70 MB whatever it holds."""

_RECORD_WEIGHT = 16
"""An event, a status or a holding takes about as much memory as this many cells."""

_PROCESSES_PLACE = MachinePart.__struct_fields__.index("processes")
"""Its elements are columns, not records."""

_BINARIES = (b"\xc4", b"\xc5", b"\xc6")
"""What a binary begins with, by the size of its length."""

_EMPTY = msgspec.Raw(b"\x90")
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


_SHAPE_DECODER = msgspec.msgpack.Decoder(_Shape)


def check_size(message: bytes, limits: Limits) -> None:
    """Count the elements of a message's lists.

    Raises:
        WireLimitError: if there are more than `limits` allow.
        msgspec.DecodeError: if it is not MessagePack, or shorter than a batch.
    """
    shape = _SHAPE_DECODER.decode(message)
    counter = _Counter(limits.items)
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
                for at, told in counter.open(f"parts[{index}].processes", records):
                    counter.take_block(f"parts[{index}].processes[{at}]", told)


class _Counter:
    """Adds up elements until there are too many."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._left = allowed

    def take(self, field: str, value: msgspec.Raw, limit: int | None = None, *, weight: int = 1) -> int:
        """Take the length of a list off what is left and return it; what is not a list has no length."""
        length = _list_length(value)
        if limit is not None and length > limit:
            raise WireLimitError(field, f"{length} entries, more than {limit}")
        self._left -= 1 + length * weight
        if self._left < 0:
            raise WireLimitError(field, f"more than {self._allowed} items up to here")
        return length

    def open(self, field: str, value: msgspec.Raw, limit: int | None = None) -> Iterator[tuple[int, msgspec.Raw]]:
        """Take a list and give its elements, each still bytes; what is not a list has none."""
        if self.take(field, value, limit):
            yield from enumerate(_LIST_DECODER.decode(value))

    def take_block(self, field: str, block: msgspec.Raw) -> None:
        """Take the lists of a block, and the lists in those that begin with a list.

        One that begins otherwise and has lists later is refused by the typed decoder at its first element.
        """
        for _, value in self.open(field, block):
            if _first_is_list(value):
                for _, inner in self.open(field, value):
                    self.take(field, inner)
            else:
                self.take(field, value)


def _list_length(value: msgspec.Raw) -> int:
    """Read a list's length from its header; 0 for anything else (MessagePack specification, array family).

    A binary counts for the numbers that it may be.
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
    """Return the length of the list that starts here and the size of its header; (0, 0) for no list."""
    first = data[0] if data else 0xC0
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    if first == 0xDC:
        return int.from_bytes(data[1:3], "big"), 3
    if first == 0xDD:
        return int.from_bytes(data[1:5], "big"), 5
    return 0, 0
