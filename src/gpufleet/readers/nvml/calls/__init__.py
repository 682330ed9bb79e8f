"""What is asked of the driver, lane by lane: the child runs these tables, the parent reads its answers by them.

Only getters. The binding is used where it is right; where it is not, the way around is beside the call. One file a
group. Imports without pynvml, and without the catalogue, so that the child stays small.
"""

from gpufleet.readers.nvml.calls import (
    clocks,
    confidential,
    core,
    ecc,
    engines,
    fabric,
    gpm,
    memory,
    mig,
    nvlink,
    pcie,
    power,
    processes,
    vgpu,
)
from gpufleet.readers.nvml.calls.call import Call, Function, Kind, plain
from gpufleet.readers.nvml.calls.fields import Field, batch_call

_GROUPS = (core, engines, gpm, memory, power, clocks, ecc, pcie, nvlink, fabric, confidential, processes)

MIG_MODE = plain("nvmlDeviceGetMigMode")
VIRTUALIZATION_MODE = plain("nvmlDeviceGetVirtualizationMode")
HOST_VGPU_MODE = plain(vgpu.HOST_MODE)

SYSTEM_CALLS = confidential.SYSTEM_CALLS
"""What is asked of NVML as a whole on the static lane, beside versions."""

LANES = ("fast", "slow", "static")

FIELDS: dict[str, tuple[Field, ...]] = {
    lane: tuple([one for group in _GROUPS for one in group.FIELDS.get(lane, ())]) for lane in LANES
}
"""The field values of each lane, in the order of its batch."""

CALLS: dict[str, tuple[Call, ...]] = {
    lane: (
        *[call for group in _GROUPS for call in group.CALLS.get(lane, ())],
        *[call for group in (mig, vgpu) for call in group.GPU_CALLS.get(lane, ())],
        *([batch_call(lane, FIELDS[lane])] if FIELDS[lane] else []),
    )
    for lane in LANES
}
"""The calls of each lane, in the order in which they are made and answered."""

KINDS: dict[str, Kind] = {"mig": mig.KIND, "vgpu": vgpu.KIND}
"""Kinds of part that a GPU can be cut or shared into."""

INSTANCE_CALLS: dict[str, dict[str, tuple[Call, ...]]] = {
    name: {lane: kind.calls.get(lane, ()) for lane in LANES} for name, kind in KINDS.items()
}
"""The calls of each lane about an instance, by kind of instance."""

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
            *_labels((MIG_MODE, VIRTUALIZATION_MODE, HOST_VGPU_MODE, *SYSTEM_CALLS)),
            *(label for lane in LANES for label in _labels(CALLS[lane])),
            *(label for lanes in INSTANCE_CALLS.values() for calls in lanes.values() for label in _labels(calls)),
            *mig.FIND_LABELS,
            *vgpu.FIND_LABELS,
        )
    )
)
"""Every function that can hang, by breadcrumb number; 0 is none."""

NUMBERS: dict[str, int] = {label: number for number, label in enumerate(LABELS)}

__all__ = ["CALLS", "FIELDS", "INSTANCE_CALLS", "KINDS", "LABELS", "NUMBERS", "Call", "Function"]
