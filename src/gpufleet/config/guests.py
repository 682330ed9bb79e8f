"""Configuration of virtual machines that an agent reads from inside: in its own file, a file each, or from libvirt."""

import re
import uuid
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpufleet.config.load import InvalidValueError, read_toml
from gpufleet.model.errors import ConfigError

MAX_FILE_BYTES = 64 << 10
"""Maximum size of a virtual machine's file."""

MAX_GUESTS = 256
"""Maximum virtual machines per agent."""

PIN_FIRST = "pin-first"
"""Value of `host_key` that pins the first key that the virtual machine sends."""

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
"""Highest port and CID. The next value means any."""


def check_stream_address(address: str) -> None:
    """Check a stream address. Raises InvalidValueError, naming `address`."""
    if not _is_stream(address):
        message = f"{address!r} is not vsock://CID:PORT, hybrid-vsock:///PATH:PORT, tcp://HOST:PORT or unix:///PATH"
        raise InvalidValueError("address", message)


def _is_stream(address: str) -> bool:
    found = _STREAM.fullmatch(address)
    if found is None:
        return False
    tcp, tcp_port, vsock, cid, port, hybrid_port = found.groups()
    if tcp:
        return 0 < int(tcp_port) < 65_536
    if vsock:  # 0 and 2 are the hypervisor and the host, 1 is this machine
        return (int(cid) == 1 or 3 <= int(cid) <= _LAST_VSOCK) and int(port) <= _LAST_VSOCK
    return hybrid_port is None or int(hybrid_port) <= _LAST_VSOCK


class SshChannel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ssh", forbid_unknown_fields=True):
    """SSH to the virtual machine's private address.

    Attributes:
        address: `HOST` or `HOST:PORT`; an IPv6 address with a port is written in brackets.
        user: account in the guest.
        key_file: the agent's private key.
        host_key: `ssh-ed25519 AAAA...`, the only accepted key; or `pin-first`.
    """

    address: Name
    user: Name = "gpufleet"
    key_file: Path_
    host_key: str = PIN_FIRST

    def __post_init__(self) -> None:
        """Check address, key file and host key."""
        self.split()
        if "\0" in self.key_file:
            raise InvalidValueError("key_file", f"{self.key_file!r} is not a path")
        if self.host_key != PIN_FIRST and not _HOST_KEY.fullmatch(self.host_key):
            raise InvalidValueError("host_key", f"must be a key type and a key, as in a .pub file, or {PIN_FIRST!r}")

    def split(self) -> tuple[str, int]:
        """Return host and port."""
        host, colon, port = self.address.rpartition(":")
        if not colon or (host.count(":") > 0 and not host.endswith("]")):
            host, port = self.address, "22"
        host = host.removeprefix("[").removesuffix("]")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise InvalidValueError("address", f"{self.address!r} is not HOST or HOST:PORT")
        return host, int(port)


class DcgmChannel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="dcgm", forbid_unknown_fields=True):
    """A DCGM host engine in the guest.

    Attributes:
        address: `vsock://CID:PORT`, `hybrid-vsock:///PATH:PORT`, `tcp://HOST:PORT` or `unix:///PATH`.
    """

    address: Name

    def __post_init__(self) -> None:
        """Check the stream address."""
        check_stream_address(self.address)


class MetricsChannel(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="metrics", forbid_unknown_fields=True
):
    """An exporter in the guest that serves a metrics page over HTTP.

    Attributes:
        address: `vsock://CID:PORT`, `hybrid-vsock:///PATH:PORT`, `tcp://HOST:PORT` or `unix:///PATH`.
        path: path of the page.
        dialect: dialect of the metric names; `auto` detects it from the first page.
    """

    address: Name
    path: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]{0,1023}$")] = "/metrics"
    dialect: Literal["auto", "native", "dcgm", "all-smi", "nvidia-gpu-exporter"] = "auto"

    def __post_init__(self) -> None:
        """Check the stream address."""
        check_stream_address(self.address)


class QemuAgentChannel(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="qemu_agent", forbid_unknown_fields=True
):
    """The QEMU guest agent, over the Unix socket of its virtio-serial port.

    Attributes:
        socket: path of the socket on this host. A socket that libvirt manages cannot be used.
    """

    socket: Path_

    def __post_init__(self) -> None:
        """Check that the socket is an absolute path."""
        if not self.socket.startswith("/") or "\0" in self.socket:
            raise InvalidValueError("socket", f"{self.socket!r} is not an absolute path")


