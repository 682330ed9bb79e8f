"""The ways into a virtual machine, made from its description. A new kind of channel adds a function here."""

from pathlib import Path

from gpufleet.agent.guests.guest import Access
from gpufleet.agent.guests.guests import Guests
from gpufleet.agent.guests.libvirt import LibvirtSource
from gpufleet.agent.guests.sources import Configured, GuestFolder, InFolder, Source
from gpufleet.agent.guests.ways import Link, Way
from gpufleet.channels.guest_shell import ShellExec, ShellFiles
from gpufleet.channels.guest_shell.shell import Shell
from gpufleet.channels.local import LocalFiles
from gpufleet.channels.qemu_agent import QemuAgentShell
from gpufleet.channels.ssh.shell import SshShell
from gpufleet.channels.ssh.target import FirstPin, GivenPin, SshTarget
from gpufleet.channels.stream.dialers import UnixDialer, dialer_of
from gpufleet.config.agent import AgentConfig
from gpufleet.config.guests import PIN_FIRST, DcgmChannel, GuestConfig, MetricsChannel, SshChannel
from gpufleet.model.view import Side
from gpufleet.ports.clock import Clock
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.readers.host import HostReader
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.readers.snapshot import SnapshotReader
from gpufleet.wiring.once import intervals

SNAPSHOT, DCGM, METRICS, SMI = range(4)
"""Which reader is asked first, whatever channel it is over."""


def make_guests(config: AgentConfig, state: Path, clock: Clock) -> Guests | None:
    """Return what reads the virtual machines, or None where none are configured."""
    sources = make_sources(config)
    if not sources:
        return None
    return Guests(
        sources,
        lambda guest: reach(guest, state / "host_keys", clock),
        intervals=intervals(config),
        clock=clock,
        collects=config.hub.url is not None,
    )


def make_sources(config: AgentConfig) -> tuple[Source, ...]:
    """Return who tells of virtual machines, in the order in which they are believed."""
    sources: list[Source] = []
    if config.guests:
        sources.append(Configured(config.guests))
    if config.guest_folder is not None:
        sources.append(InFolder(GuestFolder(Path(config.guest_folder))))
    if config.libvirt.enabled:
        dialer = UnixDialer(Path(config.libvirt.socket))
        sources.append(LibvirtSource(dialer, LocalFiles(), config.libvirt))
    return tuple(sources)


def reach(guest: GuestConfig, pins: Path, clock: Clock) -> Access:
    """Make every way into a virtual machine; nothing is dialled here."""
    links: list[Link] = []
    gpus: list[tuple[int, Way]] = []
    host: list[Way] = []
    for channel in guest.channels:
        if isinstance(channel, DcgmChannel):
            gpus.append((DCGM, Way(name=f"dcgm at {channel.address}", reader=_dcgm(channel, clock))))
            continue
        if isinstance(channel, MetricsChannel):
            from gpufleet.wiring.exports import guest_exporter  # its HTTP clients are only loaded where it reads

            gpus.append((METRICS, Way(name=f"metrics at {channel.address}", reader=guest_exporter(channel, clock))))
            continue
        shell: SshShell | QemuAgentShell
        if isinstance(channel, SshChannel):
            shell, name = _ssh(channel, pins / guest.uid), f"ssh to {channel.address}"
        else:
            shell, name = QemuAgentShell(Path(channel.socket)), f"guest agent at {channel.socket}"
        links.append(shell)
        gpus += [
            (rank, Way(name=f"{word}, {name}", reader=reader, link=shell))
            for rank, word, reader in _asked(shell, clock)
        ]
        host.append(Way(name=name, reader=HostReader(ShellFiles(shell), clock), link=shell))
    gpus.sort(key=lambda ranked: ranked[0])  # stable: channels stay in their order
    return Access(links=tuple(links), gpus=tuple(way for _, way in gpus), host=tuple(host))


def _asked(shell: Shell, clock: Clock) -> list[tuple[int, str, SnapshotReader | NvidiaSmiReader]]:
    channel = ShellExec(shell)
    return [
        (SNAPSHOT, "gpufleet", SnapshotReader(channel, clock)),
        (SMI, "nvidia-smi", NvidiaSmiReader(channel, clock)),
    ]


def _ssh(channel: SshChannel, pin: Path) -> SshShell:
    host, port = channel.split()
    target = SshTarget(host=host, port=port, user=channel.user, key_file=Path(channel.key_file))
    return SshShell(target, FirstPin(pin) if channel.host_key == PIN_FIRST else GivenPin(channel.host_key))


def _dcgm(channel: DcgmChannel, clock: Clock) -> DcgmReader:
    # One that boots is awaited, and when it was ready is told: nothing but the guest's own times slows this down.
    return DcgmReader(dialer_of(channel.address), clock, side=Side.GUEST, most_wait_seconds=1.0)
