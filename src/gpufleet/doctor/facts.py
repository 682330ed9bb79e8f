"""Facts about a node, and results of checks."""

import enum

import msgspec

from gpufleet.doctor.connection import HubConnection
from gpufleet.model.absence import Absent
from gpufleet.model.holdings import UnresolvedDevices
from gpufleet.model.machine import NVIDIA_VENDOR, Machine, PciFunction
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Guest

BRIDGE_CLASS = 0x0680
"""PCI class of NVSwitches (other bridge)."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about this node; None for a fact that could not be collected.

    Attributes:
        inventory: display controllers on the PCI bus.
        switch_drivers: driver (or empty) of each NVSwitch, None if the PCI bus could not be listed.
        driver_version: version of the loaded NVIDIA kernel module, or the reason of its absence.
        libraries: path of each libnvidia-ml.so.1 to its version, empty if the file name has none.
        device_nodes: path of each NVIDIA device node to the error name of reading and writing it, empty if permitted.
        services: name to state, or the reason of its absence.
        processes_hidden: why other processes are not visible; empty if they are.
        pressure: error name of /proc/pressure/cpu, empty if it is readable.
        kernel_log: error name of opening /dev/kmsg, empty if it opens.
        machine: evidence of the machine's identity.
        system_uuid: UUID of the machine, or the reason of its absence.
        container: container engine of this process, `none`, or the reason of its absence.
        clock_ns: current time of this machine's clock, nanoseconds since 1970.
        clock_synchronized: whether the kernel reports the clock as synchronised.
        state_folder: folder of the agent's spool.
        state_folder_error: error name of writing there, empty if permitted.
        state_folder_free: bytes free there.
        missing_packages: extra to its packages that cannot be imported.
        holders: holder source to its state: `available`, `disabled`, or the reason and message of its failure.
        unresolved: device names of holder sources that identify no device, by the running agent; None if it is unknown.
        libvirt_enabled: whether the agent queries libvirt for virtual machines.
        libvirt_socket: error name of libvirt's socket, empty if it may be connected to.
        guests_described: whether the agent has any source of virtual machines.
        guests: virtual machines known to the running agent.
        guests_error: why the guests are unknown.
        guests_capability: status of the guest sources as reported by the agent.
        hub: connection to the hub; without a URL if no hub is configured.
        errors: messages of failures during collection.
    """

    inventory: tuple[PciFunction, ...] | None = None
    switch_drivers: tuple[str, ...] | None = None
    driver_version: Value | Absent | None = None
    libraries: dict[str, str] | None = None
    device_nodes: dict[str, str] | None = None
    services: dict[str, Value | Absent] | None = None
    processes_hidden: str | None = None
    pressure: str | None = None
    kernel_log: str | None = None
    machine: Machine | None = None
    system_uuid: Value | Absent | None = None
    container: Value | Absent | None = None
    clock_ns: int | None = None
    clock_synchronized: bool | None = None
    state_folder: str = ""
    state_folder_error: str | None = None
    state_folder_free: int | None = None
    missing_packages: dict[str, tuple[str, ...]] = {}
    holders: dict[str, str] | None = None
    unresolved: UnresolvedDevices | None = None
    libvirt_enabled: bool | None = None
    libvirt_socket: str | None = None
    guests_described: bool | None = None
    guests: tuple[Guest, ...] | None = None
    guests_error: str = ""
    guests_capability: str = ""
    hub: HubConnection | None = None
    errors: tuple[str, ...] = ()

    def gpus(self) -> tuple[PciFunction, ...] | None:
        """Return the NVIDIA display controllers, None if the PCI bus could not be listed."""
        if self.inventory is None:
            return None
        return tuple(function for function in self.inventory if function.vendor == NVIDIA_VENDOR)

    def host_gpus(self) -> tuple[PciFunction, ...] | None:
        """Return the NVIDIA GPUs not passed through to guests, None if the PCI bus could not be listed."""
        gpus = self.gpus()
        if gpus is None:
            return None
        return tuple(function for function in gpus if function.driver not in PASSTHROUGH_DRIVERS)


PASSTHROUGH_DRIVERS = ("vfio-pci", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci")
"""Drivers of devices passed through to a guest."""


EXPIRY_WARNING_DAYS = 21
"""Days before the expiry of a certificate or token from which checks warn."""


class CheckVerdict(enum.StrEnum):
    """Outcome of a check."""

    OK = "ok"
    WARNING = "warning"  # works, but `found` names something missing
    FAILED = "failed"  # readings are missing until it is fixed
    UNKNOWN = "unknown"  # the check could not run
    NOT_APPLICABLE = "not_applicable"  # this node does not need it


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check.

    Attributes:
        name: name of the check.
        verdict: the outcome.
        proves: the condition that holds if the verdict is ok.
        found: the observed state.
        fix: the remedy; empty if none is needed.
    """

    name: str
    verdict: CheckVerdict
    proves: str
    found: str
    fix: str = ""
