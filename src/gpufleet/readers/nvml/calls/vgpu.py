"""vGPU instances as their host sees them, the GPU that is shared out as them, and a vGPU as its guest sees it."""

import ctypes
from typing import Any

from gpufleet.readers.nvml.calls.call import (
    VGPU_GUEST,
    VGPU_HOST,
    Call,
    Calls,
    Finding,
    Found,
    Function,
    Kind,
    custom,
    each,
    plain,
)
from gpufleet.readers.nvml.calls.vgpu_use import USE_CALL, Use
from gpufleet.readers.nvml.context import (
    ENDS_DEVICE,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NO_DATA,
    NOT_FOUND,
    NOT_SUPPORTED,
    Context,
    check,
    raw_function,
)
from gpufleet.readers.nvml.protocol import Answer, Value

HOST_MODE, ACTIVE, UUID = "nvmlDeviceGetHostVgpuMode", "nvmlDeviceGetActiveVgpus", "nvmlVgpuInstanceGetUUID"
SCHEDULER, SCHEDULER_CAPS = "nvmlDeviceGetVgpuSchedulerState", "nvmlDeviceGetVgpuSchedulerCapabilities"
HETEROGENEOUS, CAPABILITIES = "nvmlDeviceGetVgpuHeterogeneousMode", "nvmlDeviceGetVgpuCapabilities"
TYPE, VM_ID, MEMORY = "nvmlVgpuInstanceGetType", "nvmlVgpuInstanceGetVmID", "nvmlVgpuInstanceGetFbUsage"
TYPE_NAME, TYPE_SIZE = "nvmlVgpuTypeGetName", "nvmlVgpuTypeGetFramebufferSize"
TYPE_MORE = "class and licence of the vGPU type"
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

FIND_LABELS = (ACTIVE, UUID)
"""Functions that `find` enters, for breadcrumbs."""

CAPABILITY_NUMBERS = (0, 1, 2, 5, 6, 7, 8, 9, 10, 11)
"""NVML_DEVICE_VGPU_CAP_* that are asked for, in the order of the answer."""

MOST_INSTANCES = 256
"""Instances of one GPU that a pass tells of."""

_MOST_PIDS = 4096
_NO_PLACEMENT = frozenset({0xFFFF, 0xFFFF_FFFF})
_NO_INSTANCE = _NOT_TOLD = 0xFFFF_FFFF
_EXPIRES = 2  # NVML_GRID_LICENSE_EXPIRY_VALID; the binding's constants are 1-tuples
_DEAD = frozenset({INVALID_ARGUMENT, NOT_FOUND})
_ATTEMPTS = 3


def find(context: Context) -> Finding:
    """Return the active vGPU instances of a GPU. One that ends between list and detail is left out."""
    use: Use = context.memory.keep("vgpu use", Use)
    use.begin(context)
    context.mark(ACTIVE)
    numbers = _active(context)
    context.mark(UUID)
    parts: list[Found] = []
    for number in numbers[:MOST_INSTANCES]:
        identity = {"instance": Answer(0, number)}
        try:
            uuid = context.nvml.nvmlVgpuInstanceGetUUID(number)
        except context.nvml.NVMLError as error:
            if error.value in ENDS_DEVICE:
                raise
            if error.value not in _DEAD:
                parts.append(Found(f"instance {number}", number, identity, error.value))
            continue
        if not uuid:
            parts.append(Found(f"instance {number}", number, identity, NO_DATA))
            continue
        parts.append(Found(uuid, number, {"uuid": Answer(0, uuid), **identity}))
    vanished = min(len(numbers), MOST_INSTANCES) - len(parts)
    return Finding(parts, len(numbers) - vanished)


def is_there(context: Context, found: Found) -> bool:
    """Tell whether the number still is of the instance that it was."""
    context.mark(UUID)
    try:
        return bool(context.nvml.nvmlVgpuInstanceGetUUID(found.handle) == found.name)
    except context.nvml.NVMLError:
        return False


