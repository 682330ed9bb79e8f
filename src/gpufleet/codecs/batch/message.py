"""Message of a batch: numbers of a block packed in one binary, and repeated tables cached by their bytes.

Both avoid Python objects per value: creating them, and reading them again when the batch is written to the store, was
most of the cost of a batch on the hub.
"""

import sys
from array import array
from typing import Annotated, cast

import msgspec

from gpufleet.codecs.batch.limits import Limits, name_place
from gpufleet.codecs.batch.records import check_machines, check_views
from gpufleet.codecs.batch.structure import check, check_metrics
from gpufleet.codecs.batch.tables import TableCache
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.model.view import View, ViewList
from gpufleet.model.wire.batch import (
    Cell,
    ClusterPart,
    DimBlock,
    Index,
    IndexOrNone,
    Instant,
    MachinePart,
    Name,
    SampleBlock,
    WireAbsence,
    WireBatch,
)
from gpufleet.model.wire.matrix import CELL_BYTES, LISTED, NUMBER_CODES, Matrix, MatrixLayout

VIEWS_BYTES = 576 << 20
"""Approximate memory for cached views. A node with 8 GPUs takes 4 kB: enough for 140,000 nodes."""

MACHINES_BYTES = 128 << 20
"""Approximate memory for cached machines."""

_MOST_LAYOUTS = 256
"""Maximum number of cached layouts; nodes of one kind, and readers of one lane, share them."""

_LARGEST_LAYOUT = 8 << 10
"""Maximum size of the names of a cached layout in bytes."""

_EXACT = 1 << 53
"""Largest range in which every integer is exact as a float."""


class PackedBlock(msgspec.Struct, array_like=True):
    """`SampleBlock` in a message. `columns` has the columns with code `-`, in order.

    Attributes:
        codes: one per metric: `q` for integers, `d` for floats, `-` for a list in `columns`.
        cells: numbers of all other columns, row by row, 8 bytes each, little-endian.
    """

    reader: Name
    lane: Name
    provenance: Name
    metrics: msgspec.Raw
    machine: list[Index]
    view: list[IndexOrNone]
    measured_at: list[Instant]
    driver_session: list[Index]
    absence: list[IndexOrNone]
    columns: list[list[Cell]]
    codes: Annotated[str, msgspec.Meta(max_length=1024, pattern="^[qd-]*$")]
    cells: bytes


_NO_LIST = msgspec.Raw(b"\x90")


class PackedBatch(msgspec.Struct, array_like=True):
    """`WireBatch` in a message, with its tables as bytes."""

    version: int
    catalogue: int
    cluster: Name
    sender: Name
    epoch: Annotated[str, msgspec.Meta(min_length=32, max_length=32)]
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    sent_at: Instant
    heartbeat: Heartbeat | None = None
    machines: msgspec.Raw = _NO_LIST
    views: msgspec.Raw = _NO_LIST
    absences: list[list[WireAbsence]] = []
    samples: list[PackedBlock] = []
    dims: list[DimBlock] = []
    parts: list[MachinePart] = []
    cluster_part: ClusterPart | None = None


_SAMPLES = WireBatch.__struct_fields__.index("samples")
_METRICS = SampleBlock.__struct_fields__.index("metrics")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PackedBatch)
_NAMES_DECODER = msgspec.msgpack.Decoder(Annotated[list[Name], msgspec.Meta(max_length=1024)])
_MACHINES = TableCache("machines", Machine, check_machines, most_bytes=MACHINES_BYTES)
_VIEWS = TableCache("views", View, check_views, most_bytes=VIEWS_BYTES, made=ViewList)
_layouts: dict[tuple[bytes, str], MatrixLayout] = {}


def unpack_message(message: bytes, limits: Limits, *, as_matrix: bool) -> WireBatch:
    """Decode a message into columns and validate the structure.

    Args:
        message: message whose list sizes are checked.
        limits: as in `decode`.
        as_matrix: as in `decode`; only blocks in which every number has its metric's type stay packed.

    Raises:
        msgspec.DecodeError, WireError: as in `decode`.
    """
    try:
        found = _DECODER.decode(message)
    except msgspec.ValidationError as error:
        raise WireError(*name_place(error, PackedBatch)) from error
    machines, views = _MACHINES.of(found.machines), _VIEWS.of(found.views)
    wire = WireBatch(
        found.version,
        found.catalogue,
        found.cluster,
        found.sender,
        found.epoch,
        found.seq,
        found.sent_at,
        found.heartbeat,
        machines if as_matrix else list(machines),
        views if as_matrix else list(views),
        found.absences,
        [_block(index, block, as_matrix=as_matrix) for index, block in enumerate(found.samples)],
        found.dims,
        found.parts,
        found.cluster_part,
    )
    if sum(len(block.cells) for block in found.samples) > limits.items * CELL_BYTES:
        raise WireLimitError("samples", f"more than {limits.items} items")
    check(wire, limits, with_tables=False)
    return wire


