"""Machines of a capture: this one, or a virtual machine through the agent's channel into it."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.cli.options import CommandError

if TYPE_CHECKING:
    from gpufleet.bench.capture import CaptureTarget
    from gpufleet.config.agent import AgentConfig
    from gpufleet.ports.channel import Exec
    from gpufleet.wiring.guests import OpenedGuest

FILES_SECONDS = 60.0
"""Time limit of reading files in a guest. An emulated one takes seconds."""


@contextlib.asynccontextmanager
async def open_target(guest: str | None, config: Path | None) -> AsyncIterator["CaptureTarget"]:
    """Yield this machine, or the virtual machine with a name, UUID or allocation in the agent's configuration.

    Raises:
        ConfigError: if the configuration is invalid, or the virtual machine is not in it.
        ChannelError: if its channel cannot be opened.
    """
    from gpufleet.bench.capture import CaptureTarget, GuestIdentity
    from gpufleet.channels.guest_shell import ShellExec, ShellFiles
    from gpufleet.channels.guest_shell.shell import MEASURED
    from gpufleet.channels.local import LocalExec, LocalFiles
    from gpufleet.model.reading import Provenance

    if guest is None:
        yield CaptureTarget(files=LocalFiles(), commands=LocalExec())
        return
    async with _open_guest(guest, load_agent(config)) as opened:
        yield CaptureTarget(
            files=ShellFiles(opened.shell, timeout_seconds=FILES_SECONDS),
            commands=ShellExec(opened.shell, MEASURED),
            source=Provenance.SLICE_GUEST,
            channel=opened.channel,
            open_seconds=opened.open_seconds,
            guest=GuestIdentity(name=opened.guest.title, uid=opened.guest.uid, allocation=opened.guest.allocation),
        )


@contextlib.asynccontextmanager
async def open_peer(guest: str | None, config: Path | None) -> AsyncIterator[tuple[str, "Exec"] | None]:
    """Yield address and commands of a virtual machine that is the peer of RDMA tests; None without a name.

    Raises:
        CommandError: if its channel has no network address.
        ConfigError, ChannelError: as `open_target`.
    """
    from gpufleet.channels.guest_shell import ShellExec
    from gpufleet.channels.guest_shell.shell import MEASURED

    if guest is None:
        yield None
        return
    async with _open_guest(guest, load_agent(config)) as opened:
        if not opened.address:
            raise CommandError(f"--ib-guest: {opened.channel} has no network address: configure a channel of type ssh")
        yield opened.address, ShellExec(opened.shell, MEASURED)


@contextlib.asynccontextmanager
async def _open_guest(name: str, config: "AgentConfig") -> AsyncIterator["OpenedGuest"]:
    from gpufleet.runtime import SystemClock
    from gpufleet.wiring.guests import find_guest, open_guest

    clock = SystemClock()
    opened = await open_guest(await find_guest(config, name, clock), config.folder / "host_keys", clock)
    try:
        yield opened
    finally:
        await opened.shell.close()


def load_agent(config: Path | None) -> "AgentConfig":
    """Return the agent's configuration. Raises ConfigError."""
    from gpufleet.config.agent import ENV_PREFIX, AgentConfig
    from gpufleet.config.load import load

    return load(AgentConfig, file=config, env_prefix=ENV_PREFIX, env=os.environ, flags={})
