"""Calls for GPM activity, and for processes and their utilisation.

GPM (GPU performance monitoring) compares two samples, which must be 100 ms apart. Each pass takes a sample and compares
it with that of the previous pass, so no pass waits. Only one thread at a time calls GPM, for whichever device: other
projects have seen crashes with several.
"""

import ctypes
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpufleet.readers.nvml.calls.call import Call, Calls, custom, last_timestamp, max_timestamp
from gpufleet.readers.nvml.calls.fields import Fields
from gpufleet.readers.nvml.context import (
    INSUFFICIENT_SIZE,
    NO_DATA,
    NOT_FOUND,
    NOT_SUPPORTED,
    TIMEOUT,
    Context,
    check,
    raw_function,
)
from gpufleet.readers.nvml.protocol import UNTOUCHED, Value

MIG_METRICS = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
GPM_METRICS = (*MIG_METRICS, 20, 21, 60, 61)
"""Queried metric numbers (nvml.h, nvmlGpmMetricId_t) of a MIG GPU instance and of a whole GPU."""

GPM_SUPPORT, GPM_ALLOC, GPM_FREE = "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"
GPM_SAMPLE, MIG_SAMPLE, GPM_COMPARE = "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"

MIN_SAMPLE_INTERVAL_NS = 100_000_000
"""Minimum time between two samples (nvml.h)."""

MAX_SAMPLE_INTERVAL_NS = 60_000_000_000
"""Maximum time between two samples, unless passes are regularly further apart: a mean over a pause is not current."""

MAX_GROWTH = 2
"""Maximum ratio of the time between two samples to that of the previous comparison."""

TURN_SECONDS = 0.5
"""Maximum wait of a device for its turn; after that, another device hangs in GPM."""

GPM_VERSION = 1
_GPM_HEAD = struct.Struct("@IIPP")
_GPM_METRIC = struct.Struct("@IidPPP")
_MAX_GPM_METRICS = 512
"""Size of the buffer in metrics: more than any nvml.h has, because only the library knows where it stops reading."""

COMPUTE_PROCESSES, GRAPHICS_PROCESSES, MPS_PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)
PROCESS_UTILIZATION = "nvmlDeviceGetProcessUtilization"

MAX_PROCESSES = 4096
"""Maximum processes of one kind on one device; a larger count is not plausible."""

PROCESS_RETRIES = 3
"""Attempts with a larger buffer: processes can start between the sizing call and the query."""

SPARE_RECORDS = 8
"""Records of a buffer beyond the last known number."""

_RECORD, _LONG_RECORD = struct.Struct("<I4xQII"), struct.Struct("<I4xQII8x")
"""nvmlProcessInfo_t: pid, bytes, GPU instance, compute instance; the long one adds protected bytes."""

_SAMPLE = struct.Struct("<I4xQ4I")
"""nvmlProcessUtilizationSample_t: pid, microseconds, percent of multiprocessors, memory, encoder, decoder."""


