"""What was gathered; None where it could not be.

What a check says.
"""

import enum

import msgspec

from gpufleet.model.absence import Absent
from gpufleet.model.machine import NVIDIA_VENDOR, Machine, PciFunction
from gpufleet.model.reading import Value
from gpufleet.model.snapshot import Guest

BRIDGE_CLASS = 0x0680
"""PCI class of NVSwitches (other bridge)."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about this node.

    Attributes:
        inventory: display controllers on the PCI bus.
        switch_drivers: driver (or empty) of every NVSwitch, None if the PCI bus could not be listed.
        driver_version: of the loaded NVIDIA kernel module, or why there is none.
        libraries: path of every libnvidia-ml.so.1 found to its version, empty where its name tells none.
        device_nodes: path of every NVIDIA device node to whether it may be read and written (empty: yes;
            else a POSIX error name).
        services: name to state, or why it is not known.
        processes_hidden: why other processes are not seen: empty when they are.
        pressure: error name of /proc/pressure/cpu, empty when it is readable.
        kernel_log: error name of opening /dev/kmsg, empty when it opens.
        machine: evidence of the machine's identity.
        system_uuid: the machine's UUID, or why there is none.
        container: engine this process runs in, `none`, or why it is not known.
        clock_ns: now, by this machine's clock.
        clock_synchronized: whether the kernel holds it for synchronised.
        state_folder: where the agent keeps its spool.
        state_folder_error: error name of writing there, empty when it is possible.
        state_folder_free: bytes free there.
        pod_resources: error name of the kubelet's pod-resources socket, empty when it may be connected to.
        missing_packages: extra to the packages of it that cannot be imported.
        libvirt_enabled: whether the agent asks libvirt for virtual machines.
        libvirt_socket: error name of libvirt's socket, empty when it may be connected to.
        guests_described: whether anything tells the agent of virtual machines.
        guests: virtual machines as the running agent knows them.
        guests_error: why they are not known.
        guests_capability: what the agent says of their descriptions.
        errors: words of what failed on the way.
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
    pod_resources: str | None = None
    missing_packages: dict[str, tuple[str, ...]] = {}
    libvirt_enabled: bool | None = None
    libvirt_socket: str | None = None
    guests_described: bool | None = None
    guests: tuple[Guest, ...] | None = None
    guests_error: str = ""
    guests_capability: str = ""
    errors: tuple[str, ...] = ()

    def gpus(self) -> tuple[PciFunction, ...] | None:
        """Return the NVIDIA display controllers, None if the PCI bus could not be listed."""
        if self.inventory is None:
            return None
        return tuple(function for function in self.inventory if function.vendor == NVIDIA_VENDOR)

    def host_gpus(self) -> tuple[PciFunction, ...] | None:
        """Return those that are not handed to guests, None if the PCI bus could not be listed."""
        gpus = self.gpus()
        if gpus is None:
            return None
        return tuple(function for function in gpus if function.driver not in HANDED_OVER)


HANDED_OVER = ("vfio-pci", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci")
"""Drivers under which a device belongs to a guest."""


class Verdict(enum.StrEnum):
    """What a check came to."""

    OK = "ok"
    WARNING = "warning"  # works, with something missing that `found` names
    FAILED = "failed"  # readings are missing until it is mended
    UNKNOWN = "unknown"  # the check could not be made
    NOT_APPLICABLE = "not_applicable"  # this node has no need of it


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One prerequisite.

    Attributes:
        name: of the check.
        verdict: what it came to.
        proves: what holds when it is ok.
        found: what was seen.
        mend: what to do about it; empty where there is nothing to do.
    """

    name: str
    verdict: Verdict
    proves: str
    found: str
    mend: str = ""
