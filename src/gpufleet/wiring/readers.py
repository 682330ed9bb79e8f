"""The readers an agent can have: one line each."""

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.config.agent import Readers
from gpufleet.model.catalogue import Lane
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader
from gpufleet.readers.host import HostReader
from gpufleet.readers.kmsg import KmsgReader
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.readers.nvml.reader import NvmlReader

PARSE_SECONDS = 5.0

BINDING = "pynvml"
"""Module of `nvidia-ml-py`."""


def _host(_: Readers, clock: Clock) -> Reader:
    return HostReader(LocalFiles(), clock)


def _nvml(config: Readers, _: Clock) -> Reader:
    return NvmlReader(process_names=config.nvml.process_names)


def _nvidia_smi(config: Readers, clock: Clock) -> Reader:
    return NvidiaSmiReader(LocalExec(), clock, command=config.nvidia_smi.command)


def _kmsg(config: Readers, clock: Clock) -> Reader:
    return KmsgReader(clock, path=Path(config.kmsg.path))


def _netdata(config: Readers, clock: Clock) -> Reader:
    from gpufleet.readers.netdata.reader import NetdataReader  # its HTTP client is only loaded where it reads

    assert config.netdata.url is not None
    return NetdataReader(config.netdata.url, clock, timeout_seconds=config.netdata.timeout_seconds)


def _dcgm(config: Readers, clock: Clock) -> Reader:
    from gpufleet.channels.stream.dialers import dialer_of  # only loaded where it reads
    from gpufleet.readers.dcgm.reader import DcgmReader

    assert config.dcgm.address is not None
    return DcgmReader(dialer_of(config.dcgm.address), clock, profiling=config.dcgm.profiling)


READERS: dict[str, Callable[[Readers, Clock], Reader]] = {
    "host": _host,
    "nvml": _nvml,
    "nvidia_smi": _nvidia_smi,
    "kmsg": _kmsg,
    "dcgm": _dcgm,
    "netdata": _netdata,
}
"""Name, as in the configuration, to how it is made for this machine."""

READ_TWICE = frozenset({"host"})
"""Readers with shares of time, which one look at the machine cannot tell."""

HOLDERS = frozenset({"nvml", "nvidia_smi", "dcgm"})
"""Readers that hold devices, or make an engine use them, and let go of them when an operator asks."""


def make_readers(config: Readers, clock: Clock) -> list[tuple[Reader, float]]:
    """Make every reader that is to read, each with the seconds a pass of it may take."""
    names = chosen(config, binding=has_binding())
    readers = [(READERS[name](config, clock), getattr(config, name).timeout_seconds) for name in names]
    if config.exporter:
        from gpufleet.wiring.exports import exporter_reader  # its HTTP clients are only loaded where it reads

        # The fetch has its own time; beside it only this process's own work is waited for.
        readers += [
            (exporter_reader(target, clock, f"readers.exporter {target.name}"), target.timeout_seconds + PARSE_SECONDS)
            for target in config.exporter
        ]
    return readers


def paces(config: Readers, intervals: Mapping[Lane, float]) -> dict[str, dict[Lane, float]]:
    """Return reader to the pace of lanes in which it does not keep the agent's.

    An exporter tells of events as states: they come with its page, and it is not asked each second.
    """
    return {f"exporter/{target.name}": {Lane.EVENT: intervals[Lane.FAST]} for target in config.exporter}


def has_binding() -> bool:
    """Tell whether NVML's Python binding is installed, without importing it."""
    return importlib.util.find_spec(BINDING) is not None


def chosen(config: Readers, *, binding: bool) -> tuple[str, ...]:
    """Return the names of the readers that are to read on this machine; `binding` is whether NVML's is installed."""
    instead = _smi_instead(config, binding)
    wanted = {
        "host": config.host.enabled,
        "nvml": config.nvml.enabled and not instead,
        "nvidia_smi": config.nvidia_smi.use == "always" or instead,
        "kmsg": config.kmsg.enabled,
        "dcgm": config.dcgm.address is not None,
        "netdata": config.netdata.url is not None,
    }
    return tuple(name for name in READERS if wanted[name])


def capabilities(config: Readers, *, binding: bool) -> dict[str, str]:
    """Return what there is to say of readers that were enabled and do not read."""
    if not _smi_instead(config, binding):
        return {}
    return {"nvml": "no_library: the Python package nvidia-ml-py is not installed: nvidia_smi reads in its place"}


def _smi_instead(config: Readers, binding: bool) -> bool:
    """Tell whether nvidia-smi reads because NVML cannot: its binding is not installed, and the command is."""
    wanted = config.nvidia_smi.use == "auto" and config.nvml.enabled and not binding
    return wanted and shutil.which(config.nvidia_smi.command) is not None
