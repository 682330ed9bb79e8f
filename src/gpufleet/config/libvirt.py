"""Configuration of the virtual machines that libvirt on this host knows."""

from typing import Annotated

import msgspec

from gpufleet.config.load import ImpossibleValueError

SOCKET = "/run/libvirt/libvirt-sock-ro"

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class LibvirtConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The domains of this host's libvirt that hold an NVIDIA GPU or vGPU are read from inside.

    Attributes:
        enabled: whether libvirt is asked for them.
        socket: libvirt's socket; the default is the one that only reads, and that everybody on this host may use.
            `/run/libvirt/virtqemud-sock-ro` where virtqemud runs without virtproxyd.
        uri: hypervisor that is asked for, as virsh has it.
        dcgm_port: vsock port of a DCGM host engine in them; 0 asks for none.
        metrics_port: vsock port of an exporter in them; 0 asks for none.
        guest_agent: name of the virtio-serial port of a QEMU guest agent that is the agent's alone. libvirt keeps
            `org.qemu.guest_agent.0` to itself: a second one is needed.
    """

    enabled: bool = False
    socket: Annotated[str, msgspec.Meta(min_length=1, max_length=107)] = SOCKET
    uri: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] = "qemu:///system"
    dcgm_port: Port = 5555
    metrics_port: Port = 9400
    guest_agent: Annotated[str, msgspec.Meta(min_length=1, max_length=253)] = "org.gpufleet.guest_agent.0"

    def __post_init__(self) -> None:
        """Refuse what is no path, and the port that is libvirt's."""
        if not self.socket.startswith("/") or "\0" in self.socket:
            raise ImpossibleValueError("socket", f"{self.socket!r} is no absolute path")
        if self.guest_agent == LIBVIRTS_AGENT:
            words = f"{LIBVIRTS_AGENT} is libvirt's own and answers nobody else: name a second port"
            raise ImpossibleValueError("guest_agent", words)


LIBVIRTS_AGENT = "org.qemu.guest_agent.0"
