"""Discovery of vGPU instances on their host, and the calls for them, their GPU, and a vGPU seen from its guest.

Utilisation is queried once per GPU and pass, and split by instance. NVML keeps samples in a ring and returns those
after a timestamp. A pass uses the newest sample of each instance. Without a sample since the previous pass there is no
value: an old sample would look like current load.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from gpufleet.readers.nvml.calls.call import (
    VGPU_GUEST,
    VGPU_HOST,
    Call,
    Calls,
    FoundInstance,
    Function,
    InstanceKind,
    InstanceList,
    custom,
    getter,
    last_timestamp,
    max_timestamp,
    query_each,
)
from gpufleet.readers.nvml.context import (
    DEVICE_ENDED_CODES,
    DRIVER_NOT_LOADED,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NO_DATA,
    NOT_FOUND,
    NOT_SUPPORTED,
    Context,
    check,
    raw_function,
)
from gpufleet.readers.nvml.protocol import CallResult, Value

HOST_MODE, ACTIVE, UUID = "nvmlDeviceGetHostVgpuMode", "nvmlDeviceGetActiveVgpus", "nvmlVgpuInstanceGetUUID"
SCHEDULER, SCHEDULER_CAPS = "nvmlDeviceGetVgpuSchedulerState", "nvmlDeviceGetVgpuSchedulerCapabilities"
HETEROGENEOUS, CAPABILITIES = "nvmlDeviceGetVgpuHeterogeneousMode", "nvmlDeviceGetVgpuCapabilities"
TYPE, VM_ID, MEMORY = "nvmlVgpuInstanceGetType", "nvmlVgpuInstanceGetVmID", "nvmlVgpuInstanceGetFbUsage"
TYPE_NAME, TYPE_SIZE = "nvmlVgpuTypeGetName", "nvmlVgpuTypeGetFramebufferSize"
TYPE_DETAILS = "class and licence of the vGPU type"
TYPE_CLASS, TYPE_LICENSE = "nvmlVgpuTypeGetClass", "nvmlVgpuTypeGetLicense"
LICENSE, PLACEMENT = "nvmlVgpuInstanceGetLicenseInfo_v2", "nvmlVgpuInstanceGetPlacementId"
GPU_INSTANCE, DRIVER = "nvmlVgpuInstanceGetGpuInstanceId", "nvmlVgpuInstanceGetVmDriverVersion"
MDEV, ECC_MODE, FRAME_LIMIT = (
    "nvmlVgpuInstanceGetMdevUUID",
    "nvmlVgpuInstanceGetEccMode",
    "nvmlVgpuInstanceGetFrameRateLimit",
)
ACCOUNTING_MODE = "nvmlVgpuInstanceGetAccountingMode"
ACCOUNTING_PIDS, ACCOUNTING_STATS = "nvmlVgpuInstanceGetAccountingPids", "nvmlVgpuInstanceGetAccountingStats"
FEATURES = "nvmlDeviceGetGridLicensableFeatures_v4"

UTILIZATION = "vgpu utilization"
"""Key of the utilisation call."""

UTILIZATION_INFO, UTILIZATION_OLD = "nvmlDeviceGetVgpuInstancesUtilizationInfo", "nvmlDeviceGetVgpuUtilization"
"""The second is for drivers before 550; it lacks the JPEG engine and the optical flow accelerator."""

FIND_LABELS = (ACTIVE, UUID)
"""Functions that `find` enters, for breadcrumbs."""

CAPABILITY_NUMBERS = (0, 1, 2, 5, 6, 7, 8, 9, 10, 11)
"""Queried NVML_DEVICE_VGPU_CAP_* numbers, in the order of the answer."""

MAX_INSTANCES = 256
"""Maximum instances of one GPU that a pass reports."""

_MAX_PIDS = 4096
_NO_PLACEMENT = frozenset({0xFFFF, 0xFFFF_FFFF})
_NO_INSTANCE = _NO_UTILIZATION = 0xFFFF_FFFF
_EXPIRY_VALID = 2  # NVML_GRID_LICENSE_EXPIRY_VALID; the binding's constants are 1-tuples
_DESTROYED = frozenset({INVALID_ARGUMENT, NOT_FOUND})
_ATTEMPTS = 3

_INFO_VERSION = 0x01000020
_INFO_ENTRY, _OLD_ENTRY = struct.Struct("<QIxxxx6Q"), struct.Struct("<IxxxxQ4Q")
_VALUES = {0: "<d", 1: "<I", 2: "<Q", 3: "<Q", 4: "<q", 5: "<i", 6: "<H"}
"""nvmlValueType_t to the valid bytes of the value union."""

_MAX_LAG_US = 5_000_000
"""Maximum lag behind the GPU's newest sample; an instance with an older sample has no current one."""

