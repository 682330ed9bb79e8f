"""In the child process: `nvmlDeviceGetFieldValues`, one call for many small readings.

It asks the library itself: with the binding's wrapper an entry that the driver left alone looks like a zero.
"""

import ctypes
import struct

from gpufleet.readers.nvml.context import INVALID_ARGUMENT, Context, raw_function
from gpufleet.readers.nvml.protocol import NOT_OFFERED, UNTOUCHED, Value

FIELD_SINCE = {82: 0, 186: 535, 230: 570}
"""Field id to the first driver branch that knows it (nvml.h and nvidia-ml-py releases 535 to 615).

An id that a driver does not know may fail the whole batch, so it is not asked.
"""

FIELD = struct.Struct("<IIqqIiQ")
"""nvmlFieldValue_t: id, scope, timestamp, latency, value type, return code, value union."""

_TYPES = {0: "<d", 1: "<I", 2: "<Q", 3: "<Q", 4: "<q", 5: "<i", 6: "<H"}
"""nvmlValueType_t to how the union is read."""


def ask_fields(context: Context, ids: tuple[int, ...]) -> Value:
    """Ask for these fields in one call; return a list of [code, value], one an id.

    If the driver refuses the batch, each id is asked by itself: one that it does not know costs only itself.
    """
    known = [id_ for id_ in ids if context.driver >= FIELD_SINCE[id_]]
    try:
        found = _ask_batch(context, known)
    except context.nvml.NVMLError as error:
        if error.value != INVALID_ARGUMENT or len(known) < 2:
            raise
        found = {id_: entry for one in known for id_, entry in _ask_one(context, one).items()}
    return [found.get(id_, [NOT_OFFERED, None]) for id_ in ids]


def _ask_one(context: Context, id_: int) -> dict[int, Value]:
    try:
        return _ask_batch(context, [id_])
    except context.nvml.NVMLError as error:
        if error.value != INVALID_ARGUMENT:
            raise
        return {id_: [INVALID_ARGUMENT, None]}


def _ask_batch(context: Context, ids: list[int]) -> dict[int, Value]:
    """Ask with entries that are fresh every time: a driver may leave an entry as it found it."""
    if not ids:
        return {}
    buffer = ctypes.create_string_buffer(FIELD.size * len(ids))
    for position, id_ in enumerate(ids):
        FIELD.pack_into(buffer, position * FIELD.size, id_, 0, 0, 0, 0, UNTOUCHED, 0)
    code = raw_function(context, "nvmlDeviceGetFieldValues")(context.handle, len(ids), buffer)
    if code:
        raise context.nvml.NVMLError(code)
    return decode_fields(buffer.raw)


def decode_fields(entries: bytes) -> dict[int, Value]:
    """Decode nvmlFieldValue_t entries to {id: [code, value]}, each value by its own type.

    An entry is untouched when its code still is, or when a driver only zeroed it: a real answer has a
    timestamp. A type that nvml.h does not have is untouched, too: nothing can be read from it.
    """
    found: dict[int, Value] = {}
    for id_, _scope, timestamp, latency, kind, code, bits in FIELD.iter_unpack(entries):
        if code == UNTOUCHED or (code == 0 and not (timestamp or latency)) or (code == 0 and kind not in _TYPES):
            found[id_] = [UNTOUCHED, None]
        elif code:
            found[id_] = [code, None]
        else:
            found[id_] = [0, struct.unpack_from(_TYPES[kind], bits.to_bytes(8, "little"))[0]]
    return found
