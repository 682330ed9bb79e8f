"""In the child process: `nvmlDeviceGetFieldValues`, one call for many small readings.

It asks the library itself: with the binding's wrapper an entry that the driver left alone looks like a zero.
"""

import ctypes
import struct
from typing import Any, NamedTuple

from gpufleet.readers.nvml.calls.call import Call, custom
from gpufleet.readers.nvml.context import INVALID_ARGUMENT, NOT_SUPPORTED, Context, check, raw_function
from gpufleet.readers.nvml.protocol import LASTING_ENTRIES, NO_VALUE, NOT_OFFERED, UNPROVEN, UNTOUCHED, Value

FIELD_VALUES = "nvmlDeviceGetFieldValues"

Id = tuple[int, int]
"""A field id and its scope."""


class Field(NamedTuple):
    """One entry of a lane's batch.

    Attributes:
        name: names it in the mapping.
        ids: from which driver version on it has which id, newest first; None where the id is not proven.
        scope: what the driver is asked about: 0 unless told, else the GPU or module, a link, or `ALL_LINKS`.
    """

    name: str
    ids: tuple[tuple[tuple[int, ...], int | None], ...]
    scope: int = 0

    def id_in(self, driver: tuple[int, ...]) -> int | None:
        """Return the id that this driver version knows it by.

        Raises:
            LookupError: if this driver version does not have it.
        """
        for since, id_ in self.ids:
            if driver >= since:
                return id_
        raise LookupError(self.name)


Fields = dict[str, tuple[Field, ...]]
"""The fields of a group, by lane."""

FIELD = struct.Struct("<IIqqIiQ")
"""nvmlFieldValue_t: id, scope, timestamp, latency, value type, return code, value union."""

_DOUBLE = 0
_WIDTHS = {1: 32, 2: 64, 3: 64, 4: -64, 5: -32, 6: 16}
"""nvmlValueType_t to the bits of the union that are the value; negative where they are a signed number."""

_ALL_ONES = {1: 0xFFFF_FFFF, 2: 0xFFFF_FFFF_FFFF_FFFF, 3: 0xFFFF_FFFF_FFFF_FFFF, 6: 0xFFFF}
"""nvmlValueType_t to what stands for no value (NVML_VALUE_NOT_AVAILABLE); of signed types it is a number."""

_REFUSALS = (INVALID_ARGUMENT, NOT_SUPPORTED)
"""What a whole call may answer because of one entry that the driver does not know."""


def field(name: str, id_: int, *, since: int = 0, scope: int = 0) -> Field:
    """Return a field whose id is the same in every driver from this branch on (nvml.h, nvidia-ml-py 535 to 615)."""
    return Field(name, (((since,) if since else (), id_),), scope)


def batch_call(lane: str, fields: tuple[Field, ...]) -> Call:
    """Return the call that asks for these fields at once; its answer has an entry a field, as of `decode_fields`."""

    def ask(context: Context) -> Value:
        batch: Batch = context.memory.keep(f"{FIELD_VALUES} {lane}", lambda: _batch_of(fields, context.driver))
        return batch.ask(context)

    return custom(FIELD_VALUES, ask)


class Batch:
    """Entries that are asked for in one call; what the driver does not support is remembered and left out.

    If the driver refuses the call as a whole, halves of it are asked until the entries that it refuses are found,
    once: they are remembered, too.
    """

    def __init__(self, wanted: tuple[Id, ...], told: dict[int, Value] | None = None) -> None:
        """Make it.

        Args:
            wanted: ids and scopes, in the order of the answer.
            told: position to entry of what is not asked at all; `wanted` has anything at that position.
        """
        self._wanted = wanted
        self._entries: list[Value] = [[UNTOUCHED, None]] * len(wanted)
        for position, entry in (told or {}).items():
            self._entries[position] = entry
        self._arm([position for position in range(len(wanted)) if position not in (told or {})])

    def ask(self, context: Context) -> list[Any]:
        """Ask; return each entry as `decode_fields` does."""
        try:
            found = self._ask(context)
        except context.nvml.NVMLError as error:
            if error.value not in _REFUSALS:
                raise
            found = self._ask_halves(context, self._asked)
        entries = self._entries.copy()
        lasting = False
        for position, entry in zip(self._asked, found, strict=True):
            entries[position] = entry
            if isinstance(entry, list) and entry[0] in LASTING_ENTRIES:
                self._entries[position] = entry
                lasting = True
        if lasting:
            self._arm([p for p in self._asked if self._entries[p] is not entries[p]])
        return entries

    def _arm(self, positions: list[int]) -> None:
        """Prepare the call for these positions: entries fresh every time, for a driver may leave one as it was."""
        self._asked = positions
        self._fresh = b"".join(FIELD.pack(*self._wanted[p], 0, 0, 0, UNTOUCHED, 0) for p in positions)
        self._buffer = ctypes.create_string_buffer(max(len(self._fresh), 1))

    def _ask(self, context: Context) -> list[Value]:
        if not self._asked:
            return []
        ctypes.memmove(self._buffer, self._fresh, len(self._fresh))
        check(context, raw_function(context, FIELD_VALUES)(context.handle, len(self._asked), self._buffer))
        return decode_fields(self._buffer.raw)

    def _ask_halves(self, context: Context, positions: list[int]) -> list[Value]:
        part = Batch(tuple([self._wanted[p] for p in positions]))
        try:
            return part._ask(context)
        except context.nvml.NVMLError as error:
            if error.value not in _REFUSALS:
                raise
            if len(positions) == 1:
                return [[error.value, None]]
        middle = len(positions) // 2
        return [*self._ask_halves(context, positions[:middle]), *self._ask_halves(context, positions[middle:])]


def _batch_of(fields: tuple[Field, ...], driver: tuple[int, ...]) -> Batch:
    """Return the batch for a driver version."""
    wanted: list[Id] = []
    told: dict[int, Value] = {}
    for position, one in enumerate(fields):
        try:
            id_ = one.id_in(driver)
        except LookupError:
            id_, told[position] = None, [NOT_OFFERED, None]
        else:
            if id_ is None:
                told[position] = [UNPROVEN, None]
        wanted.append((id_ or 0, one.scope))
    return Batch(tuple(wanted), told)


def decode_fields(entries: bytes) -> list[Value]:
    """Decode nvmlFieldValue_t entries to a value each, by its own type, or to [code, None] where there is none.

    An entry is untouched when its code still is, or when a driver only zeroed it: a real answer has a
    timestamp. A type that nvml.h does not have is untouched, too: nothing can be read from it. All ones of an
    unsigned type are no value.
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
            value = _whole(bits, _WIDTHS[kind])
            found.append([NO_VALUE, None] if value == _ALL_ONES.get(kind) else value)
        else:
            found.append([UNTOUCHED, None])
    return found


def _whole(bits: int, width: int) -> int:
    if width > 0:
        return bits & ((1 << width) - 1)
    value = bits & ((1 << -width) - 1)
    return value - (1 << -width) if value >> (-width - 1) else value