_MIN_SAMPLES, _MAX_SAMPLES = 512, 65_536


def find(context: Context) -> InstanceList:
    """Return the active vGPU instances of a GPU. An instance that ends between list and detail is omitted."""
    utilization: VgpuUtilization = context.cache.get_or_create(UTILIZATION, VgpuUtilization)
    utilization.begin(context)
    context.mark(ACTIVE)
    numbers = _active_numbers(context)
    context.mark(UUID)
    found: list[FoundInstance] = []
    for number in numbers[:MAX_INSTANCES]:
        identity = {"instance": CallResult(0, number)}
        try:
            uuid = context.nvml.nvmlVgpuInstanceGetUUID(number)
        except context.nvml.NVMLError as error:
            if error.value in DEVICE_ENDED_CODES:
                raise
            if error.value not in _DESTROYED:
                found.append(FoundInstance(f"instance {number}", number, identity, error.value))
            continue
        if not uuid:
            found.append(FoundInstance(f"instance {number}", number, identity, NO_DATA))
            continue
        found.append(FoundInstance(uuid, number, {"uuid": CallResult(0, uuid), **identity}))
    ended = min(len(numbers), MAX_INSTANCES) - len(found)
    return InstanceList(found, len(numbers) - ended)


def exists(context: Context, found: FoundInstance) -> bool:
    """Return whether the number still belongs to the same instance. Raises NVMLError if the GPU itself has ended."""
    context.mark(UUID)
    try:
        return bool(context.nvml.nvmlVgpuInstanceGetUUID(found.handle) == found.name)
    except context.nvml.NVMLError as error:
        if error.value in DEVICE_ENDED_CODES:
            raise
        return False


def _active_numbers(context: Context) -> list[int]:
    """List instances with a large buffer: their number can grow between a sizing call and the query."""
    function, size = raw_function(context, ACTIVE), MAX_INSTANCES
    for _ in range(_ATTEMPTS):
        count, numbers = ctypes.c_uint(size), (ctypes.c_uint * size)()
        code = function(context.handle, ctypes.byref(count), numbers)
        if code != INSUFFICIENT_SIZE:
            check(context, code)
            return list(numbers[: min(count.value, size)])
        size = min(count.value + 16, 1 << 16)
    raise context.nvml.NVMLError(INSUFFICIENT_SIZE)


Sample = tuple[int, int, list[Value]]
"""Instance, timestamp in microseconds, percent of the GPU's time by engine.

Engines: SM, memory, encoder, decoder, JPEG, optical flow.
"""

_UtilizationResult = tuple[int, dict[int, list[Value]]]
"""Return code, and percent by engine of each instance."""


