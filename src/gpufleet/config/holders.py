"""Configuration of the holder sources."""

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=1, le=3600)]
Timeout = Annotated[float, msgspec.Meta(ge=0.1, le=60)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class HolderSourceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A holder source. It is idle on a machine that does not have it.

    Attributes:
        enabled: whether the source is used.
        timeout_seconds: time limit of a call.
    """

    enabled: bool = True
    timeout_seconds: Timeout = 5.0


class KubeletConfig(HolderSourceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kubelet's PodResources API.

    Attributes:
        folder: the kubelet's own folder (`--root-dir`), with `pod-resources/kubelet.sock` in it.
        pod_logs: the kubelet's folder of logs (`podLogsDir`); the names in it have the UIDs of pods.
        container_logs: folder of links to the logs of containers; the names in it have the ids of containers.
    """

    folder: Path = "/var/lib/kubelet"
    pod_logs: Path = "/var/log/pods"
    container_logs: Path = "/var/log/containers"


class SlurmConfig(HolderSourceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """SLURM's commands on this node.

    Attributes:
        nodes: names of this machine in SLURM; empty means that SLURM is queried for them by the host name.
        folder: folder with gres.conf; empty means that of slurm.conf.
    """

    nodes: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()
    folder: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    timeout_seconds: Timeout = 10.0


class HoldersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The pods, jobs and virtual machines that have this machine's GPUs.

    Attributes:
        interval_seconds: time between two rounds over all sources.
        kubelet: pods, as the kubelet declares them.
        slurm: jobs, as the SLURM controller declares them.
        libvirt: virtual machines, as their definitions declare them.
        processes: processes on the GPUs and their cgroups, which confirm what the others declare.
    """

    interval_seconds: Seconds = 10.0
    kubelet: KubeletConfig = KubeletConfig()
    slurm: SlurmConfig = SlurmConfig()
    libvirt: HolderSourceConfig = HolderSourceConfig()
    processes: HolderSourceConfig = HolderSourceConfig()
