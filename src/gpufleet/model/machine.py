"""Machines (nodes and guests): evidence of identity, PCI devices, and the states of a guest.

The hub assigns the identity of a machine.
"""

import enum

import msgspec

from gpufleet.model.absence import Reason


class MachineKind(enum.StrEnum):
    """Kind of a machine."""

    NODE = "node"
    GUEST = "guest"  # a virtual machine, read through its host's agent


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Evidence of a machine's identity, and its attributes in Kubernetes and in a cloud.

    Attributes:
        name: host name reported by its kernel; for display and as the weakest evidence.
        kind: node or guest.
        machine_id: /etc/machine-id, 32 hexadecimal digits. Cloned images share it.
        system_uuid: DMI product UUID in canonical lower case, or None (needs root to read).
        boot_id: random per boot; distinguishes a clone from a restart.
        k8s_node_uid: UID of the Kubernetes Node object.
        instance_id: instance id of the cloud provider.
        hypervisor: for a guest, the `name` of its node.
        k8s_node_name: name of the Kubernetes Node object; not evidence, because a replaced node can have the same name.
        cloud_provider: as in OpenTelemetry's `cloud.provider`, such as `aws`.
        instance_type, region, zone: of the provider's instance.
    """

    name: str
    kind: MachineKind = MachineKind.NODE
    machine_id: str | None = None
    system_uuid: str | None = None
    boot_id: str | None = None
    k8s_node_uid: str | None = None
    instance_id: str | None = None
    hypervisor: str | None = None
    k8s_node_name: str | None = None
    cloud_provider: str | None = None
    instance_type: str | None = None
    region: str | None = None
    zone: str | None = None


ATTRIBUTES = ("k8s_node_name", "cloud_provider", "instance_type", "region", "zone")
"""Fields of `Machine` that describe it and identify nothing."""


class PciFunction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A display or 3D controller on the PCI bus, as sysfs shows it, independent of any driver.

    Attributes:
        address: `dddd:bb:dd.f`, lower case.
        vendor: PCI vendor number (0x10de is NVIDIA).
        device: PCI device number.
        class_code: 24-bit class (0x0300xx VGA, 0x0302xx 3D controller, 0x0380xx other display).
        driver: name of the bound kernel driver, or None when none is bound.
        numa_node: NUMA node, or None when the platform does not report it (-1 in sysfs).
        physical_function: address of the physical function if this is an SR-IOV virtual function.
    """

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str | None = None
    numa_node: int | None = None
    physical_function: str | None = None


PCI_READER = "pci"
"""Value of `reader` in readings that are absent because only the PCI bus shows the device."""

NVIDIA_VENDOR = 0x10DE
"""PCI vendor number of NVIDIA (PCI-SIG list)."""


OK = "ok"

REMOVED = "removed"
"""State of a guest that was removed from the agent's targets."""

UNANSWERED_STATES = (Reason.GUEST_UNREACHABLE, Reason.GUEST_BOOTING, Reason.TIMEOUT)
"""States without data from inside the guest: earlier data ages, but is not contradicted."""

STATES = (
    OK,
    *(str(reason) for reason in UNANSWERED_STATES),
    *(
        str(reason)
        for reason in (
            Reason.GUEST_REFUSED,
            Reason.IDENTITY_MISMATCH,
            Reason.NOT_ENABLED,
            Reason.INCOMPATIBLE_VERSION,
            Reason.GPU_COUNT_DIFFERS,
            Reason.NO_LIBRARY,
            Reason.NO_DRIVER,
            Reason.DRIVER_MISMATCH,
            Reason.DRIVER_ERROR,
            Reason.NO_SUPPORTED_GPU,
            Reason.GPU_LOST,
            Reason.RESET_REQUIRED,
            Reason.NOT_PERMITTED,
            Reason.READER_FAILED,
        )
    ),
    REMOVED,
)
"""Names of `guest_state`, in the order of their stored numbers: new ones go to the end."""


def state_of(reason: Reason) -> str:
    """Return the guest state for a failure."""
    return str(reason) if str(reason) in STATES else str(Reason.READER_FAILED)
