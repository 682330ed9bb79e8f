"""Tables of the driver calls, lane by lane: the child runs them, the parent interprets its answers by them.

Getters only. The binding is used where it is correct; a workaround stands beside its call. One file per group. Imports
neither pynvml nor the catalogue, so that the child stays small.
"""

from gpufleet.readers.nvml.calls import activity, board, errors, links, mig, vgpu
from gpufleet.readers.nvml.calls.call import Call, Function, InstanceKind, getter
from gpufleet.readers.nvml.calls.fields import Field, batch_call

_GROUPS = (board, errors, links, activity)

MIG_MODE = getter("nvmlDeviceGetMigMode")
VIRTUALIZATION_MODE = getter("nvmlDeviceGetVirtualizationMode")
HOST_VGPU_MODE = getter(vgpu.HOST_MODE)

PART_CALLS: dict[str, Call] = {"ecc": errors.HAS_ECC, "nvlink": links.HAS_NVLINK}
"""Part of a board, as in `fleet.board`, to the call that shows whether the board has it."""

PRODUCT = board.PRODUCT
"""Call for the product name, which shows further parts: `model.products`."""

SYSTEM_CALLS = board.SYSTEM_CALLS
"""Calls about NVML as a whole on the static lane, besides versions."""

LANES = ("fast", "slow", "static")

FIELDS: dict[str, tuple[Field, ...]] = {
    lane: tuple([field for group in _GROUPS for field in group.FIELDS.get(lane, ())]) for lane in LANES
}
"""Field values of each lane, in the order of its batch."""

CALLS: dict[str, tuple[Call, ...]] = {
    lane: (
        *[call for group in _GROUPS for call in group.CALLS.get(lane, ())],
        *[call for group in (mig, vgpu) for call in group.GPU_CALLS.get(lane, ())],
        *([batch_call(lane, FIELDS[lane])] if FIELDS[lane] else []),
    )
    for lane in LANES
}
"""Calls of each lane, in the order of execution and of the answers."""

KINDS: dict[str, InstanceKind] = {"mig": mig.KIND, "vgpu": vgpu.KIND}
"""Kinds of GPU instances."""

INSTANCE_CALLS: dict[str, dict[str, tuple[Call, ...]]] = {
    name: {lane: kind.calls.get(lane, ()) for lane in LANES} for name, kind in KINDS.items()
}
"""Calls of each lane for an instance, by kind."""

INIT, DRIVER_VERSION, LIBRARY_VERSION = "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"
CUDA_VERSION, COUNT = "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCount_v2"
HANDLE, PCI_INFO, UUID = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID"
IDLE, SHUTDOWN, OPEN = "", "nvmlShutdown", "open /dev/nvidiactl"


def _labels(calls: tuple[Call, ...]) -> tuple[str, ...]:
    return (*(f.label for call in calls for f in call.functions), *(name for call in calls for name in call.inner))


LABELS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            IDLE,
            *(INIT, DRIVER_VERSION, LIBRARY_VERSION, CUDA_VERSION, COUNT, HANDLE, PCI_INFO, UUID, SHUTDOWN, OPEN),
            *_labels((MIG_MODE, VIRTUALIZATION_MODE, HOST_VGPU_MODE, *PART_CALLS.values(), *SYSTEM_CALLS)),
            *(label for lane in LANES for label in _labels(CALLS[lane])),
            *(label for lanes in INSTANCE_CALLS.values() for calls in lanes.values() for label in _labels(calls)),
            *mig.FIND_LABELS,
            *vgpu.FIND_LABELS,
        )
    )
)
"""Every function that can hang, by breadcrumb number; 0 means none."""

NUMBERS: dict[str, int] = {label: number for number, label in enumerate(LABELS)}

__all__ = ["CALLS", "FIELDS", "INSTANCE_CALLS", "KINDS", "LABELS", "NUMBERS", "Call", "Function"]
