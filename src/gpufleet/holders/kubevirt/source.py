"""Guest source: KubeVirt's virtual machines on this node that have a GPU, from a copy of their objects."""

from gpufleet.config.guests import GuestConfig
from gpufleet.config.kubevirt import KubevirtConfig
from gpufleet.holders.kubevirt.decisions import (
    Conflicts,
    describe_vmi,
    has_vsock_consent,
    launcher_pods,
    vmis_of_node,
)
from gpufleet.holders.kubevirt.parse import NodeVmi
from gpufleet.model.errors import ChannelError, ChannelProblem
from gpufleet.model.kubernetes import CopyState
from gpufleet.model.text import bounded
from gpufleet.ports.cluster import ResourceCopy
from gpufleet.ports.guests import GuestDetails, GuestListing
from gpufleet.ports.vsock import VsockTarget

LIST_SECONDS = 1.0
"""Interval between two listings. They are made from the copy, without a request."""

MAX_DETAIL = 300
NAME = "kubevirt"


class KubevirtSource:
    """Lists the virtual machines of a node. In an outage of the API server it lists the last known ones."""

    name = NAME
    every_seconds = LIST_SECONDS
    adds = True

    def __init__(self, copy: ResourceCopy[NodeVmi], node: str, settings: KubevirtConfig) -> None:
        """Take the parts.

        Args:
            copy: of the VirtualMachineInstances of this node; further ones are ignored.
            node: name of this node in Kubernetes.
            settings: how virtual machines are read.
        """
        self._copy, self._node, self._settings = copy, node, settings
        self._listed: dict[str, GuestConfig] = {}

    async def list_guests(self) -> GuestListing:
        """Return the virtual machines of this node that have a GPU, with the reason for each that is not read."""
        here = vmis_of_node(self._copy.records.values(), self._node)
        conflicts = Conflicts.of(here)
        guests: dict[str, GuestConfig] = {}
        details: dict[str, GuestDetails] = {}
        problems = self._copy_problems()
        for one in sorted(here, key=lambda each: (each.vmi.namespace, each.vmi.name)):
            label = f"{one.vmi.namespace}/{one.vmi.name}"
            try:
                found = describe_vmi(one, self._node, self._settings, conflicts)
            except ValueError as error:  # also of the checks of a description
                problems[label] = f"virtual machine {label}: {bounded(str(error), MAX_DETAIL)}"
                continue
            if found is not None:
                guests[label], details[label] = found.guest, found.details
        self._listed = {guest.uid: guest for guest in guests.values()}
        return GuestListing(guests, problems, details)

    def lists(self, guest: GuestConfig) -> bool:
        """Return whether this source gave the description, and not a file of the operator."""
        return self._listed.get(guest.uid) == guest

    def vsock_target(self, uid: str) -> VsockTarget:
        """Return the VSOCK of a virtual machine by its present object.

        Raises:
            ChannelError: `no_such_vm` if it does not run on this node, `not_enabled` without its user's consent or if
                another one has its CID.
        """
        one = self._copy.records.get(uid)
        if one is None or not vmis_of_node([one], self._node):
            raise ChannelError(f"virtual machine {uid} does not run on this node", ChannelProblem.NO_SUCH_VM)
        vmi = one.vmi
        if not has_vsock_consent(vmi) or vmi.vsock_cid is None:
            message = f"{vmi.namespace}/{vmi.name}: its user does not permit connections over VSOCK now"
            raise ChannelError(message, ChannelProblem.NOT_ENABLED)
        if vmi.vsock_cid in Conflicts.of(vmis_of_node(self._copy.records.values(), self._node)).cids:
            message = f"{vmi.namespace}/{vmi.name}: another virtual machine of this node has the CID {vmi.vsock_cid}"
            raise ChannelError(message, ChannelProblem.NOT_ENABLED)
        pods = launcher_pods(vmi, self._node)
        return VsockTarget(uid=uid, namespace=vmi.namespace, name=vmi.name, cid=vmi.vsock_cid, pods=pods)

    def _copy_problems(self) -> dict[str, str]:
        status = self._copy.status
        problems: dict[str, str] = {}
        if status.state is not CopyState.SYNCED and (status.detail or status.state is not CopyState.STARTING):
            detail = bounded(status.detail, MAX_DETAIL)
            problems[status.resource] = f"{status.resource} cannot be read ({status.state}): {detail}"
        if status.rejected:
            problems[f"{status.resource}: invalid"] = (
                f"{status.rejected} objects of {status.resource} are invalid, the first: "
                f"{bounded(status.example, MAX_DETAIL)}"
            )
        return problems
