"""Configuration of the virtual machines that an agent reads from inside: in the agent's file, or a file each.

Configuration of the virtual machines that libvirt on this host knows.
"""

import re
import uuid
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpufleet.config.load import ImpossibleValueError, read_toml
from gpufleet.model.errors import ConfigError

MAX_FILE_BYTES = 64 << 10
"""Of a virtual machine's own file."""

MAX_GUESTS = 256
"""Virtual machines that one agent reads."""

PIN_FIRST = "pin-first"
"""Word for a host key that is not known yet: the first that the virtual machine shows is pinned."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Text = Annotated[str, msgspec.Meta(max_length=253)]
Path_ = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1024)]

_HOST_KEY = re.compile(r"(?:ssh-|ecdsa-)[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}", re.ASCII)
_STREAM = re.compile(
    r"(tcp)://(?:[^/\s\0\[\]]+|\[[^/\s\0\[\]]+\]):([0-9]{1,5})|unix:///[^\s\0]+|(vsock)://([0-9]{1,10}):([0-9]{1,10})"
    r"|hybrid-vsock:///[^\s\0]+:([0-9]{1,10})",
    re.ASCII,
)
_LAST_VSOCK = (1 << 32) - 2
"""Port, and CID: the last one means any."""


def check_stream(address: str) -> None:
    """Refuse what is no address of a stream. Raises ImpossibleValueError, blaming `address`."""
    if not _is_stream(address):
        words = f"{address!r} is not vsock://CID:PORT, hybrid-vsock:///PATH:PORT, tcp://HOST:PORT or unix:///PATH"
        raise ImpossibleValueError("address", words)


def _is_stream(address: str) -> bool:
    found = _STREAM.fullmatch(address)
    if found is None:
        return False
    tcp, tcp_port, vsock, cid, port, hybrid_port = found.groups()
    if tcp:
        return 0 < int(tcp_port) < 65_536
    if vsock:  # 0 and 2 are the hypervisor and this host itself, 1 is this machine
        return (int(cid) == 1 or 3 <= int(cid) <= _LAST_VSOCK) and int(port) <= _LAST_VSOCK
    return hybrid_port is None or int(hybrid_port) <= _LAST_VSOCK


class SshChannel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ssh", forbid_unknown_fields=True):
    """SSH to the virtual machine's private address.

    Attributes:
        address: `HOST` or `HOST:PORT`; an IPv6 address with a port stands in brackets.
        user: account in the guest.
        key_file: the agent's private key.
        host_key: `ssh-ed25519 AAAA...`, the only one that is taken; or `pin-first`.
    """

    address: Name
    user: Name = "gpufleet"
    key_file: Path_
    host_key: str = PIN_FIRST

    def __post_init__(self) -> None:
        """Refuse what cannot be dialled."""
        self.split()
        if "\0" in self.key_file:
            raise ImpossibleValueError("key_file", f"{self.key_file!r} is no path")
        if self.host_key != PIN_FIRST and not _HOST_KEY.fullmatch(self.host_key):
            raise ImpossibleValueError("host_key", f"must be a type and a key, as in NAME.pub, or {PIN_FIRST!r}")

    def split(self) -> tuple[str, int]:
        """Return host and port."""
        host, colon, port = self.address.rpartition(":")
        if not colon or (host.count(":") > 0 and not host.endswith("]")):
            host, port = self.address, "22"
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ImpossibleValueError("address", f"{self.address!r} is not HOST or HOST:PORT")
        return host, int(port)


class DcgmChannel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="dcgm", forbid_unknown_fields=True):
    """A DCGM host engine in the guest.

    Attributes:
        address: `vsock://CID:PORT`, `hybrid-vsock:///PATH:PORT`, `tcp://HOST:PORT` or `unix:///PATH`.
    """

    address: Name

    def __post_init__(self) -> None:
        """Refuse what is no address of a stream."""
        check_stream(self.address)


class MetricsChannel(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="metrics", forbid_unknown_fields=True
):
    """An exporter in the guest that shows a page of metrics over HTTP.

    Attributes:
        address: `vsock://CID:PORT`, `hybrid-vsock:///PATH:PORT`, `tcp://HOST:PORT` or `unix:///PATH`.
        path: of the page.
        dialect: whose names it writes; `auto` takes the only dialect that its first page has.
    """

    address: Name
    path: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]{0,1023}$")] = "/metrics"
    dialect: Literal["auto", "native", "dcgm", "all-smi", "nvidia-gpu-exporter"] = "auto"

    def __post_init__(self) -> None:
        """Refuse what is no address of a stream."""
        check_stream(self.address)


class QemuAgentChannel(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="qemu_agent", forbid_unknown_fields=True
):
    """The QEMU guest agent, over the Unix socket of its virtio-serial port.

    Attributes:
        socket: path of the socket on this host; one that libvirt manages cannot be used beside it.
    """

    socket: Path_

    def __post_init__(self) -> None:
        """Refuse what is no path."""
        if not self.socket.startswith("/") or "\0" in self.socket:
            raise ImpossibleValueError("socket", f"{self.socket!r} is no absolute path")


Channel = SshChannel | DcgmChannel | MetricsChannel | QemuAgentChannel


class GuestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One virtual machine. Who it is, is what is written here: never what it says of itself.

    Attributes:
        name: of the virtual machine.
        vm_uuid: its UUID, which allocations name.
        namespace: of its name, where there are such.
        allocation: id of the allocation that it is for.
        gpus: GPUs that it should have; not set means that any number is right.
        gpu_types: product name to number of GPUs that it should have of it; names as the driver writes them.
        channels: ways into it, the preferred first.
    """

    name: Name
    vm_uuid: Name
    namespace: Text = ""
    allocation: Text = ""
    gpus: Count | None = None
    gpu_types: Annotated[dict[Name, Count], msgspec.Meta(max_length=16)] = {}
    channels: Annotated[tuple[Channel, ...], msgspec.Meta(min_length=1, max_length=8)]

    def __post_init__(self) -> None:
        """Refuse an identity that is none."""
        try:
            plain = str(uuid.UUID(self.vm_uuid))
        except ValueError:
            plain = ""
        if plain != self.vm_uuid.lower():
            raise ImpossibleValueError("vm_uuid", f"{self.vm_uuid!r} is no UUID of a virtual machine")
        for text in (self.name, self.namespace, self.allocation):
            if not text.isprintable():
                raise ImpossibleValueError("name", f"{text!r} has characters that cannot be shown")
        told = sum(self.gpu_types.values())
        if self.gpus is not None and told > self.gpus:
            raise ImpossibleValueError("gpu_types", f"names {told} GPUs, and gpus says {self.gpus}")

    @property
    def uid(self) -> str:
        """The UUID in lower case."""
        return self.vm_uuid.lower()

    @property
    def title(self) -> str:
        """Namespace and name in one."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def read_guest(file: Path) -> GuestConfig:
    """Read a virtual machine's own file.

    Raises:
        ConfigError: if it cannot be read, or is not one virtual machine.
    """
    try:
        return msgspec.convert(read_toml(file, MAX_FILE_BYTES), GuestConfig)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        raise ConfigError(str(file), place.strip("`$").lstrip("."), reason) from error


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
