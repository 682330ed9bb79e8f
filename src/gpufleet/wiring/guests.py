"""Construction of the access paths into a virtual machine. A new kind of channel adds a function here."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

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
from gpufleet.config.guests import PIN_FIRST, DcgmChannel, GuestConfig, MetricsChannel, QemuAgentChannel, SshChannel
from gpufleet.model.errors import ChannelError, ConfigError
from gpufleet.model.text import bounded
from gpufleet.model.view import Side
from gpufleet.ports.channel import Dialer
from gpufleet.ports.clock import Clock
from gpufleet.ports.guests import GuestDetails, GuestListing, GuestSource
from gpufleet.ports.reader import Reader
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.readers.host import HostReader
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.readers.snapshot import SnapshotReader
from gpufleet.wiring.probe import make_guest_probe, request_of
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

    requested = request_of(state) if config.probe.enabled else None

    def connect(guest: GuestConfig) -> GuestAccess:
        is_shared = kubevirt is not None and kubevirt.source.lists(guest)
        return make_access(guest, state / "host_keys", clock, kubevirt if is_shared else None, requested=requested)

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


def make_access(
    guest: GuestConfig,
    pins: Path,
    clock: Clock,
    kubevirt: "Kubevirt | None" = None,
    *,
    requested: Callable[[], int] | None = None,
) -> GuestAccess:
    """Return the access paths into a virtual machine. Nothing is dialled yet.

    Args:
        guest: its description.
        pins: folder of pinned host keys.
        clock: wall and monotonic time.
        kubevirt: dials its VSOCK if it was discovered by KubeVirt.
        requested: returns a number of the newest request of a performance probe; None if the guest is not probed.
    """
    links: list[Link] = []
    gpus: list[tuple[int, AccessPath]] = []
    host: list[AccessPath] = []
    probe: list[AccessPath] = []
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
        shell, name = _make_shell(channel, pins / guest.uid)
        links.append(shell)
        gpus += [
            (rank, AccessPath(name=f"{reader_name}, {name}", reader=gpu_reader, link=shell))
            for rank, reader_name, gpu_reader in _shell_readers(shell, clock)
        ]
        host.append(AccessPath(name=name, reader=HostReader(ShellFiles(shell), clock), link=shell))
        if requested is not None:
            probe.append(AccessPath(name=name, reader=make_guest_probe(shell, clock, requested), link=shell))
    gpus.sort(key=lambda entry: entry[0])  # stable: keeps the order of the channels
    return GuestAccess(links=tuple(links), gpus=tuple(path for _, path in gpus), host=tuple(host), probe=tuple(probe))


def _shell_readers(shell: GuestShell, clock: Clock) -> list[tuple[int, str, SnapshotReader | NvidiaSmiReader]]:
    channel = ShellExec(shell)
    return [
        (SNAPSHOT, "gpufleet", SnapshotReader(channel, clock)),
        (SMI, "nvidia-smi", NvidiaSmiReader(channel, clock)),
    ]


def _make_shell(channel: SshChannel | QemuAgentChannel, pin: Path) -> tuple[SshShell | QemuAgentShell, str]:
    """Return a shell that is not open yet, and its name for people."""
    if isinstance(channel, SshChannel):
        return _ssh(channel, pin), f"ssh to {channel.address}"
    return QemuAgentShell(Path(channel.socket)), f"guest agent at {channel.socket}"


class OpenedGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine with an open channel for commands and files.

    Attributes:
        guest: its description.
        shell: the open channel.
        channel: its name for people.
        open_seconds: time from the first attempt to open it to its success.
        address: host of the channel; empty if the channel has none.
    """

    guest: GuestConfig
    shell: SshShell | QemuAgentShell
    channel: str
    open_seconds: float
    address: str


async def find_guest(config: AgentConfig, name: str, clock: Clock) -> GuestConfig:
    """Return a virtual machine of the agent's sources. KubeVirt is used only if no other source has it.

    Args:
        config: of the agent.
        name: name, namespace and name, UUID or allocation of the virtual machine.
        clock: monotonic time.

    Raises:
        ConfigError: if there is no such virtual machine or more than one, or its user does not permit connections.
    """
    listings = [await source.list_guests() for source in make_guest_sources(config)]
    found = _named(listings, name)
    if not found and config.kubevirt.enabled:
        from gpufleet.wiring.kubevirt import list_guests_once  # loads the client of Kubernetes

        listings.append(await list_guests_once(config, clock))
        found = _named(listings[-1:], name)
    if not found:
        problems = [problem for listing in listings for problem in listing.problems.values()]
        more = f" (problems: {'; '.join(problems[:3])})" if problems else ""
        raise ConfigError("guests", "", f"no virtual machine {bounded(name, 200)!r}{more}")
    if len(found) > 1:
        listed = ", ".join(f"{guest.title} {guest.uid}" for guest in found.values())
        raise ConfigError("guests", "", f"{bounded(name, 200)!r} is not unique, give the UUID: {bounded(listed, 1000)}")
    return next(iter(found.values()))


def _named(listings: Iterable[GuestListing], name: str) -> dict[str, GuestConfig]:
    """Return the virtual machines with a name, by UID. Raises ConfigError if one must not be read."""
    found: dict[str, GuestConfig] = {}
    for listing in listings:
        for label, guest in listing.guests.items():
            if guest.is_named(name) and guest.uid not in found:
                unread = listing.details.get(label, GuestDetails()).unread
                if unread is not None:
                    raise ConfigError("guests", "", f"{guest.title} is not read: {unread.detail}")
                found[guest.uid] = guest
    return found


async def open_guest(guest: GuestConfig, pins: Path, clock: Clock) -> OpenedGuest:
    """Open the first channel of a virtual machine that runs commands. The caller closes its shell.

    Args:
        guest: its description.
        pins: folder of pinned host keys.
        clock: monotonic time.

    Raises:
        ChannelError: if it has no such channel, or none can be opened.
    """
    failures: list[str] = []
    for channel in guest.channels:
        if not isinstance(channel, SshChannel | QemuAgentChannel):
            continue
        shell, name = _make_shell(channel, pins / guest.uid)
        start = clock.monotonic()
        try:
            await shell.open()
        except ChannelError as error:
            failures.append(f"{name}: {error}")
            await shell.close()
            continue
        address = channel.split()[0] if isinstance(channel, SshChannel) else ""
        return OpenedGuest(
            guest=guest, shell=shell, channel=name, open_seconds=clock.monotonic() - start, address=address
        )
    raise ChannelError("; ".join(failures) or f"{guest.title} has no channel of type ssh or qemu_agent")


def _ssh(channel: SshChannel, pin: Path) -> SshShell:
    host, port = channel.split()
    target = SshTarget(host=host, port=port, user=channel.user, key_file=Path(channel.key_file))
    return SshShell(
        target, FirstUseHostKey(pin) if channel.host_key == PIN_FIRST else ConfiguredHostKey(channel.host_key)
    )


def _dcgm(dialer: Dialer, clock: Clock, *, profiling: bool = True) -> DcgmReader:
    # A short backoff keeps the readiness times of a booting guest precise.
    return DcgmReader(dialer, clock, side=Side.GUEST, profiling=profiling, max_backoff_seconds=1.0)