def _active(context: Context) -> list[int]:
    """List instances with room for many at once: the number can grow between a sizing call and the next one."""
    function, room = raw_function(context, ACTIVE), MOST_INSTANCES
    for _ in range(_ATTEMPTS):
        count, numbers = ctypes.c_uint(room), (ctypes.c_uint * room)()
        code = function(context.handle, ctypes.byref(count), numbers)
        if code != INSUFFICIENT_SIZE:
            check(context, code)
            return list(numbers[: min(count.value, room)])
        room = min(count.value + 16, 1 << 16)
    raise context.nvml.NVMLError(INSUFFICIENT_SIZE)


def _memory(context: Context) -> Value:
    """Ask with eight bytes of room: the binding gives four, and its answer is wrong from 4 GiB on."""
    used = ctypes.c_ulonglong()
    check(context, raw_function(context, MEMORY)(context.handle, ctypes.byref(used)))
    return used.value


def _vm_id(context: Context) -> Value:
    """Ask with the size that the buffer has: the binding claims more than it gives."""
    size = 80
    text, kind = ctypes.create_string_buffer(size), ctypes.c_uint()
    check(context, raw_function(context, VM_ID)(context.handle, text, ctypes.c_uint(size), ctypes.byref(kind)))
    return [text.value.decode("utf-8", "replace"), kind.value]


def _of_type(context: Context, *functions: str) -> Value:
    """Ask about the instance's type: a list of [code, value]. Types never change, so each is asked about once."""
    number = context.nvml.nvmlVgpuInstanceGetType(context.handle)
    known: dict[tuple[int, str], Value] = context.memory.keep("vgpu types", dict)
    entries: list[Value] = []
    for name in functions:
        entry = known.get((number, name))
        if entry is None:
            context.mark(name)
            try:
                entry = known[number, name] = [0, _plain_value(getattr(context.nvml, name)(number))]
            except context.nvml.NVMLError as error:
                if error.value in ENDS_DEVICE:
                    raise
                entry = [error.value, None]
        entries.append(entry)
    return entries


def _plain_value(value: Any) -> Value:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _text(name: str) -> Call:
    """Return a call that gives a text; which of the binding's give bytes differs by function."""
    return custom(name, lambda context: _plain_value(getattr(context.nvml, name)(context.handle)))


def _gpu_instance(context: Context) -> Value:
    number: int = context.nvml.nvmlVgpuInstanceGetGpuInstanceId(context.handle)
    return _unless(context, number, number == _NO_INSTANCE)


def _placement(context: Context) -> Value:
    number: int = context.nvml.nvmlVgpuInstanceGetPlacementId(context.handle)
    return _unless(context, number, number in _NO_PLACEMENT)


def _unless(context: Context, number: int, none: bool) -> Value:
    if none:
        raise context.nvml.NVMLError(NOT_SUPPORTED)
    return number


def _license(context: Context) -> Value:
    found = context.nvml.nvmlVgpuInstanceGetLicenseInfo_v2(context.handle)
    return [[0, found.currentState], _expiry(found.licenseExpiry)]


def _expiry(expiry: Any) -> Value:
    if expiry.status != _EXPIRES:
        return [NO_DATA, None]
    return [0, [expiry.year, expiry.month, expiry.day, expiry.hour, expiry.min, expiry.sec]]


def _features(context: Context) -> Value:
    """Return state, expiry and product of the licensable feature that is in use; licensed is 1, else 0."""
    found = context.nvml.nvmlDeviceGetGridLicensableFeatures_v4(context.handle)
    if not found.isGridLicenseSupported:
        raise context.nvml.NVMLError(NOT_SUPPORTED)
    offered = found.gridLicensableFeatures[: found.licensableFeaturesCount]
    enabled = [feature for feature in offered if feature.featureEnabled]
    if not enabled:
        raise context.nvml.NVMLError(NO_DATA)
    worst = min(enabled, key=lambda feature: int(feature.featureState))
    return [[0, worst.featureState], _expiry(worst.licenseExpiry), [0, _plain_value(worst.productName)]]


