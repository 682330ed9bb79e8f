"""Construction of the holder sources from the configuration. A new source adds a function here."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.agent.collect.holders import DeviceProcesses, HolderCollector, SavedHoldings
from gpufleet.agent.collect.saved import SavedFile
from gpufleet.channels.libvirt import LibvirtDomains
from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.channels.stream.dialers import UnixDialer
from gpufleet.config.agent import AgentConfig
from gpufleet.config.holders import HolderSourceConfig
from gpufleet.ports.clock import Clock
from gpufleet.ports.holder import HolderSource

if TYPE_CHECKING:
    from gpufleet.agent.collect.enrichment import PodEnrichment
    from gpufleet.holders.kubevirt.parse import NodeVmi
    from gpufleet.ports.cluster import ResourceCopy


def _kubelet(config: AgentConfig, _: DeviceProcesses) -> HolderSource:
    from gpufleet.holders.kubelet import KubeletHolders  # loaded only if enabled

    kubelet = config.holders.kubelet
    return KubeletHolders(
        folder=kubelet.folder,
        pod_logs=kubelet.pod_logs,
        container_logs=kubelet.container_logs,
        timeout_seconds=kubelet.timeout_seconds,
    )


def _slurm(config: AgentConfig, _: DeviceProcesses) -> HolderSource:
    from gpufleet.holders.slurm import SlurmHolders
    from gpufleet.holders.slurm.fetch import environment

    slurm = config.holders.slurm
    return SlurmHolders(
        LocalExec(environment=environment(os.environ)),
        LocalFiles(),
        host=socket.gethostname().partition(".")[0],
        nodes=slurm.nodes,
        folder=slurm.folder,
        timeout_seconds=slurm.timeout_seconds,
    )


def _libvirt(config: AgentConfig, _: DeviceProcesses) -> HolderSource:
    from gpufleet.holders.libvirt import LibvirtHolders

    hypervisor = LibvirtDomains(UnixDialer(Path(config.libvirt.socket)), config.libvirt.uri)
    return LibvirtHolders(hypervisor, LocalFiles(), timeout_seconds=config.holders.libvirt.timeout_seconds)


def _processes(config: AgentConfig, processes: DeviceProcesses) -> HolderSource:
    from gpufleet.holders.processes import ProcessHolders

    return ProcessHolders(processes.listed, timeout_seconds=config.holders.processes.timeout_seconds)


SOURCES: dict[str, Callable[[AgentConfig, DeviceProcesses], HolderSource]] = {
    "kubelet": _kubelet,
    "slurm": _slurm,
    "libvirt": _libvirt,
    "processes": _processes,
}
"""Configuration name to a function that makes the source for this machine."""


def _with_vmis(name: str, source: HolderSource, vmis: "ResourceCopy[NodeVmi] | None") -> HolderSource:
    if vmis is None or name != "kubelet":
        return source
    from gpufleet.holders.kubevirt.launcher_pods import LauncherPodHolders

    return LauncherPodHolders(source, vmis)


def make_holders(
    config: AgentConfig,
    clock: Clock,
    *,
    boot: str = "",
    saves: bool = True,
    vmis: "ResourceCopy[NodeVmi] | None" = None,
) -> HolderCollector | None:
    """Return the collector of holders, or None if every source is disabled.

    Args:
        config: of the agent.
        clock: wall and monotonic time.
        boot: id of this boot of the machine; empty if unknown.
        saves: whether the holdings survive a restart in the state folder.
        vmis: KubeVirt's virtual machines on this node, which name those of launcher pods.
    """
    processes = DeviceProcesses()
    enabled: dict[str, HolderSourceConfig] = {name: getattr(config.holders, name) for name in SOURCES}
    # The source stops itself in time; this limit is for a source that does not.
    sources = [
        (_with_vmis(name, SOURCES[name](config, processes), vmis), 2 * own.timeout_seconds + 1)
        for name, own in enabled.items()
        if own.enabled
    ]
    if not sources:
        return None
    file = SavedFile(config.folder / "holdings.json", SavedHoldings, loss="holdings begin again") if saves else None
    return HolderCollector(
        sources,
        interval_seconds=config.holders.interval_seconds,
        clock=clock,
        file=file,
        boot=boot,
        processes=processes,
        delivers=config.hub.url is not None,
        pods=_enrichment(config, clock),
    )


def _enrichment(config: AgentConfig, clock: Clock) -> "PodEnrichment | None":
    if not config.kubernetes.enrich:
        return None
    from gpufleet.wiring.kubernetes import make_enrichment  # loaded only if enabled

    return make_enrichment(config.kubernetes, clock)