class _GpmLock:
    """Lock around GPM. No thread waits for a holder that exceeds `TURN_SECONDS`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0.0

    def acquire(self) -> bool:
        """Wait for the lock; return whether it was acquired."""
        overdue = self._lock.locked() and time.monotonic() - self._entered > TURN_SECONDS
        if not self._lock.acquire(timeout=0 if overdue else TURN_SECONDS):
            return False
        self._entered = time.monotonic()
        return True

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


_gpm_lock = _GpmLock()


class GpmComparison:
    """Two GPM samples of a device or MIG GPU instance, and the time of the newer one."""

    def __init__(
        self,
        context: Context,
        metrics: tuple[int, ...],
        gpu_instance: int | None = None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Allocate the samples; the caller holds the GPM lock.

        Args:
            context: of the device.
            metrics: queried metric numbers.
            gpu_instance: id of the MIG GPU instance to sample, or None for the whole device.
            clock: monotonic nanoseconds.

        Raises:
            NVMLError: if the library cannot allocate samples.
        """
        self._context, self._metrics, self._gpu_instance = context, metrics, gpu_instance
        self._older, self._newer = self._allocate(), self._allocate()
        self._clock = clock
        self._newer_at: int | None = None
        self._interval = 0  # between the samples of the previous comparison
        self._buffer = ctypes.create_string_buffer(
            _GPM_HEAD.size + _GPM_METRIC.size * max(_MAX_GPM_METRICS, len(metrics))
        )
        self._blank = b"".join([_GPM_METRIC.pack(metric, UNTOUCHED, 0.0, 0, 0, 0) for metric in metrics])

    def query(self, context: Context) -> Value:
        """Take a sample and compare it with the previous one; return the value of each metric, or its [code, None].

        Raises:
            NVMLError: the driver's code; NO_DATA on the first pass and if the previous sample is too recent or too old.
        """
        self._context = context
        before, now = self._newer_at, self._clock()
        if before is not None and now - before < MIN_SAMPLE_INTERVAL_NS:
            check(context, NO_DATA)
        self._newer_at = None  # the following calls may fail half-way: the comparison then restarts
        self._sample(self._older)
        self._older, self._newer = self._newer, self._older
        self._newer_at = self._clock()
        if before is None or self._follows_a_pause(self._newer_at - before):
            check(context, NO_DATA)
        return self._compare()

    def close(self) -> None:
        """Free the samples."""
        for sample in (self._older, self._newer):
            raw_function(self._context, GPM_FREE)(sample)

    def _follows_a_pause(self, interval: int) -> bool:
        """Return whether the time between two samples is too long for a current mean, and keep it for the next pass."""
        longest = max(MAX_SAMPLE_INTERVAL_NS, MAX_GROWTH * self._interval)
        self._interval = interval
        return interval > longest

    def _allocate(self) -> Any:
        sample = ctypes.c_void_p()
        check(self._context, raw_function(self._context, GPM_ALLOC)(ctypes.byref(sample)))
        return sample

    def _sample(self, sample: Any) -> None:
        context = self._context
        if self._gpu_instance is None:
            context.mark(GPM_SAMPLE)
            check(context, raw_function(context, GPM_SAMPLE)(context.handle, sample))
        else:
            context.mark(MIG_SAMPLE)
            code = raw_function(context, MIG_SAMPLE)(context.handle, ctypes.c_uint(self._gpu_instance), sample)
            check(context, code)

    def _compare(self) -> Value:
        context, count = self._context, len(self._metrics)
        _GPM_HEAD.pack_into(self._buffer, 0, GPM_VERSION, count, self._older.value or 0, self._newer.value or 0)
        first, end = _GPM_HEAD.size, _GPM_HEAD.size + len(self._blank)
        ctypes.memmove(ctypes.addressof(self._buffer) + first, self._blank, len(self._blank))
        context.mark(GPM_COMPARE)
        check(context, raw_function(context, GPM_COMPARE)(self._buffer))
        found = _GPM_METRIC.iter_unpack(memoryview(self._buffer)[first:end])
        return [[code, None] if code else value for _, code, value, *_ in found]


def query_gpm(context: Context, name: str, metrics: tuple[int, ...], gpu_instance: int | None = None) -> Value:
    """Query a comparison under the GPM lock, as `GpmComparison.query`; `name` is its key in the device's cache.

    Raises:
        NVMLError: TIMEOUT if the lock is not available because another device hangs in GPM; else the driver's code.
    """
    context.mark(GPM_SUPPORT)
    if not _gpm_lock.acquire():
        check(context, TIMEOUT)
    try:
        if not context.cache.get_or_create("gpm support", lambda: _supports_gpm(context)):
            check(context, NOT_SUPPORTED)
        comparison: GpmComparison = context.cache.get_or_create(
            name, lambda: GpmComparison(context, metrics, gpu_instance)
        )
        return comparison.query(context)
    finally:
        _gpm_lock.release()


def _supports_gpm(context: Context) -> bool:
    return bool(context.nvml.nvmlGpmQueryDeviceSupport(context.handle).isSupportedDevice)


def _gpu_activity(context: Context) -> Value:
    return query_gpm(context, "gpm", GPM_METRICS)


class _RecordBuffer(NamedTuple):
    """Buffer for a list of the driver, kept between passes and sized for the largest list so far.

    Attributes:
        records: capacity.
        length: set to the capacity before a call, and by the driver to the length of its list.
        length_reference: pointer to `length`.
        data: the records.
    """

    records: int
    length: ctypes.c_uint
    length_reference: Any
    data: Any


def _record_buffer(record: struct.Struct, records: int) -> _RecordBuffer:
    count = ctypes.c_uint(records)
    return _RecordBuffer(records, count, ctypes.byref(count), ctypes.create_string_buffer(record.size * records))