class _UtilizationInfo(ctypes.Structure):
    """nvmlVgpuInstancesUtilizationInfo_v1_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("type", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("last_seen", ctypes.c_ulonglong),
        ("samples", ctypes.c_void_p),
    )


class VgpuUtilization:
    """Utilisation of one GPU by its vGPU instances, kept between passes."""

    def __init__(self) -> None:
        self._device: Context | None = None
        self._results: dict[str, _UtilizationResult] = {}

    def begin(self, device: Context) -> None:
        """Start a pass over the GPU."""
        self._device, self._results = device, {}

    def of_instance(self, instance: int, function: str) -> Value:
        """Return the percentages of an instance in this pass.

        Raises:
            NVMLError: the driver's code; NO_DATA without a new sample of the instance.
        """
        assert self._device is not None, "a pass begins by listing the instances"
        if function not in self._results:
            self._results[function] = self._query(self._device, function)
        code, utilization = self._results[function]
        if code == 0 and instance in utilization:
            return utilization[instance]
        raise self._device.nvml.NVMLError(code or NO_DATA)

    def _query(self, device: Context, function: str) -> _UtilizationResult:
        last, latest = last_timestamp(device, function), max_timestamp()
        query = _query_info if function == UTILIZATION_INFO else _query_old
        try:
            code, samples = _query_all(query, device, last)
        except device.nvml.NVMLError as error:
            return error.value, {}
        if code == NOT_FOUND:  # no new samples: not an error
            return NO_DATA, {}
        samples = [sample for sample in samples if sample[1] <= latest]
        fresh = {instance: sample for instance, sample in newest_samples(samples).items() if sample[0] > last}
        device.cache.last_timestamps[function] = max([last, *(at for at, _ in fresh.values())])
        return code, {instance: values for instance, (_, values) in fresh.items()}


def newest_samples(samples: list[Sample]) -> dict[int, tuple[int, list[Value]]]:
    """Return instance to its newest sample, without instances that lag behind the newest sample of the GPU."""
    found: dict[int, tuple[int, list[Value]]] = {}
    for instance, at, values in samples:
        if instance not in found or at > found[instance][0]:
            found[instance] = at, values
    latest = max((at for at, _ in found.values()), default=0)
    return {instance: sample for instance, sample in found.items() if latest - sample[0] <= _MAX_LAG_US}


def _query_all(
    query: Callable[[Context, int, int], tuple[int, int, list[Sample]]], device: Context, last: int
) -> tuple[int, list[Sample]]:
    """Query with a growing buffer: the driver adds samples meanwhile."""
    size, code = _MIN_SAMPLES, INSUFFICIENT_SIZE
    for _ in range(_ATTEMPTS):
        code, count, samples = query(device, last, size)
        if code != INSUFFICIENT_SIZE:
            return code, samples
        size = min(max(count, size) * 2, _MAX_SAMPLES)
    return code, []


def _query_info(device: Context, last: int, size: int) -> tuple[int, int, list[Sample]]:
    buffer = ctypes.create_string_buffer(size * _INFO_ENTRY.size)
    info = _UtilizationInfo(_INFO_VERSION, 0, size, last, ctypes.addressof(buffer))
    code = raw_function(device, UTILIZATION_INFO)(device.handle, ctypes.byref(info))
    return code, info.count, [] if code else _decode_samples(_INFO_ENTRY, buffer, min(info.count, size), info.type)


def _query_old(device: Context, last: int, size: int) -> tuple[int, int, list[Sample]]:
    buffer = ctypes.create_string_buffer(size * _OLD_ENTRY.size)
    kind, count = ctypes.c_uint(), ctypes.c_uint(size)
    code = raw_function(device, UTILIZATION_OLD)(
        device.handle, ctypes.c_ulonglong(last), ctypes.byref(kind), ctypes.byref(count), buffer
    )
    return code, count.value, [] if code else _decode_samples(_OLD_ENTRY, buffer, min(count.value, size), kind.value)


def _decode_samples(entry: struct.Struct, buffer: Any, count: int, kind: int) -> list[Sample]:
    layout = _VALUES.get(kind)
    samples: list[Sample] = []
    for fields in entry.iter_unpack(buffer.raw[: count * entry.size]):
        at, instance = fields[:2] if entry is _INFO_ENTRY else (fields[1], fields[0])
        percents: list[Value] = [
            None if layout is None else struct.unpack_from(layout, bits.to_bytes(8, "little"))[0] for bits in fields[2:]
        ]
        samples.append((instance, at, percents))
    return samples


def _utilization(function: str) -> Function:
    def query(context: Context) -> Value:
        utilization: VgpuUtilization = context.cache.get_or_create(UTILIZATION, VgpuUtilization)
        return utilization.of_instance(context.handle, function)

    return Function(function, query)


def _memory(context: Context) -> Value:
    """Pass an eight-byte result: the binding passes four bytes, and its result is wrong from 4 GiB on."""
    used = ctypes.c_ulonglong()
    check(context, raw_function(context, MEMORY)(context.handle, ctypes.byref(used)))
    return used.value


def _vm_id(context: Context) -> Value:
    """Pass the buffer's real size: the binding passes a larger one. An empty id has no kind."""
    size = 80
    text, kind = ctypes.create_string_buffer(size), ctypes.c_uint()
    check(context, raw_function(context, VM_ID)(context.handle, text, ctypes.c_uint(size), ctypes.byref(kind)))
    name = text.value.decode("utf-8", "replace").strip()
    if not name:
        raise context.nvml.NVMLError(NO_DATA)
    return [name, kind.value]


