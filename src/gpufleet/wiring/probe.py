"""Construction of the performance probe of this machine and of its guests, and an operator's request for it."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from gpufleet.agent.collect.release import ReleaseFolder
from gpufleet.channels.guest_shell import ShellExec, ShellFiles
from gpufleet.channels.guest_shell.shell import GuestShell
from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.config.agent import AgentConfig
from gpufleet.model.catalogue import Lane
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader
from gpufleet.probe.reader import ProbeReader

TIMEOUT_SECONDS = 180.0
"""Time limit of a probe: two calls of nvidia-smi with a slow driver, and a few small commands."""

INTERVAL_SECONDS = 120.0
"""Maximum interval at which an agent checks whether a probe is due, such as after a boot or a request."""

REQUEST = "probe.request"
"""File in the agent's folder; its time of modification is the newest request."""


def make_probe(config: AgentConfig, clock: Clock) -> list[tuple[Reader, float]]:
    """Return the probe of this machine with the time limit of its passes, if it is enabled."""
    if not config.probe.enabled:
        return []
    release = ReleaseFolder(config.folder, clock.now_ns)
    reader = ProbeReader(
        LocalFiles(),
        LocalExec(),
        clock,
        requested=request_of(config.folder),
        is_released=lambda: release.current() is not None,
    )
    return [(reader, TIMEOUT_SECONDS)]


def make_guest_probe(shell: GuestShell, clock: Clock, requested: Callable[[], int]) -> Reader:
    """Return the probe of a guest."""
    return ProbeReader(ShellFiles(shell), ShellExec(shell), clock, requested=requested, waits=True)


def probe_intervals(intervals: Mapping[Lane, float]) -> dict[Lane, float]:
    """Return the interval of the probe's passes."""
    return {Lane.STATIC: min(intervals[Lane.STATIC], INTERVAL_SECONDS)}


def request_of(folder: Path) -> Callable[[], int]:
    """Return a function that returns a number of the newest request; 0 without one."""

    def requested() -> int:
        with contextlib.suppress(OSError):
            return (folder / REQUEST).stat().st_mtime_ns
        return 0

    return requested


def request_probe(folder: Path) -> None:
    """Request a new probe of this machine and its guests from the agent with this folder. Raises OSError."""
    (folder / REQUEST).touch(mode=0o600)
