"""Discovery of MIG devices, and the calls for them and their parent GPU."""

from collections import Counter

from gpufleet.readers.nvml.calls import activity, board, errors
from gpufleet.readers.nvml.calls.call import (
    MIG_PARENT,
    Call,
    Calls,
    FoundInstance,
    Function,
    InstanceKind,
    InstanceList,
    attributes,
    custom,
)
from gpufleet.readers.nvml.context import (
    DEVICE_ENDED_CODES,
    INVALID_ARGUMENT,
    NO_DATA,
    NOT_FOUND,
    UNINITIALIZED,
    Context,
)
from gpufleet.readers.nvml.protocol import CallResult, Value

MAX_COUNT, BY_INDEX = "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"
UUID, NAME = "nvmlDeviceGetUUID", "nvmlDeviceGetName"
GPU_INSTANCE, COMPUTE_INSTANCE = "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId"
ATTRIBUTES = "nvmlDeviceGetAttributes_v2"
SHARED = "gpu instances with several compute instances"
PARENT, INSTANCE, PLACEMENT = (
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
)
FIND_LABELS = (MAX_COUNT, BY_INDEX, UUID, NAME, GPU_INSTANCE, COMPUTE_INSTANCE)
"""Functions that `find` enters, for breadcrumbs."""

ATTRIBUTE_NAMES = (
    "multiprocessorCount",
    "gpuInstanceSliceCount",
    "computeInstanceSliceCount",
    "sharedCopyEngineCount",
    "sharedDecoderCount",
    "sharedEncoderCount",
    "sharedJpegCount",
    "sharedOfaCount",
)

_MAX_SLOTS = 64
"""Plausible maximum: a GPU has 7. A larger number of the driver is reduced to this."""

_EMPTY = frozenset({INVALID_ARGUMENT, NOT_FOUND})
_DESTROYED = _EMPTY | {UNINITIALIZED}
"""Codes of calls with the handle of a destroyed MIG device."""


def find(context: Context) -> InstanceList:
    """Return the MIG devices of a GPU in MIG mode. Slots are sparse: devices can follow an empty slot."""
    nvml, known = context.nvml, context.cache.get_or_create("mig devices", dict[str, dict[str, CallResult]])
    context.mark(MAX_COUNT)
    slots = context.cache.get_or_create("mig slots", lambda: min(_max_count(context), _MAX_SLOTS))
    found: list[FoundInstance] = []
    unknown = 0
    for slot in range(slots):
        context.mark(BY_INDEX)
        handle = None
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(context.handle, slot)
            context.mark(UUID)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            if error.value in DEVICE_ENDED_CODES - _DESTROYED:
                raise
            if error.value not in _DESTROYED:
                found.append(_unidentified(slot, error.value))
                unknown = unknown or (error.value if handle is None else 0)  # the slot may even be empty
            continue
        if not uuid or any(instance.name == uuid for instance in found):
            found.append(_unidentified(slot, NO_DATA))  # its instance ids are unique on this GPU only
            continue
        before = known.get(uuid)
        known[uuid] = _query_identity(context, handle, uuid, before)
        if before is not None and not known[uuid]["name"].code and known[uuid]["name"] != before["name"]:
            context.cache.drop(_comparison_name(uuid))
        found.append(FoundInstance(uuid, handle, known[uuid]))
    ids = Counter(instance.identity["gpu_instance"].value for instance in found if not instance.code)
    shared: set[object] = context.cache.get_or_create(SHARED, set)
    shared.clear()
    shared.update(id_ for id_, devices in ids.items() if devices > 1)
    for gone in known.keys() - {instance.name for instance in found}:
        del known[gone]
        context.cache.drop(_comparison_name(gone))
    if unknown:
        context.mark(BY_INDEX)
    return InstanceList(found, len(found), unknown)


def _unidentified(slot: int, code: int) -> FoundInstance:
    return FoundInstance(f"slot {slot}", None, {"slot": CallResult(0, slot)}, code)


