"""The holder port: a source of evidence for which pod, job or VM has which device.

A source names devices in its own way (`DeviceName`). `fleet.attribution` joins the names with the views of the machine.
"""

import enum
from typing import Protocol

import msgspec

from gpufleet.model.holdings import Holder, HolderKind, Method, Share

HolderId = tuple[HolderKind, str]
"""Kind and id of a holder."""


class Naming(enum.StrEnum):
    """Kind of identity in a device name."""

    UUID = "uuid"  # GPU-... or MIG-..., as the driver writes it
    PCI = "pci"  # PCI address of a physical or virtual function, as sysfs writes it
    MDEV = "mdev"  # UUID of a mediated device (vGPU), lower case
    MINOR = "minor"  # N of the device node /dev/nvidiaN
    MIG_OF_GPU = "mig_of_gpu"  # GPU-.../gi or GPU-.../gi/ci: MIG device by its GPU's UUID and instance ids
    MIG_OF_MINOR = "mig_of_minor"  # N/gi or N/gi/ci: MIG device by its GPU's device node and instance ids
    IOMMU_GROUP = "iommu_group"  # number of a group; it resolves only if the source finds the group's only GPU
    VIEW = "view"  # key of a view of this machine
    UNRESOLVED = "unresolved"  # the source's name identifies no device by itself


class DeviceName(msgspec.Struct, frozen=True):
    """A device as a source names it.

    Attributes:
        naming: what `text` identifies.
        text: the name in the form of `naming`.
        original: the name as the source writes it, at most 256 characters, for findings.
    """

    naming: Naming
    text: str
    original: str = ""


class HolderClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that a holder has devices.

    Attributes:
        holder: the holder, as far as the source knows it.
        devices: each once.
        method: source of the evidence.
        parent: holder of the holder (a launcher pod's virtual machine), or None; its id is `namespace/name` if the
            source does not prove its identity.
        container, container_id, steps, share, replicas, total_replicas, claim: as in `Holding`.
        resource: Kubernetes resource name (`nvidia.com/gpu`) or SLURM GRES type, or empty.
        since: start of the holding as the source reports it, nanoseconds since 1970, or None.
    """

    holder: Holder
    devices: tuple[DeviceName, ...]
    method: Method
    parent: Holder | None = None
    container: str = ""
    container_id: str = ""
    steps: tuple[str, ...] = ()
    share: Share = Share.EXCLUSIVE
    replicas: int = 0
    total_replicas: int = 0
    claim: str = ""
    resource: str = ""
    since: int | None = None


class HolderReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a holder source.

    Attributes:
        claims: present claims, in any order.
        observes: whether the claims are observations. A source that observes never proves that a device is free.
        complete: whether every holder that the source knows is among the claims. If not, a missing claim does not mean
            that a holding has ended.
        session: identity of the answering process. The first answers of a new session may lack claims.
        started_at: start of the answering process, nanoseconds since 1970, or None if unknown.
        lists: kind of the holders that the source lists, with devices or not; None if it lists only those with devices.
        listed: those holders, by kind and id.
        nodes: SLURM's names of this machine, if the source is SLURM. The id of an observed job is `NODE/ID` if its node
            is known: with another node it is a job of another cluster.
        living: holders that run on this machine now, by kind and id, with devices or not; None if unknown.
        unattributed: keys of views with a process that belongs to no holder, or whose holder is unknown.
        unattributed_devices: devices that such a process has open, or shares an IOMMU group with.
        detail: what could not be read, for `doctor`; empty if everything was.
    """

    claims: tuple[HolderClaim, ...] = ()
    observes: bool = False
    complete: bool = True
    session: str = ""
    started_at: int | None = None
    lists: HolderKind | None = None
    listed: frozenset[HolderId] = frozenset()
    nodes: frozenset[str] = frozenset()
    living: frozenset[HolderId] | None = None
    unattributed: frozenset[str] = frozenset()
    unattributed_devices: frozenset[DeviceName] = frozenset()
    detail: str = ""


class HolderSource(Protocol):
    """Source of evidence for holdings."""

    @property
    def name(self) -> str:
        """Name in status, findings and self-metrics."""
        ...

    async def report(self) -> HolderReport:
        """Return the present evidence. The caller never runs two calls at once.

        Raises:
            HolderError: if the source gives no answer; `absence` is `not_enabled` if it does not exist on this machine.
        """
        ...

    async def close(self) -> None:
        """Release all resources; a later `report` opens them again."""
        ...
