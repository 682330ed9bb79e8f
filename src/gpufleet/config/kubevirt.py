"""Configuration of the discovery of KubeVirt's virtual machines."""

import ipaddress
import re
from typing import Annotated, Literal

import msgspec

from gpufleet.config.guests import LIBVIRT_AGENT_PORT, Name
from gpufleet.config.kubernetes import Patterns
from gpufleet.config.load import InvalidValueError

VsockPort = Annotated[int, msgspec.Meta(ge=1024, le=65_535)]
TcpPort = Annotated[int, msgspec.Meta(ge=1, le=65_535)]

SOCKET_FIELDS = ("namespace", "name", "uid", "pod")
"""Fields of `guest_agent_socket`."""

_FIELD = re.compile(r"\{([^{}]*)\}")


class VmiSshConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SSH into virtual machines with the annotation `ssh`.

    Attributes:
        key_file: the agent's private key, such as `/etc/gpufleet/guest_key`; None means that SSH is not used.
        user: account in the guests.
        port: SSH port of the guests.
    """

    key_file: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None
    user: Name = "gpufleet"
    port: TcpPort = 22


class KubevirtConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Discovery of the VirtualMachineInstances of this node with a GPU. A guest is read only if its user permits it.

    Attributes:
        enabled: whether to discover them.
        kubeconfig: path of a kubeconfig file, such as `/etc/gpufleet/kubeconfig`. None means the service account of the
            agent's pod.
        vsock: how a VSOCK is dialled: `node` from this machine, in the network namespace of the launcher pod where that
            confines it; `api` through the Kubernetes API.
        dcgm_port: port of the DCGM host engine in the guests, on VSOCK and on TCP.
        labels: labels of virtual machines on series `kubevirt_vmi_gpu_*`, such as `team` or `example.com/*`.
        networks: networks in which guests are dialled over TCP, such as `10.244.0.0/16`. Empty means none.
        guest_agent_socket: path of the Unix socket of a guest agent for gpufleet alone, with the fields `{namespace}`,
            `{name}`, `{uid}` and `{pod}` (UID of the launcher pod), such as `/run/guest-agents/{uid}.sock`. None means
            that guest agents are not used.
        ssh: a table of its own.
    """

    enabled: bool = False
    kubeconfig: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None
    vsock: Literal["node", "api"] = "node"
    dcgm_port: VsockPort = 5555
    labels: Patterns = ()
    networks: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)] = ()
    guest_agent_socket: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None
    ssh: VmiSshConfig = VmiSshConfig()

    def __post_init__(self) -> None:
        """Check the networks and the socket path."""
        for network in self.networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise InvalidValueError("networks", f"{network!r} is not a network: {error}") from None
        if self.guest_agent_socket is not None:
            self._check_socket(self.guest_agent_socket)

    @staticmethod
    def _check_socket(path: str) -> None:
        fields = _FIELD.findall(path)
        if not path.startswith("/") or "\0" in path:
            raise InvalidValueError("guest_agent_socket", f"{path!r} is not an absolute path")
        if any(field not in SOCKET_FIELDS for field in fields) or set(_FIELD.sub("", path)) & {"{", "}"}:
            names = ", ".join(f"{{{name}}}" for name in SOCKET_FIELDS)
            raise InvalidValueError("guest_agent_socket", f"{path!r}: the fields are {names}")
        if not set(fields) & {"uid", "pod"}:
            raise InvalidValueError("guest_agent_socket", f"{path!r}: use {{uid}} or {{pod}}: names repeat")
        if LIBVIRT_AGENT_PORT in path:
            message = f"{LIBVIRT_AGENT_PORT} is used by libvirt and answers no other client: name a second port"
            raise InvalidValueError("guest_agent_socket", message)