def exists(context: Context, found: FoundInstance) -> bool:
    """Return whether the handle still belongs to the same device. Raises NVMLError if the GPU itself has ended."""
    context.mark(UUID)
    try:
        return bool(context.nvml.nvmlDeviceGetUUID(found.handle) == found.name)
    except context.nvml.NVMLError as error:
        if error.value in DEVICE_ENDED_CODES - _DESTROYED:
            raise
        return False


def _query_identity(
    context: Context, handle: object, uuid: str, before: dict[str, CallResult] | None
) -> dict[str, CallResult]:
    """Query name and instance ids of a MIG device; ids are reused from the previous pass while the name is the same.

    The driver derives a UUID from the chip's own number and the placement (open-gpu-kernel-modules, nvGenerateSmcUuid).
    A device that is recreated at the same place has the UUID of its predecessor, and may have another profile.
    """
    identity = {"uuid": CallResult(0, uuid)}
    for key, function in (("name", NAME), ("gpu_instance", GPU_INSTANCE), ("compute_instance", COMPUTE_INSTANCE)):
        if before is not None and key != "name" and not before[key].code and before["name"] == identity["name"]:
            identity[key] = before[key]
            continue
        context.mark(function)
        try:
            identity[key] = CallResult(0, getattr(context.nvml, function)(handle))
        except context.nvml.NVMLError as error:
            if error.value in DEVICE_ENDED_CODES - _DESTROYED:
                raise
            identity[key] = CallResult(error.value)
    return identity


def _placement(context: Context) -> Value:
    """Query the placement through the parent GPU: a MIG device's handle does not provide it."""
    nvml = context.nvml
    context.mark(PARENT)
    gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(context.handle)
    context.mark(GPU_INSTANCE)
    number = nvml.nvmlDeviceGetGpuInstanceId(context.handle)
    context.mark(INSTANCE)
    instance = nvml.nvmlDeviceGetGpuInstanceById(gpu, number)
    context.mark(PLACEMENT)
    placement = nvml.nvmlGpuInstanceGetInfo(instance).placement
    return [placement.start, placement.size]


def _activity(context: Context) -> Value:
    """Query GPM samples of the GPU instance through the parent GPU; a recreated device starts a new comparison.

    Activity of a GPU instance with several compute instances cannot be attributed to one of them. The comparison
    restarts, also when only one of them remains.
    """
    nvml = context.nvml
    context.mark(PARENT)
    gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(context.handle)
    context.mark(GPU_INSTANCE)
    number = nvml.nvmlDeviceGetGpuInstanceId(context.handle)
    context.mark(UUID)
    comparison = _comparison_name(nvml.nvmlDeviceGetUUID(context.handle))
    if number in context.cache.get_or_create(SHARED, set):
        context.mark(GPU_INSTANCE)
        context.cache.drop(comparison)
        raise nvml.NVMLError(NO_DATA)
    return activity.query_gpm(context._replace(handle=gpu), comparison, activity.MIG_METRICS, number)


def _comparison_name(uuid: str) -> str:
    """Return the cache key of a MIG device's GPM comparison."""
    return f"gpm {uuid}"


def _max_count(context: Context) -> int:
    count: int = context.nvml.nvmlDeviceGetMaxMigDeviceCount(context.handle)
    return count


GPU_CALLS: Calls = {"slow": (Call(MAX_COUNT, (Function(MAX_COUNT, _max_count),), role=MIG_PARENT),)}
"""Calls for a GPU in MIG mode."""

KIND = InstanceKind(
    role=MIG_PARENT,
    find=find,
    exists=exists,
    calls={
        "fast": (
            *board.MEMORY_CALLS,
            *activity.PROCESS_LISTS,
            custom(
                activity.MIG_SAMPLE,
                _activity,
                inner=(PARENT, GPU_INSTANCE, UUID, activity.GPM_SUPPORT, activity.GPM_COMPARE),
            ),
        ),
        "slow": (
            attributes(ATTRIBUTES, *ATTRIBUTE_NAMES),
            custom(PLACEMENT, _placement, inner=(PARENT, GPU_INSTANCE, INSTANCE)),
            errors.MIG_SRAM_ERRORS,
        ),
    },
)
