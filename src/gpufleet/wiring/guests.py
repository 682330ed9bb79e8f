"""Construction of the access paths into a virtual machine. A new kind of channel adds a function here."""

from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.agent.guests.access_paths import AccessPath, Link, ShortConnectionReader
from gpufleet.agent.guests.guest import GuestAccess
from gpufleet.agent.guests.guests import GuestSupervisor
from gpufleet.agent.guests.libvirt import LibvirtSource
from gpufleet.agent.guests.sources import ConfiguredGuests, FolderGuests, GuestFolder
from gpufleet.channels.guest_shell import ShellExec, ShellFiles
from gpufleet.channels.guest_shell.shell import GuestShell
from gpufleet.channels.libvirt import LibvirtDomains
from gpufleet.channels.local import LocalFiles
from gpufleet.channels.qemu_agent import QemuAgentShell
from gpufleet.channels.ssh.shell import SshShell
from gpufleet.channels.ssh.target import ConfiguredHostKey, FirstUseHostKey, SshTarget
from gpufleet.channels.stream.dialers import UnixDialer, make_dialer
from gpufleet.config.agent import AgentConfig
from gpufleet.config.guests import PIN_FIRST, DcgmChannel, GuestConfig, MetricsChannel, SshChannel
from gpufleet.model.view import Side
from gpufleet.ports.channel import Dialer
from gpufleet.ports.clock import Clock
from gpufleet.ports.guests import GuestSource
from gpufleet.ports.reader import Reader
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.readers.host import HostReader
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.readers.snapshot import SnapshotReader
from gpufleet.wiring.snapshot import intervals

if TYPE_CHECKING:
    from gpufleet.wiring.kubevirt import Kubevirt

SNAPSHOT, DCGM, METRICS, SMI = range(4)
"""Order of preference of the readers, whatever their channel."""


def make_guests(
    config: AgentConfig, state: Path, clock: Clock, kubevirt: "Kubevirt | None" = None
) -> GuestSupervisor | None:
    """Return the supervisor of the virtual machines, or None if none are configured."""
    sources = make_guest_sources(config)
    if kubevirt is not None:
        sources = (*sources, kubevirt.source)
    if not sources:
        return None

    def connect(guest: GuestConfig) -> GuestAccess:
        is_shared = kubevirt is not None and kubevirt.source.lists(guest)
        return make_access(guest, state / "host_keys", clock, kubevirt if is_shared else None)

    return GuestSupervisor(
        sources,
        connect,
        intervals=intervals(config),
        clock=clock,
        collects=config.hub.url is not None,
        tasks=() if kubevirt is None else (kubevirt.run,),
    )


def make_guest_sources(config: AgentConfig) -> tuple[GuestSource, ...]:
    """Return the sources of virtual machines in order of precedence."""
    sources: list[GuestSource] = []
    if config.guests:
        sources.append(ConfiguredGuests(config.guests))
    if config.guest_folder is not None:
        sources.append(FolderGuests(GuestFolder(Path(config.guest_folder))))
    if config.libvirt.enabled:
        hypervisor = LibvirtDomains(UnixDialer(Path(config.libvirt.socket)), config.libvirt.uri)
        sources.append(LibvirtSource(hypervisor, LocalFiles(), config.libvirt))
    return tuple(sources)


def make_access(guest: GuestConfig, pins: Path, clock: Clock, kubevirt: "Kubevirt | None" = None) -> GuestAccess:
    """Return the access paths into a virtual machine. Nothing is dialled yet.

    Args:
        guest: its description.
        pins: folder of pinned host keys.
        clock: wall and monotonic time.
        kubevirt: dials its VSOCK if it was discovered by KubeVirt.
    """
    links: list[Link] = []
    gpus: list[tuple[int, AccessPath]] = []
    host: list[AccessPath] = []
    for channel in guest.channels:
        if isinstance(channel, DcgmChannel):
            reader: Reader = (
                _dcgm(make_dialer(channel.address), clock)
                if kubevirt is None
                else ShortConnectionReader(_dcgm(kubevirt.dialer(guest, channel), clock, profiling=False))
            )
            gpus.append((DCGM, AccessPath(name=f"dcgm at {channel.address}", reader=reader)))
            continue
        if isinstance(channel, MetricsChannel):
            from gpufleet.wiring.exports import make_guest_exporter_reader  # loads HTTP clients only if used

            gpus.append(
                (
                    METRICS,
                    AccessPath(name=f"metrics at {channel.address}", reader=make_guest_exporter_reader(channel, clock)),
                )
            )
            continue
        shell: SshShell | QemuAgentShell
        if isinstance(channel, SshChannel):
            shell, name = _ssh(channel, pins / guest.uid), f"ssh to {channel.address}"
        else:
            shell, name = QemuAgentShell(Path(channel.socket)), f"guest agent at {channel.socket}"
        links.append(shell)
        gpus += [
            (rank, AccessPath(name=f"{reader_name}, {name}", reader=gpu_reader, link=shell))
            for rank, reader_name, gpu_reader in _shell_readers(shell, clock)
        ]
        host.append(AccessPath(name=name, reader=HostReader(ShellFiles(shell), clock), link=shell))
    gpus.sort(key=lambda entry: entry[0])  # stable: keeps the order of the channels
    return GuestAccess(links=tuple(links), gpus=tuple(path for _, path in gpus), host=tuple(host))


def _shell_readers(shell: GuestShell, clock: Clock) -> list[tuple[int, str, SnapshotReader | NvidiaSmiReader]]:
    channel = ShellExec(shell)
    return [
        (SNAPSHOT, "gpufleet", SnapshotReader(channel, clock)),
        (SMI, "nvidia-smi", NvidiaSmiReader(channel, clock)),
    ]


def _ssh(channel: SshChannel, pin: Path) -> SshShell:
    host, port = channel.split()
    target = SshTarget(host=host, port=port, user=channel.user, key_file=Path(channel.key_file))
    return SshShell(
        target, FirstUseHostKey(pin) if channel.host_key == PIN_FIRST else ConfiguredHostKey(channel.host_key)
    )


def _dcgm(dialer: Dialer, clock: Clock, *, profiling: bool = True) -> DcgmReader:
    # A short backoff keeps the readiness times of a booting guest precise.
    return DcgmReader(dialer, clock, side=Side.GUEST, profiling=profiling, max_backoff_seconds=1.0)