def pack_message(wire: WireBatch) -> bytes:
    """Encode well-formed columns as a message. Raises UnicodeEncodeError for a text that UTF-8 cannot encode."""
    elements = [getattr(wire, name) for name in WireBatch.__struct_fields__]
    elements[_SAMPLES] = [pack_block(block) for block in wire.samples]
    return _ENCODER.encode(elements)


def _block(index: int, block: PackedBlock, *, as_matrix: bool) -> SampleBlock:
    field = f"samples[{index}]"
    layout = _layout(index, block)
    rows = len(block.machine)
    listed = len(layout.codes) - layout.width
    if len(block.columns) != listed:
        raise WireError(f"{field}.columns", f"{len(block.columns)} columns, expected {listed} by the codes")
    for at, column in enumerate(block.columns):
        if len(column) != rows:
            raise WireError(f"{field}.columns[{at}]", f"{len(column)} cells for {rows} rows")
    if len(block.cells) != rows * layout.width * CELL_BYTES:
        reason = f"{len(block.cells)} bytes for {rows} rows of {layout.width} numbers"
        raise WireError(f"{field}.cells", reason)
    matrix = Matrix(layout, rows, _in_order(block.cells), block.columns)
    columns = matrix if as_matrix and layout.is_typed else [list(column) for column in matrix]
    return SampleBlock(
        block.reader,
        block.lane,
        block.provenance,
        layout.names if as_matrix else list(layout.names),
        block.machine,
        block.view,
        block.measured_at,
        block.driver_session,
        block.absence,
        cast("list[list[Cell]]", columns),
    )


def _layout(index: int, block: PackedBlock) -> MatrixLayout:
    key = bytes(block.metrics), block.codes
    found = _layouts.get(key)
    if found is not None:
        return found
    field = f"samples[{index}]"
    try:
        names = _NAMES_DECODER.decode(block.metrics)
    except msgspec.ValidationError as error:
        raise WireError(*name_place(error, within=f"[{_SAMPLES}][{index}][{_METRICS}]")) from error
    check_metrics(field, names)
    if len(names) != len(block.codes):
        raise WireError(f"{field}.codes", f"{len(block.codes)} codes for {len(names)} metrics")
    found = MatrixLayout(names, block.codes)
    if len(_layouts) >= _MOST_LAYOUTS:
        _layouts.clear()  # a sender invents names; layouts in use are cached again
    if len(key[0]) <= _LARGEST_LAYOUT:
        _layouts[key] = found
    return found


def pack_block(block: SampleBlock) -> list[object]:
    """Pack a block: columns with only numbers that convert without loss go into the binary."""
    numbers: list[array[int] | array[float]] = []
    lists: list[list[Cell]] = []
    codes: list[str] = []
    for name, column in zip(block.metrics, block.columns, strict=True):
        packed = _numbers(NUMBER_CODES.get(name), column)
        if packed is None:
            lists.append(list(column))
        else:
            numbers.append(packed)
        codes.append(LISTED if packed is None else packed.typecode)
    cells = array("q", bytes(CELL_BYTES * len(numbers) * len(block.machine)))
    for at, column_of in enumerate(numbers):
        cells[at :: len(numbers)] = array("q", column_of.tobytes())
    rows = (block.machine, block.view, block.measured_at, block.driver_session, block.absence)
    head = (block.reader, block.lane, block.provenance, block.metrics)
    return [*head, *rows, lists, "".join(codes), _in_order(cells.tobytes())]


def _numbers(code: str | None, column: list[Cell]) -> "array[int] | array[float] | None":
    if code == "q" and set(map(type, column)) <= {int}:
        try:
            return array("q", cast("list[int]", column))
        except OverflowError:
            return None
    if code == "d" and set(map(type, column)) <= {int, float}:
        numbers = cast("list[float]", column)
        return array("d", numbers) if all(type(one) is float or abs(one) <= _EXACT for one in numbers) else None
    return None


def _in_order(cells: bytes) -> bytes:
    """Convert numbers between the byte order of this machine and that of the wire."""
    if sys.byteorder == "little":
        return cells
    turned = array("q", cells)
    turned.byteswap()
    return turned.tobytes()