def process_record(context: Context) -> struct.Struct:
    """Return the layout of this driver's process record.

    Drivers 535.43 to 535.86 have one more member. They are recognised by their functions: the memory sizes of
    confidential computing are present, the list of process details is not.
    """
    if _has_function(context, "nvmlDeviceGetConfComputeMemSizeInfo"):
        return _RECORD if _has_function(context, "nvmlDeviceGetRunningProcessDetailList") else _LONG_RECORD
    return _RECORD


def _has_function(context: Context, name: str) -> bool:
    try:
        raw_function(context, name)
    except context.nvml.NVMLError:
        return False
    return True


def _process_list(name: str) -> Call:
    """Return the call that lists the processes of one kind: [pid, bytes, GPU instance, compute instance] each.

    It calls the library itself: the binding guesses the layout of a record, and sizes its buffer only once. The first
    attempt uses the buffer of the previous pass.
    """

    def query(context: Context) -> Value:
        function = raw_function(context, name)
        record: struct.Struct = context.cache.get_or_create("process record", lambda: process_record(context))
        buffers: dict[str, _RecordBuffer] = context.cache.get_or_create("process buffers", dict)
        buffer, code = buffers.get(name) or _record_buffer(record, SPARE_RECORDS), INSUFFICIENT_SIZE
        for _ in range(1 + PROCESS_RETRIES):
            buffer.length.value = buffer.records
            code = function(context.handle, buffer.length_reference, buffer.data)
            if code != INSUFFICIENT_SIZE:
                break
            buffer = _record_buffer(record, min(buffer.length.value + SPARE_RECORDS, MAX_PROCESSES))
        buffers[name] = buffer
        check(context, code)
        count = min(buffer.length.value, buffer.records)
        if not count:
            return []
        return [list(entry) for entry in record.iter_unpack(memoryview(buffer.data)[: record.size * count])]

    return custom(name, query)


def _process_utilization(context: Context) -> Value:
    """Return [pid, multiprocessors, memory, encoder, decoder] in percent: the newest sample of each process.

    It calls the library itself: the binding raises an error if there is no sample since the previous pass. The first
    attempt uses the buffer of the previous pass. A call without a buffer returns the number of samples.
    """
    function = raw_function(context, PROCESS_UTILIZATION)
    last, latest = last_timestamp(context, PROCESS_UTILIZATION), max_timestamp()
    since = ctypes.c_ulonglong(last)
    buffers: dict[str, _RecordBuffer] = context.cache.get_or_create("process buffers", dict)
    buffer, code = buffers.get(PROCESS_UTILIZATION), INSUFFICIENT_SIZE
    if buffer is not None:
        buffer.length.value = buffer.records
        code = function(context.handle, buffer.data, buffer.length_reference, since)
    if code == INSUFFICIENT_SIZE:
        count = ctypes.c_uint(0)
        code = function(context.handle, None, ctypes.byref(count), since)
        if code == INSUFFICIENT_SIZE and 0 < count.value <= MAX_PROCESSES:
            buffer = buffers[PROCESS_UTILIZATION] = _record_buffer(_SAMPLE, count.value + SPARE_RECORDS)
            code = function(context.handle, buffer.data, buffer.length_reference, since)
        elif code == 0:
            buffer = None  # the sizing call returned no samples
    if code == NOT_FOUND:
        return []
    check(context, code)
    newest: dict[int, tuple[int, ...]] = {}
    if buffer is not None:
        samples = memoryview(buffer.data)[: _SAMPLE.size * min(buffer.length.value, buffer.records)]
        for pid, at, *percent in _SAMPLE.iter_unpack(samples):
            if at > latest or at <= since.value:
                continue
            if pid not in newest or at >= newest[pid][0]:
                newest[pid] = (at, *percent)
            last = max(last, at)
    context.cache.last_timestamps[PROCESS_UTILIZATION] = last
    return [[pid, *sample[1:]] for pid, sample in newest.items()]


PROCESS_LISTS = (
    _process_list(COMPUTE_PROCESSES),
    _process_list(GRAPHICS_PROCESSES),
    _process_list(MPS_PROCESSES),
)
"""Processes with a context, by kind; also for MIG devices."""

CALLS: Calls = {
    "fast": (
        custom(GPM_SUPPORT, _gpu_activity, inner=(GPM_SAMPLE, MIG_SAMPLE, GPM_COMPARE)),
        *PROCESS_LISTS,
        custom(PROCESS_UTILIZATION, _process_utilization),
    )
}

FIELDS: Fields = {}
