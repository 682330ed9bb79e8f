"""Configuration of the agent."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gpufleet.config.guests import MAX_GUESTS, GuestConfig, LibvirtConfig
from gpufleet.config.holders import HoldersConfig
from gpufleet.config.kubernetes import KubernetesConfig
from gpufleet.config.kubevirt import KubevirtConfig
from gpufleet.config.load import InvalidValueError
from gpufleet.config.push import Dialects, PushConfig, full_names
from gpufleet.config.scrape import ExporterTarget
from gpufleet.config.tls import TlsConfig, check_exposure
from gpufleet.config.urls import check_http_root, check_hub_url

ENV_PREFIX = "GPUFLEET_AGENT_"
"""Prefix of the agent's environment variables."""

Seconds = Annotated[float, msgspec.Meta(ge=1, le=86_400)]
Timeout = Annotated[float, msgspec.Meta(ge=0.1, le=600)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
NodeName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")]
NodeUid = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")]

DEFAULT_CLUSTER = "local"
"""Id of the cluster of machines that no one has assigned to a cluster."""

_OWN_STREAM = re.compile(
    r"unix:///\S{1,100}|(?:tcp://(?:127(?:\.[0-9]{1,3}){3}|localhost|\[::1\])|vsock://1):[0-9]{1,5}", re.ASCII
)
"""Stream addresses of this host only. vsock CID 1 is the machine itself (vsock(7))."""

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


def default_state(env: Mapping[str, str], uid: int) -> str:
    """Return the default state folder: `/var/lib/gpufleet` for root, otherwise the user's own (XDG)."""
    if env.get("XDG_STATE_HOME"):
        return str(Path(env["XDG_STATE_HOME"], "gpufleet"))
    if uid == 0 or not env.get("HOME"):
        return "/var/lib/gpufleet"
    return str(Path(env["HOME"], ".local", "state", "gpufleet"))


class LanesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Interval of each lane in seconds."""

    fast: Seconds = 10.0
    slow: Seconds = 60.0
    static: Seconds = 600.0
    event: Seconds = 1.0


class ReaderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reader.

    Attributes:
        enabled: whether the reader runs.
        timeout_seconds: time limit of a pass.
    """

    enabled: bool = True
    timeout_seconds: Timeout = 20.0


class HostConfig(ReaderConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader of this machine's kernel files.

    Attributes:
        k8s_node_name: name of this node in Kubernetes, such as `gpu-17`. None means that it is read from the token of
            the agent's pod, the environment variable `NODE_NAME` in a pod, or the kubelet's client certificate.
        k8s_node_uid: UID of this node in Kubernetes, such as `5c1b7a2e-8f4d-4f0a-9a55-0d4b8a1e2f30`. None means that it
            is read from the token of the agent's pod.
        kubelet_certificates: folder of the kubelet's certificates (`--cert-dir`).
        cloud_metadata: whether the metadata service of AWS, Azure or GCP is queried at its link-local address for what
            DMI and cloud-init lack.
    """

    k8s_node_name: NodeName | None = None
    k8s_node_uid: NodeUid | None = None
    kubelet_certificates: str = "/var/lib/kubelet/pki"
    cloud_metadata: bool = False


class NvmlConfig(ReaderConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader of NVML, the driver's library.

    Attributes:
        process_names: report the kernel's short name (`python3`) of each process on a GPU, in addition to its id.
    """

    process_names: bool = False


class NvidiaSmiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader of the nvidia-smi command, a fallback for NVML.

    Attributes:
        use: whether the reader runs; `auto` means only if nvml is enabled but its Python binding is not installed.
        command: name or path of nvidia-smi.
        timeout_seconds: time limit of a pass, which runs up to five commands.
    """

    use: Literal["auto", "always", "never"] = "auto"
    command: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] = "nvidia-smi"
    timeout_seconds: Timeout = 30.0


class KmsgConfig(ReaderConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader of the kernel log.

    Attributes:
        path: path of the log, or of a file in its format.
    """

    path: str = "/dev/kmsg"


class NetdataConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader of this host's Netdata, a fallback for values that the other readers do not have.

    Attributes:
        url: root URL of Netdata, such as `http://127.0.0.1:19999`; None means that it is not read.
        timeout_seconds: time limit of a pass.
    """

    url: str | None = None
    timeout_seconds: Timeout = 5.0

    def __post_init__(self) -> None:
        """Check that the URL is the root of an HTTP server."""
        if self.url is not None:
            check_http_root("url", self.url)


class DcgmConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reader of this host's DCGM host engine, in addition to NVML or instead of it.

    Attributes:
        address: address of the engine, such as `unix:///run/nvidia-dcgm.socket`; None means that it is not read.
        profiling: enable profiling metrics. They use hardware counters that another profiler on this host may need.
        timeout_seconds: time limit of a pass.
    """

    address: str | None = None
    profiling: bool = True
    timeout_seconds: Timeout = 20.0

    def __post_init__(self) -> None:
        """Refuse an engine of another machine: its GPUs would be reported as this host's."""
        if self.address is not None and not _OWN_STREAM.fullmatch(self.address):
            message = (
                f"{self.address!r} is not a DCGM host engine of this host: write unix:///PATH, tcp://127.0.0.1:PORT, "
                "tcp://[::1]:PORT or vsock://1:PORT; configure a virtual machine's engine in [[guests]]"
            )
            raise InvalidValueError("address", message)


class ReadersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The readers.

    Attributes:
        host, nvml, nvidia_smi, kmsg, netdata: each a table of its own.
        exporter: exporters on this machine that are scraped, each a table `[[readers.exporter]]`.
    """

    host: HostConfig = HostConfig()
    nvml: NvmlConfig = NvmlConfig()
    nvidia_smi: NvidiaSmiConfig = NvidiaSmiConfig()
    kmsg: KmsgConfig = KmsgConfig()
    dcgm: DcgmConfig = DcgmConfig()
    netdata: NetdataConfig = NetdataConfig()
    exporter: Annotated[tuple[ExporterTarget, ...], msgspec.Meta(max_length=64)] = ()

    def __post_init__(self) -> None:
        """Check that exporters have different names, and that stream addresses are of this host.

        Samples of two exporters of one name could not be distinguished. The GPUs of another machine would be reported
        as this host's.
        """
        for target in self.exporter:
            if target.address is not None and not _OWN_STREAM.fullmatch(target.address):
                raise InvalidValueError(
                    "exporter",
                    f"address {target.address!r} of {target.name!r} is not of this host: write unix:///PATH, "
                    "tcp://127.0.0.1:PORT, tcp://[::1]:PORT or vsock://1:PORT; configure a virtual machine's exporter "
                    "in [[guests]]",
                )
        names = [target.name for target in self.exporter]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise InvalidValueError("exporter", f"two targets have the name {duplicates[0]!r}: names must be unique")


class ProbeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The performance probe of this machine and of its guests.

    Attributes:
        enabled: whether it runs after the start, after a boot, each day, and on `gpufleet agent probe`.
    """

    enabled: bool = True


class HubClientConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hub that batches are sent to.

    Attributes:
        url: root URL of the hub, such as `https://hub:8470`; None means that nothing is pushed.
        heartbeat_seconds: interval of heartbeats, which are sent with or without data.
        timeout_seconds: time limit of a request.
        token_file: file with the sender's token, such as `/etc/gpufleet/sender.token`; read again when it changes.
        ca: PEM file of CAs that sign the hub's certificate, such as `/etc/gpufleet/ca.crt`; None means the system's
            CAs.
        insecure: allow the token over plain HTTP beyond loopback.
    """

    url: str | None = None
    heartbeat_seconds: Seconds = 30.0
    timeout_seconds: Timeout = 10.0
    token_file: str | None = None
    ca: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        """Check the URL, and refuse the token over plain HTTP."""
        if self.url is not None:
            check_hub_url("url", self.url, sends_token=bool(self.token_file) and not self.insecure)


class SpoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The disk queue of batches for the hub.

    Attributes:
        max_bytes: maximum size. Beyond it the oldest records are dropped and counted.
        max_age_seconds: maximum age. Older records are dropped and counted.
        backfill_per_second: rate of older batches after an outage. The newest batches are sent first and not limited.
    """

    max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 512 << 20
    max_age_seconds: Annotated[float, msgspec.Meta(ge=60, le=366 * 86_400)] = 7 * 86_400.0
    backfill_per_second: Annotated[float, msgspec.Meta(ge=0.1, le=100_000)] = 50.0


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page `/metrics`, and the labels of remote write.

    Attributes:
        dialects: dialects of the metric names, any of `native`, `dcgm`, `all-smi`, `nvidia-gpu-exporter`,
            `kubevirt` and `l9gpu`; `gpufleet` and `dcgm-exporter` are synonyms of the first two.
        holder_labels: add `namespace`, `pod`, `container` and `job_id` of the only holder of a GPU to its series under
            the names of `native`, also with remote write. Series then begin and end with their holders.
        dcgm_pod_labels: add `pod_uid`, and the labels of pods that `[kubernetes]` reads, to the series under the names
            of `dcgm`, also with remote write.
    """

    dialects: Dialects = ("native",)
    holder_labels: bool = False
    dcgm_pod_labels: bool = False

    @property
    def dialect_names(self) -> tuple[str, ...]:
        """Full names of the dialects, without duplicates."""
        return full_names(self.dialects)


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The agent.

    Attributes:
        node: node name instead of the host name, such as `gpu-17`.
        cluster: id of the cluster of this machine.
        listen: address and port of the HTTP API with `/metrics`; with port 0 the kernel chooses.
        insecure_listen: allow listening beyond loopback without TLS or token.
        token_file: file with the token that clients must send, such as `/etc/gpufleet/agent.token`; None means that no
            token is required.
        state: state folder; the agent uses `agent/` in it.
        log_level: minimum severity of logged messages.
        guest_folder: folder where other programs add and remove one file per virtual machine to read, such as
            `/run/gpufleet/guests.d`; changes are followed. None means no such folder.
        guests: virtual machines that are read from inside (`[[guests]]`).
        libvirt: discovery of virtual machines from this host's libvirt.
        kubevirt: discovery of KubeVirt's virtual machines on this node.
        holders: sources of the pods, jobs and virtual machines that have the GPUs.
        kubernetes: owners, labels and queues of the pods, from the Kubernetes API.
        tls, lanes, metrics, readers, probe, hub, spool: each a table of its own.
    """

    node: Name | None = None
    cluster: Name = DEFAULT_CLUSTER
    listen: str = "127.0.0.1:9470"
    insecure_listen: bool = False
    token_file: str | None = None
    state: str = msgspec.field(default_factory=lambda: default_state(os.environ, os.getuid()))
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    guest_folder: str | None = None
    guests: Annotated[tuple[GuestConfig, ...], msgspec.Meta(max_length=MAX_GUESTS)] = ()
    libvirt: LibvirtConfig = LibvirtConfig()
    kubevirt: KubevirtConfig = KubevirtConfig()
    tls: TlsConfig = TlsConfig()
    lanes: LanesConfig = LanesConfig()
    metrics: MetricsConfig = MetricsConfig()
    readers: ReadersConfig = ReadersConfig()
    probe: ProbeConfig = ProbeConfig()
    holders: HoldersConfig = HoldersConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    hub: HubClientConfig = HubClientConfig()
    spool: SpoolConfig = SpoolConfig()
    push: PushConfig = PushConfig()

    def __post_init__(self) -> None:
        """Refuse unprotected listening beyond loopback, duplicate guests and an empty state folder."""
        host, _ = parse_listen(self.listen)
        if not self.insecure_listen:
            missing = [] if self.token_file else ["token_file"]
            check_exposure(self.listen, host, missing + ([] if self.tls.is_on else ["[tls]"]))
        uids = [guest.uid for guest in self.guests]
        duplicates = sorted({uid for uid in uids if uids.count(uid) > 1})
        if duplicates:
            raise InvalidValueError("guests", f"have the vm_uuid {duplicates[0]} more than once")
        if not self.state:
            raise InvalidValueError("state", "must be the path of a folder")

    @property
    def folder(self) -> Path:
        """Folder of the agent's own files."""
        return Path(self.state, "agent")


def parse_listen(listen: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        InvalidValueError: naming `listen`, if the value is neither.
    """
    host, colon, port = listen.rpartition(":")
    name = host.removeprefix("[").removesuffix("]")
    if not colon or not name or not _PORT.fullmatch(port) or int(port) > 65_535:
        raise InvalidValueError("listen", f"{listen!r} is not HOST:PORT, such as 127.0.0.1:9470")
    if ":" in name and not host.startswith("["):
        raise InvalidValueError("listen", f"{listen!r}: write an IPv6 address in brackets, such as [::1]:9470")
    return name, int(port)