Channel = SshChannel | DcgmChannel | MetricsChannel | QemuAgentChannel


class GuestConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A virtual machine. Its identity is what is configured here, never what the guest reports.

    Attributes:
        name: name of the virtual machine.
        vm_uuid: its UUID, as in allocations.
        namespace: namespace of the name, if any.
        allocation: id of its allocation.
        gpus: expected number of GPUs; not set means any number.
        gpu_types: expected number of GPUs by product name, as the driver writes it.
        channels: channels into it in order of preference.
    """

    name: Name
    vm_uuid: Name
    namespace: Text = ""
    allocation: Text = ""
    gpus: Count | None = None
    gpu_types: Annotated[dict[Name, Count], msgspec.Meta(max_length=16)] = {}
    channels: Annotated[tuple[Channel, ...], msgspec.Meta(min_length=1, max_length=8)]

    def __post_init__(self) -> None:
        """Check the UUID, the names and the GPU counts."""
        try:
            plain = str(uuid.UUID(self.vm_uuid))
        except ValueError:
            plain = ""
        if plain != self.vm_uuid.lower():
            raise InvalidValueError("vm_uuid", f"{self.vm_uuid!r} is not a UUID")
        for text in (self.name, self.namespace, self.allocation):
            if not text.isprintable():
                raise InvalidValueError("name", f"{text!r} has unprintable characters")
        typed = sum(self.gpu_types.values())
        if self.gpus is not None and typed > self.gpus:
            raise InvalidValueError("gpu_types", f"lists {typed} GPUs, more than gpus = {self.gpus}")

    @property
    def uid(self) -> str:
        """UUID in lower case."""
        return self.vm_uuid.lower()

    @property
    def title(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def is_named(self, name: str) -> bool:
        """Return whether this is its name, namespace and name, UUID or allocation."""
        return bool(name) and name in (self.title, self.name, self.uid, self.allocation)


def read_guest(file: Path) -> GuestConfig:
    """Read a virtual machine's file.

    Raises:
        ConfigError: if the file cannot be read or is invalid.
    """
    try:
        return msgspec.convert(read_toml(file, MAX_FILE_BYTES), GuestConfig)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        raise ConfigError(str(file), place.strip("`$").lstrip("."), reason) from error


LIBVIRT_SOCKET = "/run/libvirt/libvirt-sock-ro"

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class LibvirtConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Discovery of this host's libvirt domains that have an NVIDIA GPU or vGPU. They are read from inside.

    Attributes:
        enabled: whether to discover domains.
        socket: libvirt's socket. The default is the read-only socket, which every user of this host may use. Use
            `/run/libvirt/virtqemud-sock-ro` if virtqemud runs without virtproxyd.
        uri: libvirt connection URI, as for virsh.
        dcgm_port: vsock port of a DCGM host engine in the domains; 0 for none.
        metrics_port: vsock port of an exporter in the domains; 0 for none.
        guest_agent: name of the virtio-serial port of a second QEMU guest agent for gpufleet alone. libvirt reserves
            `org.qemu.guest_agent.0` for itself.
    """

    enabled: bool = False
    socket: Annotated[str, msgspec.Meta(min_length=1, max_length=107)] = LIBVIRT_SOCKET
    uri: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] = "qemu:///system"
    dcgm_port: Port = 5555
    metrics_port: Port = 9400
    guest_agent: Annotated[str, msgspec.Meta(min_length=1, max_length=253)] = "org.gpufleet.guest_agent.0"

    def __post_init__(self) -> None:
        """Check the socket path, and refuse libvirt's own guest agent port."""
        if not self.socket.startswith("/") or "\0" in self.socket:
            raise InvalidValueError("socket", f"{self.socket!r} is not an absolute path")
        if self.guest_agent == LIBVIRT_AGENT_PORT:
            message = f"{LIBVIRT_AGENT_PORT} is used by libvirt and answers no other client: name a second port"
            raise InvalidValueError("guest_agent", message)


LIBVIRT_AGENT_PORT = "org.qemu.guest_agent.0"
