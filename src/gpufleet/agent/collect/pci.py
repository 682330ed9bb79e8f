"""GPUs that only the PCI bus shows, each with the true reason why no driver here reads it. Pure."""

from collections.abc import Collection

from gpufleet.agent.collect.state import STALE_INTERVALS, State
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.machine import NVIDIA_VENDOR, PCI_READER, PciFunction
from gpufleet.model.reading import Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.view import Side, View, ViewKind

PCI_ONLY_METRICS = tuple(
    metric.name
    for metric in CATALOGUE.values()
    if Subject.GPU in metric.subjects and not metric.dims and metric.role is None and metric.name != "gpu_pci_address"
)
"""What is absent of such a device: every metric of every GPU without dimensions but the address, which is
known."""

DRIVER_READERS = ("nvml", "nvidia_smi")
"""Readers that ask the NVIDIA driver, the most trusted first."""

VFIO = "vfio-pci"
NVIDIA = "nvidia"
_DISPLAY_CLASSES = (0x0300, 0x0302, 0x0380)


def is_nvidia_gpu(function: PciFunction) -> bool:
    """Whether it is an NVIDIA display or 3D controller in its own right, not a cut of one (SR-IOV)."""
    return (
        function.vendor == NVIDIA_VENDOR
        and function.class_code >> 8 in _DISPLAY_CLASSES
        and function.physical_function is None
    )


def judge(function: PciFunction, driver: Absent | None) -> Absent:
    """Say why no reader shows this function; `driver` is why who asks the driver gives nothing, None when one works."""
    if function.driver is None:
        return Absent(Reason.NO_DRIVER, "no kernel driver is bound to it")
    if function.driver == VFIO:
        return Absent(Reason.BOUND_TO_VFIO, "it is handed to a guest")
    if function.driver != NVIDIA:
        return Absent(Reason.OTHER_DRIVER, f"the driver {function.driver} is bound to it")
    return driver or Absent(Reason.DRIVER_ERROR, "the driver does not show it")


def why_no_driver(state: State) -> Absent | None:
    """Return why no reader gives what the driver says, by the most trusted that is to read; None if one works."""
    there = {reader for reader, _ in state.statuses}
    asked = [state.why_not(reader) for reader in DRIVER_READERS if reader in there]
    if not asked:
        return state.why_not(DRIVER_READERS[0])
    return None if None in asked else asked[0]


def pci_only(state: State, shown: Collection[str], now: float, *, unplaced: int = 0) -> list[tuple[View, Absent]]:
    """Return every NVIDIA GPU of the inventory whose PCI address no reader shows, with the reason.

    Args:
        state: what the agent knows.
        shown: PCI addresses of the devices that readers show.
        now: by the monotonic clock.
        unplaced: GPUs that readers show and that no address names, because several claim one: as many functions of
            the driver's are theirs.
    """
    inventory = state.inventory
    if inventory is None:
        return []
    stale = now - inventory.ended > STALE_INTERVALS * inventory.interval_seconds
    driver = why_no_driver(state)
    left = [one for one in inventory.functions if is_nvidia_gpu(one) and one.address not in shown]
    if sum(one.driver == NVIDIA for one in left) <= unplaced:
        left = [one for one in left if one.driver != NVIDIA]
    return [
        (
            View(kind=ViewKind.GPU, side=Side.PCI_ONLY, pci_address=function.address),
            Absent(Reason.STALE, "the PCI bus has not been read for a while") if stale else judge(function, driver),
        )
        for function in left
    ]


def pci_samples(snapshot: Snapshot, at: int) -> tuple[Sample, ...]:
    """Write the snapshot's devices of this kind as samples judged at `at`, so that a hub can tell the same reasons."""
    return tuple(
        Sample(
            view=View(kind=device.kind, side=device.side, pci_address=device.pci_address),
            reader=PCI_READER,
            lane=Lane.SLOW,
            measured_at=at,
            values={
                name: Absent(reading.absent, reading.detail)
                for name, reading in device.readings.items()
                if reading.absent is not None
            },
        )
        for device in snapshot.devices
        if device.side is Side.PCI_ONLY
    )
