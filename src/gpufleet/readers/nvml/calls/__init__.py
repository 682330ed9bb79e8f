"""What is asked of the driver, lane by lane: the child runs these tables, the parent reads its answers by them.

Only getters. The binding is used where it is right; where it is not, the way around is beside the call. One file a
group. Imports without pynvml, and without the catalogue, so that the child stays small.
"""

from collections.abc import Callable

from gpufleet.readers.nvml.calls import clocks, core, ecc, engines, memory, mig, pcie, power, processes, vgpu
from gpufleet.readers.nvml.calls.call import MIG_PARENT, VGPU_HOST, Call, Found, Function, plain
from gpufleet.readers.nvml.calls.fields import Field, batch_call
from gpufleet.readers.nvml.context import Context

_GROUPS = (core, engines, memory, power, clocks, ecc, pcie, processes)

MIG_MODE = plain("nvmlDeviceGetMigMode")
VIRTUALIZATION_MODE = plain("nvmlDeviceGetVirtualizationMode")

LANES = ("fast", "slow", "static")

FIELDS: dict[str, tuple[Field, ...]] = {
    lane: tuple([one for group in _GROUPS for one in group.FIELDS.get(lane, ())]) for lane in LANES
}
"""The field values of each lane, in the order of its batch."""

CALLS: dict[str, tuple[Call, ...]] = {
    lane: (
        *[call for group in _GROUPS for call in group.CALLS.get(lane, ())],
        *([batch_call(lane, FIELDS[lane])] if FIELDS[lane] else []),
    )
    for lane in LANES
}
"""The calls of each lane, in the order in which they are made and answered."""

INSTANCE_CALLS: dict[str, dict[str, tuple[Call, ...]]] = {
    "mig": {lane: mig.CALLS.get(lane, ()) for lane in LANES},
    "vgpu": {lane: vgpu.CALLS.get(lane, ()) for lane in LANES},
}
"""The calls of each lane about an instance, by kind of instance."""

FINDERS: dict[str, tuple[str, Callable[[Context], list[Found]]]] = {
    "mig": (MIG_PARENT, mig.find),
    "vgpu": (VGPU_HOST, vgpu.find),
}
"""Kind of instance to the role that a GPU is in that has some, and how they are found."""

INIT, DRIVER_VERSION, LIBRARY_VERSION = "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"
CUDA_VERSION, COUNT = "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCount_v2"
HANDLE, PCI_INFO, UUID = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID"
NOTHING, SHUTDOWN, OPEN = "", "nvmlShutdown", "open /dev/nvidiactl"


def _labels(calls: tuple[Call, ...]) -> tuple[str, ...]:
    return (*(f.label for call in calls for f in call.functions), *(name for call in calls for name in call.inner))


LABELS: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            NOTHING,
            *(INIT, DRIVER_VERSION, LIBRARY_VERSION, CUDA_VERSION, COUNT, HANDLE, PCI_INFO, UUID, SHUTDOWN, OPEN),
            *_labels((MIG_MODE, VIRTUALIZATION_MODE)),
            *(label for lane in LANES for label in _labels(CALLS[lane])),
            *(label for lanes in INSTANCE_CALLS.values() for calls in lanes.values() for label in _labels(calls)),
            *mig.FIND_LABELS,
            *vgpu.FIND_LABELS,
        )
    )
)
"""Every function that can hang, by breadcrumb number; 0 is none."""

NUMBERS: dict[str, int] = {label: number for number, label in enumerate(LABELS)}

__all__ = ["CALLS", "FIELDS", "FINDERS", "INSTANCE_CALLS", "LABELS", "NUMBERS", "Call", "Function"]
