"""A machine: a node or a guest. Its identity is given by the hub; here is the evidence for it.

How a virtual machine is doing that an agent reads from inside.
"""

import enum

import msgspec

from gpufleet.model.absence import Reason


class MachineKind(enum.StrEnum):
    """What the machine is."""

    NODE = "node"
    GUEST = "guest"  # a virtual machine, read through its host's agent


class Machine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a machine is known by: evidence, not identity.

    Attributes:
        name: host name as its own kernel says it; for display and as the weakest evidence.
        kind: node or guest.
        machine_id: /etc/machine-id, 32 hexadecimal digits. Cloned images share it.
        system_uuid: DMI product UUID in canonical lower case, or None (needs root to read).
        boot_id: random per boot; tells a clone from a restart.
        k8s_node_uid: UID of the Kubernetes Node object.
        instance_id: the cloud's name for the instance.
        hypervisor: for a guest, the `name` of the node it runs on.
    """

    name: str
    kind: MachineKind = MachineKind.NODE
    machine_id: str | None = None
    system_uuid: str | None = None
    boot_id: str | None = None
    k8s_node_uid: str | None = None
    instance_id: str | None = None
    hypervisor: str | None = None


class PciFunction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A display or 3D controller on the PCI bus, as sysfs shows it without any driver's help.

    Attributes:
        address: `dddd:bb:dd.f`, lower case.
        vendor: PCI vendor number (0x10de is NVIDIA).
        device: PCI device number.
        class_code: 24-bit class (0x0300xx VGA, 0x0302xx 3D controller, 0x0380xx other display).
        driver: name of the bound kernel driver, or None when none is bound.
        numa_node: NUMA node, or None when the platform does not tell (sysfs says -1).
        physical_function: address of the physical function where this is an SR-IOV virtual one.
    """

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str | None = None
    numa_node: int | None = None
    physical_function: str | None = None


PCI_READER = "pci"
"""What `reader` says of readings that are absent because only the PCI bus shows the device."""

NVIDIA_VENDOR = 0x10DE
"""PCI vendor number of NVIDIA (PCI-SIG list)."""


OK = "ok"

REMOVED = "removed"
"""The agent was told to read it no more."""

SILENT = (Reason.GUEST_UNREACHABLE, Reason.GUEST_BOOTING, Reason.TIMEOUT)
"""States in which nothing is heard from inside: what was heard before ages, and is not contradicted."""

STATES = (
    OK,
    *(str(reason) for reason in SILENT),
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
    """Return the state that a failure puts a guest in."""
    return str(reason) if str(reason) in STATES else str(Reason.READER_FAILED)
