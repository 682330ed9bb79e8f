"""Configuration of the agent."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpufleet.config.guests import MAX_GUESTS, GuestConfig, LibvirtConfig
from gpufleet.config.hub_url import check_http_root, check_hub_url
from gpufleet.config.load import ImpossibleValueError
from gpufleet.config.push import Dialects, PushConfig, full_names
from gpufleet.config.scrape import ExporterTarget
from gpufleet.config.tls import TlsConfig, check_exposure

ENV_PREFIX = "GPUFLEET_AGENT_"
"""What environment variables of the agent start with."""

Seconds = Annotated[float, msgspec.Meta(ge=1, le=86_400)]
Timeout = Annotated[float, msgspec.Meta(ge=0.1, le=600)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]

_OWN_ENGINE = re.compile(
    r"unix:///\S{1,100}|(?:tcp://(?:127(?:\.[0-9]{1,3}){3}|localhost|\[::1\])|vsock://1):[0-9]{1,5}", re.ASCII
)
"""Addresses at which only an engine of this host answers: vsock id 1 is the machine itself (vsock(7))."""

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


def default_state(env: Mapping[str, str], uid: int) -> str:
    """Return where state goes unless told: the service's folder for root, else the user's own (XDG)."""
    if env.get("XDG_STATE_HOME"):
        return str(Path(env["XDG_STATE_HOME"], "gpufleet"))
    if uid == 0 or not env.get("HOME"):
        return "/var/lib/gpufleet"
    return str(Path(env["HOME"], ".local", "state", "gpufleet"))


class Lanes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often each lane is read, in seconds."""

    fast: Seconds = 10.0
    slow: Seconds = 60.0
    static: Seconds = 600.0
    event: Seconds = 1.0


class ReaderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reader.

    Attributes:
        enabled: whether it reads.
        timeout_seconds: a pass that takes longer is given up.
    """

    enabled: bool = True
    timeout_seconds: Timeout = 20.0


class NvmlConfig(ReaderConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader that asks the driver's library.

    Attributes:
        process_names: tell processes on GPUs with the kernel's short names of them (`python3`), not by their ids alone.
    """

    process_names: bool = False


class NvidiaSmiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader that asks the command nvidia-smi, for where NVML itself cannot be asked.

    Attributes:
        use: whether it reads; `auto` is: only if nvml should read and its Python binding is not installed.
        command: name or path of nvidia-smi.
        timeout_seconds: a pass that takes longer is given up; it runs up to five commands.
    """

    use: Literal["auto", "always", "never"] = "auto"
    command: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] = "nvidia-smi"
    timeout_seconds: Timeout = 30.0


class KmsgConfig(ReaderConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader of the kernel's log.

    Attributes:
        path: the log, or something with the same lines.
    """

    path: str = "/dev/kmsg"


class NetdataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader of this host's own Netdata, a fallback for what the other readers cannot read.

    Attributes:
        url: root of the Netdata, such as `http://127.0.0.1:19999`; None means that it is not read.
        timeout_seconds: a pass that takes longer is given up.
    """

    url: str | None = None
    timeout_seconds: Timeout = 5.0

    def __post_init__(self) -> None:
        """Refuse what is not the root of an HTTP server."""
        if self.url is not None:
            check_http_root("url", self.url)


class DcgmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader that asks this host's own DCGM host engine, beside NVML or in its place.

    Attributes:
        address: of the engine, such as `unix:///run/nvidia-dcgm.socket`; None means that it is not read.
        profiling: make the engine sample activity; another profiler on this host may want the counters for itself.
        timeout_seconds: a pass that takes longer is given up.
    """

    address: str | None = None
    profiling: bool = True
    timeout_seconds: Timeout = 20.0

    def __post_init__(self) -> None:
        """Refuse an engine of another machine: its GPUs would be told of as this host's."""
        if self.address is not None and not _OWN_ENGINE.fullmatch(self.address):
            words = (
                f"{self.address!r} is no engine of this host: write unix:///PATH, tcp://127.0.0.1:PORT, "
                "tcp://[::1]:PORT or vsock://1:PORT; a virtual machine's engine belongs into [[guests]]"
            )
            raise ImpossibleValueError("address", words)


class Readers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The readers, by name.

    Attributes:
        host, nvml, nvidia_smi, kmsg, netdata: see there.
        exporter: exporters that run on this machine already and are scraped, each a table `[[readers.exporter]]`.
    """

    host: ReaderConfig = ReaderConfig()
    nvml: NvmlConfig = NvmlConfig()
    nvidia_smi: NvidiaSmiConfig = NvidiaSmiConfig()
    kmsg: KmsgConfig = KmsgConfig()
    dcgm: DcgmConfig = DcgmConfig()
    netdata: NetdataConfig = NetdataConfig()
    exporter: Annotated[tuple[ExporterTarget, ...], msgspec.Meta(max_length=64)] = ()

    def __post_init__(self) -> None:
        """Refuse two exporters of one name: their samples would be taken for each other's."""
        names = [target.name for target in self.exporter]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ImpossibleValueError("exporter", f"two targets are called {twice[0]!r}: give each its own name")


class HubConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where batches go.

    Attributes:
        url: root of the hub, such as `https://hub:8470`; None means that nothing is pushed.
        heartbeat_seconds: how often the agent says that it lives, data or not.
        timeout_seconds: a request that takes longer is given up.
        token_file: file with the sender's token, such as `/etc/gpufleet/sender.token`; read again when it changes.
        ca: PEM file of the authorities that vouch for the hub, such as `/etc/gpufleet/ca.crt`; None means the system's.
        insecure: present the token over plain HTTP beyond loopback.
    """

    url: str | None = None
    heartbeat_seconds: Seconds = 30.0
    timeout_seconds: Timeout = 10.0
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not the root of an HTTP server, and to show the token to whoever listens on the way."""
        if self.url is not None:
            check_hub_url("url", self.url, shows_token=bool(self.token_file) and not self.insecure)


class SpoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The disk queue in front of the hub.

    Attributes:
        max_bytes: when it is full, the oldest records go and are counted.
        max_age_seconds: records that waited for longer go and are counted.
        backfill_per_second: after an outage the newest batches go first, older ones beside them this many a second.
    """

    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 512 << 20
    max_age_seconds: Annotated[float, msgspec.Meta(ge=60, le=366 * 86_400)] = 7 * 86_400.0
    backfill_per_second: Annotated[float, msgspec.Meta(ge=0.1, le=100_000)] = 50.0


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page `/metrics`.

    Attributes:
        dialects: under whose names readings stand there, any of `native`, `dcgm`, `all-smi`, `nvidia-gpu-exporter` and
            `kubevirt`; `gpufleet` and `dcgm-exporter` are other words for the first two.
    """

    dialects: Dialects = ("native",)

    @property
    def dialect_names(self) -> tuple[str, ...]:
        """The dialects by their own names, each once."""
        return full_names(self.dialects)


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent.

    Attributes:
        node: name to report instead of the host name, such as `gpu-17`.
        cluster: id of the cluster this machine belongs to.
        listen: address and port of `/metrics` and the rest; port 0 lets the kernel choose.
        insecure_listen: listen beyond loopback though TLS or the token is not set.
        token_file: file with the token that whoever asks must present, such as `/etc/gpufleet/agent.token`; None means
            that none is asked for.
        state: folder of the spool; `agent/` is made in it.
        log_level: the least severe message that is logged.
        guest_folder: where others put and remove a file for each virtual machine to be read, such as
            `/run/gpufleet/guests.d`; watched while the agent runs. None means that there is no such folder.
        guests: virtual machines that are read from inside (`[[guests]]`).
        libvirt: virtual machines that this host's libvirt tells of.
        tls, lanes, metrics, readers, hub, spool: see there.
    """

    node: Name | None = None
    cluster: Name = "local"
    listen: str = "127.0.0.1:9470"
    insecure_listen: bool = False
    token_file: str | None = None
    state: str = msgspec.field(default_factory=lambda: default_state(os.environ, os.getuid()))
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    guest_folder: str | None = None
    guests: Annotated[tuple[GuestConfig, ...], msgspec.Meta(max_length=MAX_GUESTS)] = ()
    libvirt: LibvirtConfig = LibvirtConfig()
    tls: TlsConfig = TlsConfig()
    lanes: Lanes = Lanes()
    metrics: MetricsConfig = MetricsConfig()
    readers: Readers = Readers()
    hub: HubConfig = HubConfig()
    spool: SpoolConfig = SpoolConfig()
    push: PushConfig = PushConfig()

    def __post_init__(self) -> None:
        """Refuse to show every tenant's readings beyond this machine by accident."""
        host, _ = parse_listen(self.listen)
        if not self.insecure_listen:
            lacking = [] if self.token_file else ["token_file"]
            check_exposure(self.listen, host, lacking + ([] if self.tls.is_on else ["[tls]"]))
        uids = [guest.uid for guest in self.guests]
        doubled = sorted({uid for uid in uids if uids.count(uid) > 1})
        if doubled:
            raise ImpossibleValueError("guests", f"name {doubled[0]} more than once")
        if not self.state:
            raise ImpossibleValueError("state", "must name a folder")


def parse_listen(listen: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        ImpossibleValueError: blaming `listen`, if it is neither.
    """
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not _PORT.fullmatch(port) or int(port) > 65_535:
        raise ImpossibleValueError("listen", f"{listen!r} is not HOST:PORT, such as 127.0.0.1:9470")
    if ":" in bare and not host.startswith("["):
        raise ImpossibleValueError("listen", f"{listen!r}: write an IPv6 address in brackets, such as [::1]:9470")
    return bare, int(port)