def _query_type(context: Context, *functions: str) -> Value:
    """Query the instance's vGPU type: a list of [code, value]. Types never change, so each is queried once."""
    number = context.nvml.nvmlVgpuInstanceGetType(context.handle)
    known: dict[tuple[int, str], Value] = context.cache.get_or_create("vgpu types", dict)
    entries: list[Value] = []
    for name in functions:
        entry = known.get((number, name))
        if entry is None:
            context.mark(name)
            try:
                entry = known[number, name] = [0, _as_text(getattr(context.nvml, name)(number))]
            except context.nvml.NVMLError as error:
                if error.value in DEVICE_ENDED_CODES:
                    raise
                entry = [error.value, None]
        entries.append(entry)
    return entries


def _as_text(value: Any) -> Value:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _text(name: str) -> Call:
    """Return a call of a text function; some of the binding's functions return bytes."""
    return custom(name, lambda context: _as_text(getattr(context.nvml, name)(context.handle)))


def _gpu_instance(context: Context) -> Value:
    number: int = context.nvml.nvmlVgpuInstanceGetGpuInstanceId(context.handle)
    return _unless(context, number, number == _NO_INSTANCE)


def _placement(context: Context) -> Value:
    number: int = context.nvml.nvmlVgpuInstanceGetPlacementId(context.handle)
    return _unless(context, number, number in _NO_PLACEMENT)


def _unless(context: Context, number: int, unset: bool) -> Value:
    if unset:
        raise context.nvml.NVMLError(NOT_SUPPORTED)
    return number


def _license(context: Context) -> Value:
    found = context.nvml.nvmlVgpuInstanceGetLicenseInfo_v2(context.handle)
    return [[0, found.currentState], _expiry(found.licenseExpiry)]


def _expiry(expiry: Any) -> Value:
    if expiry.status != _EXPIRY_VALID:
        return [NO_DATA, None]
    return [0, [expiry.year, expiry.month, expiry.day, expiry.hour, expiry.min, expiry.sec]]


def _features(context: Context) -> Value:
    """Return state, expiry and product of the enabled licensable feature with the lowest state; licensed is 1."""
    found = context.nvml.nvmlDeviceGetGridLicensableFeatures_v4(context.handle)
    if not found.isGridLicenseSupported:
        raise context.nvml.NVMLError(NOT_SUPPORTED)
    offered = found.gridLicensableFeatures[: found.licensableFeaturesCount]
    enabled = [feature for feature in offered if feature.featureEnabled]
    if not enabled:
        raise context.nvml.NVMLError(NO_DATA)
    worst = min(enabled, key=lambda feature: int(feature.featureState))
    return [[0, worst.featureState], _expiry(worst.licenseExpiry), [0, _as_text(worst.productName)]]


def _accounting(context: Context) -> Value:
    """Return the number of the guest's running processes and the sum of their utilisation in percent, as entries."""
    context.mark(ACCOUNTING_MODE)
    if not context.nvml.nvmlVgpuInstanceGetAccountingMode(context.handle):
        raise context.nvml.NVMLError(NO_DATA)
    context.mark(ACCOUNTING_PIDS)
    running, percents = 0, list[int]()
    for pid in _accounted_pids(context):
        context.mark(ACCOUNTING_STATS)
        try:
            stats = context.nvml.nvmlVgpuInstanceGetAccountingStats(context.handle, pid)
        except context.nvml.NVMLError as error:
            if error.value == NOT_FOUND:
                continue  # the process ended and its record was reused
            raise
        if stats.isRunning:
            running += 1
            percents.append(stats.gpuUtilization)
    total = [NOT_SUPPORTED, None] if _NO_UTILIZATION in percents else [0, sum(percents)]
    return [[0, running], total]


