"""GPUs that only the PCI bus lists, each with the reason why no reader of this host covers it. Pure."""

from collections.abc import Collection

from gpufleet.agent.collect.state import AgentState
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.machine import NVIDIA_VENDOR, PCI_READER, PciFunction
from gpufleet.model.reading import Sample
from gpufleet.model.snapshot import Snapshot
from gpufleet.model.status import MISSED_PASSES
from gpufleet.model.view import Side, View, ViewKind

PCI_ONLY_METRICS = tuple(
    metric.name
    for metric in CATALOGUE.values()
    if Subject.GPU in metric.subjects and not metric.dims and metric.role is None and metric.name != "gpu_pci_address"
)
"""Metrics that are absent for such a device: every GPU metric without dimensions, except the known PCI address."""

DRIVER_READERS = ("nvml", "nvidia_smi")
"""Readers that query the NVIDIA driver, the most trusted first."""

VFIO = "vfio-pci"
NVIDIA = "nvidia"
_DISPLAY_CLASSES = (0x0300, 0x0302, 0x0380)


def is_nvidia_gpu(function: PciFunction) -> bool:
    """Return whether it is an NVIDIA display or 3D controller, and not an SR-IOV virtual function."""
    return (
        function.vendor == NVIDIA_VENDOR
        and function.class_code >> 8 in _DISPLAY_CLASSES
        and function.physical_function is None
    )


def judge(function: PciFunction, driver: Absent | None) -> Absent:
    """Return why no reader lists this function.

    `driver` is the result of `why_no_driver`.
    """
    if function.driver is None:
        return Absent(Reason.NO_DRIVER, "no kernel driver is bound")
    if function.driver == VFIO:
        return Absent(Reason.BOUND_TO_VFIO, "passed through to a guest")
    if function.driver != NVIDIA:
        return Absent(Reason.OTHER_DRIVER, f"bound to the kernel driver {function.driver}")
    return driver or Absent(Reason.DRIVER_ERROR, "the driver does not list this GPU")


def why_no_driver(state: AgentState) -> Absent | None:
    """Return why the most trusted enabled reader of the driver has no values; None if any such reader works.

    The text of its error stays in its status: it has the time of its pass, and can be from before this PCI listing.
    """
    enabled = {reader for reader, _ in state.statuses}
    readers = [reader for reader in DRIVER_READERS if reader in enabled]
    if not readers:
        return state.why_not(DRIVER_READERS[0])
    failures = [why for reader in readers if (why := state.why_not(reader)) is not None]
    if len(failures) < len(readers):
        return None
    return Absent(failures[0].reason, f"see the status of the {readers[0]} reader")


def pci_only(state: AgentState, shown: Collection[str], now: float, *, unplaced: int = 0) -> list[tuple[View, Absent]]:
    """Return each NVIDIA GPU of the PCI inventory whose address no reader lists, with the reason.

    Args:
        state: the agent's state.
        shown: PCI addresses of the devices that readers list.
        now: monotonic seconds.
        unplaced: number of GPUs that readers list without an address, because several claim one. As many functions
            bound to NVIDIA's driver belong to them.
    """
    inventory = state.inventory
    if inventory is None:
        return []
    stale = now - inventory.ended > MISSED_PASSES * inventory.interval_seconds
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
    """Return the snapshot's PCI-only devices as samples of the time `at`, so that a hub reports the same reasons.

    Their address is a text, too: a hub keeps since when texts are reported.
    """
    return tuple(
        Sample(
            view=View(kind=device.kind, side=device.side, pci_address=device.pci_address),
            reader=PCI_READER,
            lane=Lane.SLOW,
            measured_at=at,
            values={
                **{
                    name: Absent(reading.absent, reading.detail)
                    for name, reading in device.readings.items()
                    if reading.absent is not None
                },
                **({} if device.pci_address is None else {"gpu_pci_address": device.pci_address}),
            },
        )
        for device in snapshot.devices
        if device.side is Side.PCI_ONLY
    )
