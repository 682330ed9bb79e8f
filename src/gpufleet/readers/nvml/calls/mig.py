"""MIG devices: how they are found, and what is asked of them and of the GPU that is cut into them."""

from collections import Counter

from gpufleet.readers.nvml.calls import gpm, memory, processes
from gpufleet.readers.nvml.calls.call import (
    MIG_PARENT,
    Call,
    Calls,
    Finding,
    Found,
    Function,
    Kind,
    custom,
    struct,
)
from gpufleet.readers.nvml.context import ENDS_DEVICE, INVALID_ARGUMENT, NO_DATA, NOT_FOUND, UNINITIALIZED, Context
from gpufleet.readers.nvml.protocol import Answer, Value

MOST, BY_INDEX = "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"
UUID, NAME = "nvmlDeviceGetUUID", "nvmlDeviceGetName"
GPU_INSTANCE, COMPUTE_INSTANCE = "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId"
ATTRIBUTES = "nvmlDeviceGetAttributes_v2"
SHARED = "gpu instances with several compute instances"
PARENT, INSTANCE, PLACEMENT = (
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
)
FIND_LABELS = (MOST, BY_INDEX, UUID, NAME, GPU_INSTANCE, COMPUTE_INSTANCE)
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

_MOST_SLOTS = 64
"""A GPU has 7; a driver that says more than this is not believed."""

_EMPTY = frozenset({INVALID_ARGUMENT, NOT_FOUND})
_DEAD = _EMPTY | {UNINITIALIZED}
"""Codes that calls on a handle of a destroyed MIG device answer."""


def find(context: Context) -> Finding:
    """Return the MIG devices of a GPU in MIG mode. Slots are sparse: an empty one says nothing of the next."""
    nvml, known = context.nvml, context.memory.keep("mig devices", dict[str, dict[str, Answer]])
    context.mark(MOST)
    slots = context.memory.keep("mig slots", lambda: min(_most(context), _MOST_SLOTS))
    parts: list[Found] = []
    unknown = 0
    for slot in range(slots):
        context.mark(BY_INDEX)
        handle = None
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(context.handle, slot)
            context.mark(UUID)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            if error.value in ENDS_DEVICE - _DEAD:
                raise
            if error.value not in _DEAD:
                parts.append(_unnamed(slot, error.value))
                unknown = unknown or (error.value if handle is None else 0)  # not even whether there is one
            continue
        if not uuid or any(one.name == uuid for one in parts):
            parts.append(_unnamed(slot, NO_DATA))  # ids of its own name it on its GPU only
            continue
        before = known.get(uuid)
        known[uuid] = _identity(context, handle, uuid, before)
        if before is not None and not known[uuid]["name"].code and known[uuid]["name"] != before["name"]:
            context.memory.drop(_comparison_of(uuid))
        parts.append(Found(uuid, handle, known[uuid]))
    ids = Counter(one.identity["gpu_instance"].value for one in parts if not one.code)
    shared: set[object] = context.memory.keep(SHARED, set)
    shared.clear()
    shared.update(id_ for id_, devices in ids.items() if devices > 1)
    for gone in known.keys() - {one.name for one in parts}:
        del known[gone]
        context.memory.drop(_comparison_of(gone))
    if unknown:
        context.mark(BY_INDEX)
    return Finding(parts, len(parts), unknown)


def _unnamed(slot: int, code: int) -> Found:
    return Found(f"slot {slot}", None, {"slot": Answer(0, slot)}, code)


def is_there(context: Context, found: Found) -> bool:
    """Tell whether the handle still is of the device that it was."""
    context.mark(UUID)
    try:
        return bool(context.nvml.nvmlDeviceGetUUID(found.handle) == found.name)
    except context.nvml.NVMLError:
        return False


def _identity(context: Context, handle: object, uuid: str, before: dict[str, Answer] | None) -> dict[str, Answer]:
    """Ask what a MIG device is; what was asked before and cannot be another is not asked again.

    The driver makes a UUID of the chip's own number and the place on it (open-gpu-kernel-modules, nvGenerateSmcUuid): a
    device that is made anew in the same place has the UUID of the one before, and may have another profile.
    """
    identity = {"uuid": Answer(0, uuid)}
    for part, function in (("name", NAME), ("gpu_instance", GPU_INSTANCE), ("compute_instance", COMPUTE_INSTANCE)):
        if before is not None and part != "name" and not before[part].code and before["name"] == identity["name"]:
            identity[part] = before[part]
            continue
        context.mark(function)
        try:
            identity[part] = Answer(0, getattr(context.nvml, function)(handle))
        except context.nvml.NVMLError as error:
            identity[part] = Answer(error.value)
    return identity


def _placement(context: Context) -> Value:
    """Ask the GPU for the GPU instance: a MIG device's own handle does not tell where it is."""
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
    """Ask the GPU for samples of the GPU instance; a device made anew in its place is compared afresh.

    What several compute instances did in one GPU instance is nobody's own, also where only one of them is left: the
    comparison starts anew.
    """
    nvml = context.nvml
    context.mark(PARENT)
    gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(context.handle)
    context.mark(GPU_INSTANCE)
    number = nvml.nvmlDeviceGetGpuInstanceId(context.handle)
    context.mark(UUID)
    comparison = _comparison_of(nvml.nvmlDeviceGetUUID(context.handle))
    if number in context.memory.keep(SHARED, set):
        context.mark(GPU_INSTANCE)
        context.memory.drop(comparison)
        raise nvml.NVMLError(NO_DATA)
    return gpm.in_turn(context._replace(handle=gpu), comparison, gpm.PART_METRICS, number)


def _comparison_of(uuid: str) -> str:
    """Return the name under which the samples of a MIG device are kept."""
    return f"gpm {uuid}"


def _most(context: Context) -> int:
    most: int = context.nvml.nvmlDeviceGetMaxMigDeviceCount(context.handle)
    return most


GPU_CALLS: Calls = {"slow": (Call(MOST, (Function(MOST, _most),), role=MIG_PARENT),)}
"""What is asked of a GPU in MIG mode."""

KIND = Kind(
    role=MIG_PARENT,
    find=find,
    is_there=is_there,
    calls={
        "fast": (
            *memory.CALLS["fast"],
            *processes.LISTS,
            custom(gpm.MIG_SAMPLE, _activity, inner=(PARENT, GPU_INSTANCE, UUID, gpm.SUPPORT, gpm.COMPARE)),
        ),
        "slow": (
            struct(ATTRIBUTES, *ATTRIBUTE_NAMES),
            custom(PLACEMENT, _placement, inner=(PARENT, GPU_INSTANCE, INSTANCE)),
        ),
    },
)
