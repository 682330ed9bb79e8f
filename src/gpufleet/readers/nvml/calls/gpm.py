"""GPM: what the parts of the chip did between two samples of the driver's.

A sample is taken in each pass and compared with the one before, never waited for: the two have to be 100 ms apart.
Only one thread is inside at a time, whichever device it asks about (others have seen crashes).
"""

import ctypes
import struct
import threading
import time
from typing import Any

from gpufleet.readers.nvml.calls.call import Calls, custom
from gpufleet.readers.nvml.calls.fields import Fields
from gpufleet.readers.nvml.context import NO_DATA, NOT_SUPPORTED, TIMEOUT, Context, check, raw_function
from gpufleet.readers.nvml.protocol import UNTOUCHED, Value

PART_METRICS = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
METRICS = (*PART_METRICS, 20, 21, 60, 61)
"""Numbers of what is asked (nvml.h, nvmlGpmMetricId_t), of a part of a GPU and of the whole."""

SUPPORT, ALLOC, FREE = "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"
SAMPLE, MIG_SAMPLE, COMPARE = "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"

LEAST_NS = 100_000_000
"""Two samples have to be so far apart (nvml.h)."""

WAIT = 0.5
"""Seconds that a device waits for its turn: longer, and another one hangs inside."""

VERSION = 1
_HEAD = struct.Struct("@IIPP")
_METRIC = struct.Struct("@IidPPP")
_ROOM = 512
"""Metrics that the library has room for: more than any nvml.h has, for it alone knows where it stops reading."""


class _Turn:
    """Whose turn it is. Nobody waits for one that has been inside for longer than it should."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0.0

    def take(self) -> bool:
        """Wait for the turn; return whether it came."""
        overdue = self._lock.locked() and time.monotonic() - self._entered > WAIT
        if not self._lock.acquire(timeout=0 if overdue else WAIT):
            return False
        self._entered = time.monotonic()
        return True

    def give_back(self) -> None:
        """Let the next one in."""
        self._lock.release()


_turn = _Turn()


class Comparison:
    """Two samples of one device, or of one MIG device, and when they were taken."""

    def __init__(self, context: Context, metrics: tuple[int, ...], gpu_instance: int | None = None) -> None:
        """Prepare it; only inside the turn.

        Args:
            context: of the device.
            metrics: numbers of what is asked.
            gpu_instance: id of the MIG GPU instance to sample, or None for the whole device.

        Raises:
            NVMLError: if the library has no room for samples.
        """
        self._context, self._metrics, self._gpu_instance = context, metrics, gpu_instance
        self._older, self._newer = self._allocate(), self._allocate()
        self._newer_at: int | None = None
        self._buffer = ctypes.create_string_buffer(_HEAD.size + _METRIC.size * max(_ROOM, len(metrics)))
        self._fresh = b"".join([_METRIC.pack(metric, UNTOUCHED, 0.0, 0, 0, 0) for metric in metrics])

    def ask(self, context: Context) -> Value:
        """Take a sample and compare it with the one before; return the value of each metric, or its [code, None].

        Raises:
            NVMLError: what the driver answers, NO_DATA on the first pass and when it is too early.
        """
        self._context = context
        before, now = self._newer_at, time.monotonic_ns()
        if before is not None and now - before < LEAST_NS:
            check(context, NO_DATA)
        self._newer_at = None  # what is asked next may fail half-way: then the comparison starts anew
        self._sample(self._older)
        self._older, self._newer = self._newer, self._older
        self._newer_at = time.monotonic_ns()
        if before is None:
            check(context, NO_DATA)
        return self._compare()

    def close(self) -> None:
        """Give the samples back."""
        for sample in (self._older, self._newer):
            raw_function(self._context, FREE)(sample)

    def _allocate(self) -> Any:
        sample = ctypes.c_void_p()
        check(self._context, raw_function(self._context, ALLOC)(ctypes.byref(sample)))
        return sample

    def _sample(self, sample: Any) -> None:
        context = self._context
        if self._gpu_instance is None:
            context.mark(SAMPLE)
            check(context, raw_function(context, SAMPLE)(context.handle, sample))
        else:
            context.mark(MIG_SAMPLE)
            code = raw_function(context, MIG_SAMPLE)(context.handle, ctypes.c_uint(self._gpu_instance), sample)
            check(context, code)

    def _compare(self) -> Value:
        context, count = self._context, len(self._metrics)
        _HEAD.pack_into(self._buffer, 0, VERSION, count, self._older.value or 0, self._newer.value or 0)
        first, end = _HEAD.size, _HEAD.size + len(self._fresh)
        ctypes.memmove(ctypes.addressof(self._buffer) + first, self._fresh, len(self._fresh))
        context.mark(COMPARE)
        check(context, raw_function(context, COMPARE)(self._buffer))
        found = _METRIC.iter_unpack(memoryview(self._buffer)[first:end])
        return [[code, None] if code else value for _, code, value, *_ in found]


def _activity(context: Context) -> Value:
    return in_turn(context, "gpm", METRICS)


def in_turn(context: Context, name: str, metrics: tuple[int, ...], gpu_instance: int | None = None) -> Value:
    """Ask in one's turn; `name` tells what is compared from what else of the device is. As `Comparison.ask`.

    Raises:
        NVMLError: TIMEOUT if it does not come, for another device hangs inside.
    """
    context.mark(SUPPORT)
    if not _turn.take():
        check(context, TIMEOUT)
    try:
        if not context.memory.keep("gpm support", lambda: _supported(context)):
            check(context, NOT_SUPPORTED)
        comparison: Comparison = context.memory.keep(name, lambda: Comparison(context, metrics, gpu_instance))
        return comparison.ask(context)
    finally:
        _turn.give_back()


def _supported(context: Context) -> bool:
    return bool(context.nvml.nvmlGpmQueryDeviceSupport(context.handle).isSupportedDevice)


CALLS: Calls = {"fast": (custom(SUPPORT, _activity, inner=(SAMPLE, MIG_SAMPLE, COMPARE)),)}

FIELDS: Fields = {}
