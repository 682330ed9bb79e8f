"""Decision which virtual machines of a node are read, and how. Pure.

The annotation is the user's consent. Without it, and for what is not supported, no connection is opened.
"""

import enum
import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from gpufleet.config.guests import Channel, DcgmChannel, GuestConfig, QemuAgentChannel, SshChannel
from gpufleet.config.kubevirt import KubevirtConfig
from gpufleet.fleet.gpu_resources import gpu_resource_kind
from gpufleet.holders.kubevirt.parse import NodeVmi
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.kubernetes import ClusterVmi, VmiDevice
from gpufleet.model.text import printable
from gpufleet.ports.guests import GuestDetails

ANNOTATION = "kubevirt.io/gpu-metrics-collector"

NVIDIA = "nvidia.com/"
PHASES = frozenset({"Scheduled", "Running"})
"""Phases with a launcher pod on the node."""

_MAX_VALUE = 64
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class GuestAccessKind(enum.StrEnum):
    """Value of the annotation."""

    DCGM_VSOCK = "dcgm-vsock"
    DCGM_TCP = "dcgm-tcp"
    SSH = "ssh"
    GUEST_AGENT = "qemu-agent"


class DescribedVmi(msgspec.Struct, frozen=True):
    """Description of a virtual machine; one without channels is not read, for the reason in the details."""

    guest: GuestConfig
    details: GuestDetails


class Conflicts(msgspec.Struct, frozen=True):
    """CIDs and IP addresses that several virtual machines of the node have."""

    cids: frozenset[int] = frozenset()
    addresses: frozenset[str] = frozenset()

    @classmethod
    def of(cls, vmis: Collection[NodeVmi]) -> "Conflicts":
        """Return the conflicts among the virtual machines of a node."""
        cids = Counter(one.vmi.vsock_cid for one in vmis if one.vmi.vsock_cid is not None)
        addresses = Counter(one.address for one in vmis if one.address)
        return cls(
            frozenset(cid for cid, count in cids.items() if count > 1),
            frozenset(address for address, count in addresses.items() if count > 1),
        )


def vmis_of_node(vmis: Iterable[NodeVmi], node: str) -> list[NodeVmi]:
    """Return the virtual machines that run on a node. In a migration a machine is on its source until it ends."""
    return [one for one in vmis if one.vmi.node == node and one.vmi.phase in PHASES]


def describe_vmi(one: NodeVmi, node: str, settings: KubevirtConfig, conflicts: Conflicts) -> DescribedVmi | None:
    """Return the description of a virtual machine, or None if it has no GPU.

    Args:
        one: the virtual machine, on the node.
        node: name of the node.
        settings: of the operator.
        conflicts: of the node.

    Raises:
        ValueError: if its UID or a name is not valid.
    """
    vmi = one.vmi
    devices = [device for device in vmi.devices if _is_gpu(device)]
    if not devices:
        return None
    if not (_UID.fullmatch(vmi.uid) and _NAMESPACE.fullmatch(vmi.namespace) and _NAME.fullmatch(vmi.name)):
        raise ValueError(f"uid {vmi.uid[:_MAX_VALUE]!r}: not a valid UID, namespace and name")
    found = _exclusion(one, devices) or _channel(one, node, settings, conflicts)
    guest = GuestConfig(
        name=vmi.name,
        namespace=vmi.namespace,
        vm_uuid=vmi.uid,
        gpus=_expected(devices) or None,
        channels=() if isinstance(found, Absent) else (found,),
    )
    unread = found if isinstance(found, Absent) else None
    return DescribedVmi(guest, GuestDetails(labels=dict(vmi.labels), unread=unread, hugepages=one.hugepages))


def has_vsock_consent(vmi: ClusterVmi) -> bool:
    """Return whether the user attached a VSOCK and permits to read DCGM over it."""
    is_permitted = vmi.annotations.get(ANNOTATION) == GuestAccessKind.DCGM_VSOCK
    return is_permitted and vmi.autoattach_vsock and vmi.vsock_cid is not None


def launcher_pods(vmi: ClusterVmi, node: str) -> tuple[str, ...]:
    """Return the UIDs of the launcher pods of a virtual machine on a node."""
    return tuple(sorted(uid for uid, place in vmi.pods.items() if place == node and _UID.fullmatch(uid)))


def _is_gpu(device: VmiDevice) -> bool:
    """Return whether a device is, or can be, a GPU. `hostDevices` also has network cards."""
    return not device.host_device or (bool(device.device_name) and gpu_resource_kind(device.device_name) is not None)


def _is_foreign(device: VmiDevice) -> bool:
    """Return whether a device is of another vendor. The name of a resource claim does not show the vendor."""
    return bool(device.device_name) and not device.device_name.startswith(NVIDIA)


def _expected(devices: Collection[VmiDevice]) -> int | None:
    """Return the number of GPUs, or None if a device can be something else: a claim, or an NVSwitch as host device."""
    own = [device for device in devices if not _is_foreign(device)]
    is_exact = all(device.device_name and not device.host_device for device in own)
    return len(own) if is_exact else None


