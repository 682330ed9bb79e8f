"""Construction of the discovery of KubeVirt's virtual machines."""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpufleet.channels.stream.dialers import make_dialer
from gpufleet.channels.stream.launcher_namespaces import LauncherNamespaces
from gpufleet.channels.stream.vmi_subresource import SubresourceVsock
from gpufleet.channels.stream.vmi_vsock import ConnectionSlots, NodeVsock, VmiVsockDialer
from gpufleet.config.agent import AgentConfig
from gpufleet.config.guests import DcgmChannel, GuestConfig
from gpufleet.holders.kubernetes.connection import ApiAccess, ApiConnection
from gpufleet.holders.kubernetes.mirror import ResourceMirror
from gpufleet.holders.kubernetes.parse.fields import LabelSelection
from gpufleet.holders.kubernetes.parse.virtual_machines import VMI_ANNOTATIONS, VmiSelection, parse_vmi
from gpufleet.holders.kubernetes.resources import VIRTUAL_MACHINE_INSTANCES
from gpufleet.holders.kubevirt.parse import NodeVmi, complete_vmi
from gpufleet.holders.kubevirt.source import KubevirtSource
from gpufleet.model.errors import ConfigError
from gpufleet.model.kubernetes import CopyState
from gpufleet.ports.channel import Dialer
from gpufleet.ports.clock import Clock
from gpufleet.ports.cluster import ResourceCopy
from gpufleet.ports.guests import GuestListing
from gpufleet.ports.vsock import VsockConnector
from gpufleet.wiring.readers import kubernetes_node

NODE_LABEL = "kubevirt.io/nodeName"
"""Label of KubeVirt with the node of a virtual machine. After a migration it is that of the target."""

MAX_VMIS = 1_024
"""Maximum virtual machines with devices on a node."""

LIST_SECONDS = 15.0
"""Time limit of a single list, for a command."""

POLL_SECONDS = 0.02

_VSOCK = "vsock://"


class Kubevirt:
    """Parts of the discovery.

    Attributes:
        copy: the VirtualMachineInstances of this node that have devices.
        source: guest source over the copy.
    """

    def __init__(self, copy: ResourceCopy[NodeVmi], source: KubevirtSource, connector: VsockConnector) -> None:
        self.copy, self.source = copy, source
        self._connector, self._slots = connector, ConnectionSlots()

    async def run(self) -> None:
        """Keep the copy current until cancelled."""
        await self.copy.run()

    def dialer(self, guest: GuestConfig, channel: DcgmChannel) -> Dialer:
        """Return the dialer of a channel. Over VSOCK, consent and network namespace are those at each dial."""
        if not channel.address.startswith(_VSOCK):
            return make_dialer(channel.address)
        port = int(channel.address.rpartition(":")[2])
        return VmiVsockDialer(
            guest.uid, port, find=self.source.vsock_target, connector=self._connector, slots=self._slots
        )


def open_kubevirt(config: AgentConfig, clock: Clock, stack: contextlib.AsyncExitStack) -> Kubevirt:
    """Return the parts. The connection to the API server is closed by the stack.

    Raises:
        ConfigError: if the node's name in Kubernetes is unknown, or the credentials cannot be read.
    """
    node = node_name(config, os.environ)
    connection = ApiConnection(ApiAccess(kubeconfig=config.kubevirt.kubeconfig or ""))
    stack.push_async_callback(connection.close)
    copy = make_copy(config, connection, node, clock)
    connector: VsockConnector
    if config.kubevirt.vsock == "api":
        connector = SubresourceVsock(connection)
    else:
        connector = NodeVsock(LauncherNamespaces(Path(config.holders.kubelet.folder, "pods")))
    return Kubevirt(copy, KubevirtSource(copy, node, config.kubevirt), connector)


def node_name(config: AgentConfig, environment: Mapping[str, str]) -> str:
    """Return the name of this node in Kubernetes. Raises ConfigError if it is unknown."""
    node = kubernetes_node(config.readers.host, environment)
    if not (name := node.name or node.pod_node):
        reason = "must be set with [kubevirt]; in a pod, NODE_NAME from spec.nodeName can be set instead"
        raise ConfigError("configuration", "readers.host.k8s_node_name", reason)
    return name


async def list_guests_once(config: AgentConfig, clock: Clock) -> GuestListing:
    """Return the virtual machines of this node by one list of the API server, or the reason why it gave none.

    Raises:
        ConfigError: as `open_kubevirt`.
    """
    async with contextlib.AsyncExitStack() as stack:
        kubevirt = open_kubevirt(config, clock, stack)
        running = asyncio.create_task(kubevirt.run(), name="list of virtual machines")
        deadline = clock.monotonic() + LIST_SECONDS
        try:
            while kubevirt.copy.status.state is CopyState.STARTING and clock.monotonic() < deadline:
                if kubevirt.copy.status.detail:
                    break
                await asyncio.sleep(POLL_SECONDS)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return await kubevirt.source.list_guests()


def make_copy(config: AgentConfig, connection: ApiConnection, node: str, clock: Clock) -> ResourceMirror[NodeVmi]:
    """Return a copy of the VirtualMachineInstances of a node that have devices."""
    selection = VmiSelection(labels=LabelSelection.of(config.kubevirt.labels), annotations=VMI_ANNOTATIONS)

    def convert(data: bytes | msgspec.Raw) -> NodeVmi | None:
        vmi = parse_vmi(data, selection)
        return None if vmi is None else complete_vmi(data, vmi)

    return ResourceMirror(
        connection,
        VIRTUAL_MACHINE_INSTANCES,
        convert,
        clock,
        query={"labelSelector": f"{NODE_LABEL}={node}"},
        max_objects=MAX_VMIS,
    )
