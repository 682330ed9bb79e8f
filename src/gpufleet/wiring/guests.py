"""Construction of the access paths into a virtual machine. A new kind of channel adds a function here."""

from pathlib import Path

from gpufleet.agent.guests.access_paths import AccessPath, Link
from gpufleet.agent.guests.guest import GuestAccess
from gpufleet.agent.guests.guests import GuestSupervisor
from gpufleet.agent.guests.libvirt import LibvirtSource
from gpufleet.agent.guests.sources import ConfiguredGuests, FolderGuests, GuestFolder, GuestSource
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
from gpufleet.ports.clock import Clock
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.readers.host import HostReader
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.readers.snapshot import SnapshotReader
from gpufleet.wiring.snapshot import intervals

SNAPSHOT, DCGM, METRICS, SMI = range(4)
"""Order of preference of the readers, whatever their channel."""


def make_guests(config: AgentConfig, state: Path, clock: Clock) -> GuestSupervisor | None:
    """Return the supervisor of the virtual machines, or None if none are configured."""
    sources = make_guest_sources(config)
    if not sources:
        return None
    return GuestSupervisor(
        sources,
        lambda guest: make_access(guest, state / "host_keys", clock),
        intervals=intervals(config),
        clock=clock,
        collects=config.hub.url is not None,
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


def make_access(guest: GuestConfig, pins: Path, clock: Clock) -> GuestAccess:
    """Return the access paths into a virtual machine. Nothing is dialled yet."""
    links: list[Link] = []
    gpus: list[tuple[int, AccessPath]] = []
    host: list[AccessPath] = []
    for channel in guest.channels:
        if isinstance(channel, DcgmChannel):
            gpus.append((DCGM, AccessPath(name=f"dcgm at {channel.address}", reader=_dcgm(channel, clock))))
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


def _dcgm(channel: DcgmChannel, clock: Clock) -> DcgmReader:
    # A short backoff keeps the readiness times of a booting guest precise.
    return DcgmReader(make_dialer(channel.address), clock, side=Side.GUEST, max_backoff_seconds=1.0)
