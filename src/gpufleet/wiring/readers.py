"""The readers an agent can have: one line each."""

from collections.abc import Callable

from gpufleet.channels.local import LocalFiles
from gpufleet.config.agent import Readers
from gpufleet.ports import Clock, Reader
from gpufleet.readers.host import HostReader
from gpufleet.readers.nvml.reader import NvmlReader


def _host(clock: Clock) -> Reader:
    return HostReader(LocalFiles(), clock)


def _nvml(_: Clock) -> Reader:
    return NvmlReader()


READERS: dict[str, Callable[[Clock], Reader]] = {"host": _host, "nvml": _nvml}
"""Name, as in the configuration, to how it is made for this machine."""

READ_TWICE = frozenset({"host"})
"""Readers with shares of time, which one look at the machine cannot tell."""


def make_readers(config: Readers, clock: Clock) -> list[tuple[Reader, float]]:
    """Make every reader that is enabled, each with the seconds a pass of it may take."""
    made: list[tuple[Reader, float]] = []
    for name, make in READERS.items():
        settings = getattr(config, name)
        if settings.enabled:
            made.append((make(clock), settings.timeout_seconds))
    return made
