"""Processes on a device, and what each of them makes it do."""

import ctypes
import struct
from typing import Any, NamedTuple

from gpufleet.readers.nvml.calls import stamps
from gpufleet.readers.nvml.calls.call import Call, Calls, custom
from gpufleet.readers.nvml.calls.fields import Fields
from gpufleet.readers.nvml.context import INSUFFICIENT_SIZE, NOT_FOUND, Context, check, raw_function
from gpufleet.readers.nvml.protocol import Value

COMPUTE, GRAPHICS, MPS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
UTILIZATION = "nvmlDeviceGetProcessUtilization"

MOST = 4096
"""Processes of one kind on one device; a count beyond it is no count."""

RETRIES = 3
"""Between being told how many there are and asking for them, more can come."""

SPARE = 8
"""Records that there is room for beyond those that there were."""

_RECORD, _LONG_RECORD = struct.Struct("<I4xQII"), struct.Struct("<I4xQII8x")
"""nvmlProcessInfo_t: pid, bytes, GPU instance, compute instance; the long one adds protected bytes."""

_SAMPLE = struct.Struct("<I4xQ4I")
"""nvmlProcessUtilizationSample_t: pid, microseconds, percent of multiprocessors, memory, encoder, decoder."""


class _Room(NamedTuple):
    """Where the driver writes a list: kept from pass to pass, for as many records as there were at most."""

    records: int
    found: ctypes.c_uint
    found_at: Any
    buffer: Any


def _room(record: struct.Struct, records: int) -> _Room:
    count = ctypes.c_uint(records)
    return _Room(records, count, ctypes.byref(count), ctypes.create_string_buffer(record.size * records))


def record_of(context: Context) -> struct.Struct:
    """Return the layout of a process record in this driver.

    Drivers 535.43 to 535.86 have a member more. They are told by what they offer: the memory sizes of confidential
    computing, and not yet the list of details.
    """
    if _has(context, "nvmlDeviceGetConfComputeMemSizeInfo"):
        return _RECORD if _has(context, "nvmlDeviceGetRunningProcessDetailList") else _LONG_RECORD
    return _RECORD


def _has(context: Context, name: str) -> bool:
    try:
        raw_function(context, name)
    except context.nvml.NVMLError:
        return False
    return True


def _list(name: str) -> Call:
    """Return the call that lists the processes of one kind: [pid, bytes, GPU instance, compute instance] each.

    It asks the library itself: the binding guesses the layout of a record, and asks only once how many there are. The
    first guess is that there are no more than there were at most.
    """

    def ask(context: Context) -> Value:
        function = raw_function(context, name)
        record: struct.Struct = context.memory.keep("process record", lambda: record_of(context))
        kept: dict[str, _Room] = context.memory.keep("process rooms", dict)
        room, code = kept.get(name) or _room(record, SPARE), INSUFFICIENT_SIZE
        for _ in range(1 + RETRIES):
            room.found.value = room.records
            code = function(context.handle, room.found_at, room.buffer)
            if code != INSUFFICIENT_SIZE:
                break
            room = _room(record, min(room.found.value + SPARE, MOST))
        kept[name] = room
        check(context, code)
        found = min(room.found.value, room.records)
        if not found:
            return []
        return [list(one) for one in record.iter_unpack(memoryview(room.buffer)[: record.size * found])]

    return custom(name, ask)


def _utilization(context: Context) -> Value:
    """Return [pid, multiprocessors, memory, encoder, decoder] in percent: the newest sample of each process.

    It asks the library itself: in the binding, no sample since the last look is an error. The first guess is that there
    are no more than there were at most; asked without a place for them, the driver says how many there are.
    """
    function = raw_function(context, UTILIZATION)
    last, latest = stamps.last_seen(context, UTILIZATION), stamps.latest()
    since = ctypes.c_ulonglong(last)
    kept: dict[str, _Room] = context.memory.keep("process rooms", dict)
    room, code = kept.get(UTILIZATION), INSUFFICIENT_SIZE
    if room is not None:
        room.found.value = room.records
        code = function(context.handle, room.buffer, room.found_at, since)
    if code == INSUFFICIENT_SIZE:
        count = ctypes.c_uint(0)
        code = function(context.handle, None, ctypes.byref(count), since)
        if code == INSUFFICIENT_SIZE and 0 < count.value <= MOST:
            room = kept[UTILIZATION] = _room(_SAMPLE, count.value + SPARE)
            code = function(context.handle, room.buffer, room.found_at, since)
        elif code == 0:
            room = None  # asked how many there are, it says none
    if code == NOT_FOUND:
        return []
    check(context, code)
    newest: dict[int, tuple[int, ...]] = {}
    if room is not None:
        found = memoryview(room.buffer)[: _SAMPLE.size * min(room.found.value, room.records)]
        for pid, at, *percent in _SAMPLE.iter_unpack(found):
            if at > latest:
                continue
            if pid not in newest or at >= newest[pid][0]:
                newest[pid] = (at, *percent)
            last = max(last, at)
    context.memory.seen[UTILIZATION] = last
    return [[pid, *sample[1:]] for pid, sample in newest.items()]


LISTS = (_list(COMPUTE), _list(GRAPHICS), _list(MPS))
"""Who holds a context, by kind; of MIG devices too."""

CALLS: Calls = {"fast": (*LISTS, custom(UTILIZATION, _utilization))}

FIELDS: Fields = {}