def _accounted_pids(context: Context) -> list[int]:
    """List them as nvml.h documents: the binding fails on an empty list."""
    count = ctypes.c_uint(_MAX_PIDS)
    pids = (ctypes.c_uint * _MAX_PIDS)()
    check(context, raw_function(context, ACCOUNTING_PIDS)(context.handle, ctypes.byref(count), pids))
    return list(pids[: min(count.value, _MAX_PIDS)])


def _of_guest(call: Call) -> Call:
    """Return the call with NO_DATA if the guest has no driver: NVML's code is that of a host without driver."""
    (function,) = call.functions

    def query(context: Context) -> Value:
        try:
            return function.query(context)
        except context.nvml.NVMLError as error:
            raise context.nvml.NVMLError(NO_DATA if error.value == DRIVER_NOT_LOADED else error.value) from None

    return call._replace(functions=(function._replace(query=query),))


def _scheduler(context: Context) -> Value:
    """Return policy, mode of adaptive round robin, and time slice in nanoseconds."""
    state = context.nvml.nvmlDeviceGetVgpuSchedulerState(context.handle)
    parameters = state.schedulerParams
    with_arr = state.arrMode == 2  # NVML_VGPU_SCHEDULER_ARR_ENABLE: selects the member of the union
    data = parameters.vgpuSchedDataWithARR if with_arr else parameters.vgpuSchedData
    return [state.schedulerPolicy, state.arrMode, data.timeslice]


def _scheduler_caps(context: Context) -> Value:
    supported: int = context.nvml.nvmlDeviceGetVgpuSchedulerCapabilities(context.handle).isArrModeSupported
    return supported


def _capabilities(context: Context) -> Value:
    def query(number: int) -> Value:
        value: int = context.nvml.nvmlDeviceGetVgpuCapabilities(context.handle, number)
        return value

    return query_each(context, CAPABILITIES, query, CAPABILITY_NUMBERS)


def _on_host(call: Call) -> Call:
    return call._replace(role=VGPU_HOST)


GPU_CALLS: Calls = {
    "slow": (
        _on_host(getter(HOST_MODE)),
        _on_host(custom(SCHEDULER, _scheduler)),
        _on_host(custom(SCHEDULER_CAPS, _scheduler_caps)),
        _on_host(getter(HETEROGENEOUS)),
        _on_host(custom(CAPABILITIES, _capabilities)),
        Call(FEATURES, (Function(FEATURES, _features),), role=VGPU_GUEST),
    ),
}
"""Calls for a GPU that hosts vGPUs, and for a vGPU seen from its guest."""

KIND = InstanceKind(
    role=VGPU_HOST,
    find=find,
    exists=exists,
    calls={
        "fast": (
            custom(VM_ID, _vm_id),
            custom(TYPE, lambda context: _query_type(context, TYPE_NAME, TYPE_SIZE), inner=(TYPE_NAME, TYPE_SIZE)),
            custom(MEMORY, _memory),
            Call(UTILIZATION, (_utilization(UTILIZATION_INFO), _utilization(UTILIZATION_OLD))),
        ),
        "slow": (
            Call(
                TYPE_DETAILS,
                (Function(TYPE, lambda context: _query_type(context, TYPE_CLASS, TYPE_LICENSE)),),
                inner=(TYPE_CLASS, TYPE_LICENSE),
            ),
            _of_guest(custom(LICENSE, _license)),
            _text(DRIVER),
            custom(GPU_INSTANCE, _gpu_instance),
            _text(MDEV),
            getter(ECC_MODE),
            getter(FRAME_LIMIT),
            custom(PLACEMENT, _placement),
            _of_guest(getter(ACCOUNTING_MODE)),
            _of_guest(custom(ACCOUNTING_STATS, _accounting, inner=(ACCOUNTING_MODE, ACCOUNTING_PIDS))),
        ),
    },
)