def _accounting(context: Context) -> Value:
    """Return how many of the guest's processes run, and the sum of their utilisations in per cent, as entries."""
    context.mark(ACCOUNTING_MODE)
    if not context.nvml.nvmlVgpuInstanceGetAccountingMode(context.handle):
        raise context.nvml.NVMLError(NO_DATA)
    context.mark(ACCOUNTING_PIDS)
    running, percents = 0, list[int]()
    for pid in _pids(context):
        context.mark(ACCOUNTING_STATS)
        try:
            stats = context.nvml.nvmlVgpuInstanceGetAccountingStats(context.handle, pid)
        except context.nvml.NVMLError as error:
            if error.value == NOT_FOUND:
                continue  # it ended since, and its record gave way to another's
            raise
        if stats.isRunning:
            running += 1
            percents.append(stats.gpuUtilization)
    total = [NOT_SUPPORTED, None] if _NOT_TOLD in percents else [0, sum(percents)]
    return [[0, running], total]


def _pids(context: Context) -> list[int]:
    """List them as nvml.h says: the binding fails where there are none."""
    count = ctypes.c_uint(_MOST_PIDS)
    pids = (ctypes.c_uint * _MOST_PIDS)()
    check(context, raw_function(context, ACCOUNTING_PIDS)(context.handle, ctypes.byref(count), pids))
    return list(pids[: min(count.value, _MOST_PIDS)])


def _scheduler(context: Context) -> Value:
    """Return policy, mode of adaptive round robin, and time slice in nanoseconds."""
    state = context.nvml.nvmlDeviceGetVgpuSchedulerState(context.handle)
    parameters = state.schedulerParams
    with_arr = state.arrMode == 2  # NVML_VGPU_SCHEDULER_ARR_ENABLE: the union has another shape
    data = parameters.vgpuSchedDataWithARR if with_arr else parameters.vgpuSchedData
    return [state.schedulerPolicy, state.arrMode, data.timeslice]


def _scheduler_caps(context: Context) -> Value:
    supported: int = context.nvml.nvmlDeviceGetVgpuSchedulerCapabilities(context.handle).isArrModeSupported
    return supported


def _capabilities(context: Context) -> Value:
    def ask(number: int) -> Value:
        value: int = context.nvml.nvmlDeviceGetVgpuCapabilities(context.handle, number)
        return value

    return each(context, CAPABILITIES, ask, CAPABILITY_NUMBERS)


def _of_host(call: Call) -> Call:
    return call._replace(role=VGPU_HOST)


GPU_CALLS: Calls = {
    "slow": (
        _of_host(plain(HOST_MODE)),
        _of_host(custom(SCHEDULER, _scheduler)),
        _of_host(custom(SCHEDULER_CAPS, _scheduler_caps)),
        _of_host(plain(HETEROGENEOUS)),
        _of_host(custom(CAPABILITIES, _capabilities)),
        Call(FEATURES, (Function(FEATURES, _features),), role=VGPU_GUEST),
    ),
}
"""What is asked of a GPU that hosts vGPUs, and of one that is a vGPU."""

KIND = Kind(
    role=VGPU_HOST,
    find=find,
    is_there=is_there,
    calls={
        "fast": (
            custom(VM_ID, _vm_id),
            custom(TYPE, lambda context: _of_type(context, TYPE_NAME, TYPE_SIZE), inner=(TYPE_NAME, TYPE_SIZE)),
            custom(MEMORY, _memory),
            USE_CALL,
        ),
        "slow": (
            Call(
                TYPE_MORE,
                (Function(TYPE, lambda context: _of_type(context, TYPE_CLASS, TYPE_LICENSE)),),
                inner=(TYPE_CLASS, TYPE_LICENSE),
            ),
            custom(LICENSE, _license),
            _text(DRIVER),
            custom(GPU_INSTANCE, _gpu_instance),
            _text(MDEV),
            plain(ECC_MODE),
            plain(FRAME_LIMIT),
            custom(PLACEMENT, _placement),
            plain(ACCOUNTING_MODE),
            custom(ACCOUNTING_STATS, _accounting, inner=(ACCOUNTING_MODE, ACCOUNTING_PIDS)),
        ),
    },
)