def _exclusion(one: NodeVmi, devices: Collection[VmiDevice]) -> Absent | None:
    """Return why a virtual machine is not read whatever its access path, or None."""
    if all(_is_foreign(device) for device in devices):
        names = ", ".join(sorted({printable(device.device_name[:_MAX_VALUE]) for device in devices})[:4])
        return Absent(Reason.NO_SUPPORTED_GPU, f"its devices are not NVIDIA's: {names}")
    value = one.vmi.annotations.get(ANNOTATION)
    if value is None:
        return Absent(Reason.NOT_ENABLED, f"its user does not permit it: the annotation {ANNOTATION} is not set")
    if one.is_windows:
        return Absent(Reason.NOT_ENABLED, "Windows guests are not supported")
    if value not in set(GuestAccessKind):
        shown, known = printable(value[:_MAX_VALUE]), ", ".join(GuestAccessKind)
        return Absent(Reason.NOT_ENABLED, f"the annotation {ANNOTATION} has the unknown value {shown!r}, not {known}")
    return None


def _channel(one: NodeVmi, node: str, settings: KubevirtConfig, conflicts: Conflicts) -> Channel | Absent:
    return _CHANNELS[GuestAccessKind(one.vmi.annotations[ANNOTATION])](one, node, settings, conflicts)


def _dcgm_vsock(one: NodeVmi, _: str, settings: KubevirtConfig, conflicts: Conflicts) -> Channel | Absent:
    cid = one.vmi.vsock_cid
    if not one.vmi.autoattach_vsock:
        return Absent(Reason.NOT_ENABLED, "it has no VSOCK: its user must set autoattachVSOCK")
    if cid is None:
        return Absent(Reason.NOT_ENABLED, "KubeVirt has not given its VSOCK a CID: is the feature gate VSOCK enabled?")
    if cid in conflicts.cids:
        return Absent(Reason.NOT_ENABLED, f"several virtual machines of this node have the CID {cid}")
    return DcgmChannel(address=f"vsock://{cid}:{settings.dcgm_port}")


def _dcgm_tcp(one: NodeVmi, _: str, settings: KubevirtConfig, conflicts: Conflicts) -> Channel | Absent:
    problem = _tcp_problem(one, settings, conflicts)
    return problem or DcgmChannel(address=f"tcp://{_host(one.address)}:{settings.dcgm_port}")


def _ssh(one: NodeVmi, _: str, settings: KubevirtConfig, conflicts: Conflicts) -> Channel | Absent:
    if settings.ssh.key_file is None:
        return Absent(Reason.NOT_ENABLED, "SSH is not configured: the operator must set [kubevirt.ssh] key_file")
    problem = _tcp_problem(one, settings, conflicts)
    address = f"{_host(one.address)}:{settings.ssh.port}"
    return problem or SshChannel(address=address, user=settings.ssh.user, key_file=settings.ssh.key_file)


def _guest_agent(one: NodeVmi, node: str, settings: KubevirtConfig, _: Conflicts) -> Channel | Absent:
    path = settings.guest_agent_socket
    if path is None:
        detail = "guest agents are not configured: the operator must set [kubevirt] guest_agent_socket"
        return Absent(Reason.NOT_ENABLED, detail)
    pods = launcher_pods(one.vmi, node)
    if "{pod}" in path and len(pods) != 1:
        return Absent(Reason.NOT_ENABLED, f"it has {len(pods)} launcher pods on this node, not 1")
    fields = {"namespace": one.vmi.namespace, "name": one.vmi.name, "uid": one.vmi.uid, "pod": pods[0] if pods else ""}
    for field, text in fields.items():
        path = path.replace(f"{{{field}}}", text)
    return QemuAgentChannel(socket=path)


_CHANNELS: Mapping[GuestAccessKind, Callable[[NodeVmi, str, KubevirtConfig, Conflicts], Channel | Absent]] = {
    GuestAccessKind.DCGM_VSOCK: _dcgm_vsock,
    GuestAccessKind.DCGM_TCP: _dcgm_tcp,
    GuestAccessKind.SSH: _ssh,
    GuestAccessKind.GUEST_AGENT: _guest_agent,
}


def _tcp_problem(one: NodeVmi, settings: KubevirtConfig, conflicts: Conflicts) -> Absent | None:
    if not settings.networks:
        return Absent(Reason.NOT_ENABLED, "TCP is not configured: the operator must set [kubevirt] networks")
    if not one.address:
        return Absent(Reason.NOT_ENABLED, "its first interface has no IP address")
    address = ipaddress.ip_address(one.address)
    if not any(address in ipaddress.ip_network(network) for network in settings.networks):
        return Absent(Reason.NOT_ENABLED, f"its address {one.address} is outside the operator's networks")
    if one.address in conflicts.addresses:
        return Absent(Reason.NOT_ENABLED, f"several virtual machines of this node have the address {one.address}")
    return None


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
