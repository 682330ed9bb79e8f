"""Batches of `nvmlDeviceGetFieldValues`: one call for many small readings, in the child process.

The library is called directly: with the binding's wrapper, an entry that the driver did not fill looks like a zero.
"""

import ctypes
import struct
from typing import Any, NamedTuple

from gpufleet.readers.nvml.calls.call import Call, custom
from gpufleet.readers.nvml.context import INVALID_ARGUMENT, NOT_SUPPORTED, Context, check, raw_function
from gpufleet.readers.nvml.protocol import NO_VALUE, NOT_OFFERED, PERMANENT_ENTRY_CODES, UNPROVEN, UNTOUCHED, Value

FIELD_VALUES = "nvmlDeviceGetFieldValues"

FieldId = tuple[int, int]
"""A field id and its scope."""


class Field(NamedTuple):
    """Entry of a lane's batch.

    Attributes:
        name: name of the field in the mapping.
        ids: driver version and the field id from that version on, newest first; None where the id is not proven.
        scope: subject of the query: 0 by default, else the GPU or module, a link, or `ALL_LINKS`.
    """

    name: str
    ids: tuple[tuple[tuple[int, ...], int | None], ...]
    scope: int = 0

    def id_in(self, driver: tuple[int, ...]) -> int | None:
        """Return the field id in this driver version, None if it is not proven.

        Raises:
            LookupError: if this driver version does not have the field.
        """
        for since, id_ in self.ids:
            if driver >= since:
                return id_
        raise LookupError(self.name)


Fields = dict[str, tuple[Field, ...]]
"""Fields by lane."""

FIELD = struct.Struct("<IIqqIiQ")
"""nvmlFieldValue_t: id, scope, timestamp, latency, value type, return code, value union."""

_DOUBLE = 0
_WIDTHS = {1: 32, 2: 64, 3: 64, 4: -64, 5: -32, 6: 16}
"""nvmlValueType_t to the bits of the union that hold the value; negative for signed numbers."""

_ALL_ONES = {1: 0xFFFF_FFFF, 2: 0xFFFF_FFFF_FFFF_FFFF, 3: 0xFFFF_FFFF_FFFF_FFFF, 6: 0xFFFF}
"""nvmlValueType_t to its "no value" (NVML_VALUE_NOT_AVAILABLE). For signed types the same bits are a number."""

_REFUSALS = (INVALID_ARGUMENT, NOT_SUPPORTED)
"""Possible codes of a whole call because of one entry that the driver does not support."""


def field(name: str, id_: int, *, since: int = 0, scope: int = 0) -> Field:
    """Return a field with the same id in every driver from this branch on (nvml.h, nvidia-ml-py 535 to 615)."""
    return Field(name, (((since,) if since else (), id_),), scope)


def batch_call(lane: str, fields: tuple[Field, ...]) -> Call:
    """Return the call that queries these fields at once; its answer has an entry per field, as of `decode_fields`."""

    def query(context: Context) -> Value:
        batch: FieldBatch = context.cache.get_or_create(
            f"{FIELD_VALUES} {lane}", lambda: _batch_of(fields, context.driver)
        )
        return batch.query(context)

    return custom(FIELD_VALUES, query)


class FieldBatch:
    """Field values queried in one call. Unsupported entries are cached and left out of later calls.

    If the driver rejects the call as a whole, its halves are queried until the rejected entries are found. This happens
    once: those entries are cached, too.
    """

    def __init__(self, ids: tuple[FieldId, ...], fixed: dict[int, Value] | None = None) -> None:
        """Create the batch.

        Args:
            ids: ids and scopes, in the order of the answer.
            fixed: position to entry of fields that are never queried; `ids` has an arbitrary id at that position.
        """
        self._ids = ids
        self._entries: list[Value] = [[UNTOUCHED, None]] * len(ids)
        for position, entry in (fixed or {}).items():
            self._entries[position] = entry
        self._prepare([position for position in range(len(ids)) if position not in (fixed or {})])

    def query(self, context: Context) -> list[Any]:
        """Query the fields; return each entry as `decode_fields` does."""
        try:
            found = self._query(context)
        except context.nvml.NVMLError as error:
            if error.value not in _REFUSALS:
                raise
            found = self._query_halves(context, self._positions)
        entries = self._entries.copy()
        permanent = False
        for position, entry in zip(self._positions, found, strict=True):
            entries[position] = entry
            if isinstance(entry, list) and entry[0] in PERMANENT_ENTRY_CODES:
                self._entries[position] = entry
                permanent = True
        if permanent:
            self._prepare([p for p in self._positions if self._entries[p] is not entries[p]])
        return entries

    def _prepare(self, positions: list[int]) -> None:
        """Prepare the call for these positions. Entries are reset before each call: a driver may skip some."""
        self._positions = positions
        self._blank = b"".join(FIELD.pack(*self._ids[p], 0, 0, 0, UNTOUCHED, 0) for p in positions)
        self._buffer = ctypes.create_string_buffer(max(len(self._blank), 1))

    def _query(self, context: Context) -> list[Value]:
        if not self._positions:
            return []
        ctypes.memmove(self._buffer, self._blank, len(self._blank))
        check(context, raw_function(context, FIELD_VALUES)(context.handle, len(self._positions), self._buffer))
        return decode_fields(self._buffer.raw)

    def _query_halves(self, context: Context, positions: list[int]) -> list[Value]:
        part = FieldBatch(tuple([self._ids[p] for p in positions]))
        try:
            return part._query(context)
        except context.nvml.NVMLError as error:
            if error.value not in _REFUSALS:
                raise
            if len(positions) == 1:
                return [[error.value, None]]
        middle = len(positions) // 2
        return [*self._query_halves(context, positions[:middle]), *self._query_halves(context, positions[middle:])]


def _batch_of(fields: tuple[Field, ...], driver: tuple[int, ...]) -> FieldBatch:
    """Return the batch for a driver version."""
    ids: list[FieldId] = []
    fixed: dict[int, Value] = {}
    for position, entry in enumerate(fields):
        try:
            id_ = entry.id_in(driver)
        except LookupError:
            id_, fixed[position] = None, [NOT_OFFERED, None]
        else:
            if id_ is None:
                fixed[position] = [UNPROVEN, None]
        ids.append((id_ or 0, entry.scope))
    return FieldBatch(tuple(ids), fixed)


def decode_fields(entries: bytes) -> list[Value]:
    """Decode nvmlFieldValue_t entries, each to a value by its own type, or to [code, None] without a value.

    An entry is untouched if its code is unchanged, or if the driver only zeroed it: a real answer has a timestamp. An
    entry of a type that nvml.h does not have is untouched, too, because it cannot be decoded. All ones of an unsigned
    type mean no value.
    """
    found: list[Value] = []
    for _id, _scope, timestamp, latency, kind, code, bits in FIELD.iter_unpack(entries):
        if code == UNTOUCHED or (code == 0 and not (timestamp or latency)):
            found.append([UNTOUCHED, None])
        elif code:
            found.append([code, None])
        elif kind == _DOUBLE:
            found.append(struct.unpack("<d", bits.to_bytes(8, "little"))[0])
        elif kind in _WIDTHS:
            value = _integer(bits, _WIDTHS[kind])
            found.append([NO_VALUE, None] if value == _ALL_ONES.get(kind) else value)
        else:
            found.append([UNTOUCHED, None])
    return found


def _integer(bits: int, width: int) -> int:
    if width > 0:
        return bits & ((1 << width) - 1)
    value = bits & ((1 << -width) - 1)
    return value - (1 << -width) if value >> (-width - 1) else value
