"""Holder source that names the virtual machines of launcher pods."""

from collections.abc import Mapping

import msgspec

from gpufleet.holders.kubevirt.parse import NodeVmi
from gpufleet.model.holdings import Holder, HolderKind
from gpufleet.model.kubernetes import ClusterVmi
from gpufleet.ports.cluster import ResourceCopy
from gpufleet.ports.holder import HolderClaim, HolderReport, HolderSource


class LauncherPodHolders:
    """The report of another source, with the virtual machine of each launcher pod as its parent.

    The pod's UID must be among the active pods of the VirtualMachineInstance, and both in one namespace. Names and
    labels of pods prove nothing. Devices are the other source's.

    Args:
        pods: reports pods with their devices.
        copy: of the VirtualMachineInstances of this node.
    """

    def __init__(self, pods: HolderSource, copy: ResourceCopy[NodeVmi]) -> None:
        self._pods, self._copy = pods, copy

    @property
    def name(self) -> str:
        """Return the name of the other source."""
        return self._pods.name

    async def report(self) -> HolderReport:
        """Return the other source's report with virtual machines; see `HolderSource.report`."""
        report = await self._pods.report()
        vmis: dict[str, ClusterVmi | None] = {}
        for one in self._copy.records.values():
            for uid in one.vmi.pods:
                vmis[uid] = None if uid in vmis else one.vmi  # a pod of two machines is of neither
        claims = tuple([_with_machine(claim, vmis) for claim in report.claims])
        return msgspec.structs.replace(report, claims=claims)

    async def close(self) -> None:
        """Close the other source."""
        await self._pods.close()


def _with_machine(claim: HolderClaim, vmis: Mapping[str, ClusterVmi | None]) -> HolderClaim:
    vmi = vmis.get(claim.holder.id) if claim.holder.kind is HolderKind.POD else None
    if vmi is None or claim.holder.namespace != vmi.namespace:
        return claim
    owners = (vmi.machine,) if vmi.machine is not None else ()
    machine = Holder(kind=HolderKind.VM, id=vmi.uid, name=vmi.name, namespace=vmi.namespace, owners=owners)
    return msgspec.structs.replace(claim, parent=machine)
