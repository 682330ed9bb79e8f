"""Registry of the agent's readers, one line each, and their construction."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from gpufleet.channels.local import LocalExec, LocalFiles
from gpufleet.config.agent import HostConfig, ReadersConfig
from gpufleet.model.catalogue import Lane
from gpufleet.ports.clock import Clock
from gpufleet.ports.reader import Reader
from gpufleet.readers.host import HostReader
from gpufleet.readers.host.plan import CLIENT_CERTIFICATE, NODE_VARIABLE, KubernetesNode
from gpufleet.readers.kmsg import KmsgReader
from gpufleet.readers.nvidia_smi import NvidiaSmiReader
from gpufleet.readers.nvml.reader import NvmlReader

PARSE_SECONDS = 5.0

BINDING = "pynvml"
"""Module of the Python package `nvidia-ml-py`."""


def _host(config: ReadersConfig, clock: Clock) -> Reader:
    metadata = None
    if config.host.cloud_metadata:
        from gpufleet.readers.host.metadata import CloudMetadata  # loads an HTTP client only if used

        metadata = CloudMetadata()
    return HostReader(LocalFiles(), clock, kubernetes_node(config.host, os.environ), metadata)


def _nvml(config: ReadersConfig, _: Clock) -> Reader:
    return NvmlReader(process_names=config.nvml.process_names)


def _nvidia_smi(config: ReadersConfig, clock: Clock) -> Reader:
    return NvidiaSmiReader(LocalExec(), clock, command=config.nvidia_smi.command)


def _kmsg(config: ReadersConfig, clock: Clock) -> Reader:
    return KmsgReader(clock, path=Path(config.kmsg.path))


def _netdata(config: ReadersConfig, clock: Clock) -> Reader:
    from gpufleet.readers.netdata.reader import NetdataReader  # loads an HTTP client only if used

    assert config.netdata.url is not None
    return NetdataReader(config.netdata.url, clock, timeout_seconds=config.netdata.timeout_seconds)


def _dcgm(config: ReadersConfig, clock: Clock) -> Reader:
    from gpufleet.channels.stream.dialers import make_dialer  # loaded only if used
    from gpufleet.readers.dcgm.reader import DcgmReader

    assert config.dcgm.address is not None
    return DcgmReader(make_dialer(config.dcgm.address), clock, profiling=config.dcgm.profiling)


READERS: dict[str, Callable[[ReadersConfig, Clock], Reader]] = {
    "host": _host,
    "nvml": _nvml,
    "nvidia_smi": _nvidia_smi,
    "kmsg": _kmsg,
    "dcgm": _dcgm,
    "netdata": _netdata,
}
"""Configuration name to a function that makes the reader for this machine."""

RATE_READERS = frozenset({"host"})
"""Readers of rates, which need two passes for a single snapshot."""

RELEASABLE_READERS = frozenset({"nvml", "nvidia_smi", "dcgm"})
"""Readers that hold devices, or make an engine use them, and release them on an operator's request."""


def kubernetes_node(config: HostConfig, environment: Mapping[str, str]) -> KubernetesNode:
    """Return the sources of this machine's name in Kubernetes. `NODE_NAME` counts in a pod only."""
    is_pod = "KUBERNETES_SERVICE_HOST" in environment
    return KubernetesNode(
        name=config.k8s_node_name or "",
        uid=config.k8s_node_uid or "",
        pod_node=environment.get(NODE_VARIABLE, "") if is_pod else "",
        certificate=f"{config.kubelet_certificates.rstrip('/')}/{CLIENT_CERTIFICATE}",
    )


def make_readers(config: ReadersConfig, clock: Clock) -> list[tuple[Reader, float]]:
    """Return every enabled reader with the time limit of its passes in seconds."""
    names = enabled_readers(config, binding=has_binding())
    readers = [(READERS[name](config, clock), getattr(config, name).timeout_seconds) for name in names]
    if config.exporter:
        from gpufleet.wiring.exports import make_exporter_reader  # loads HTTP clients only if used

        # The fetch has its own time limit. The rest is for parsing in this process.
        readers += [
            (
                make_exporter_reader(target, clock, f"readers.exporter {target.name}"),
                target.timeout_seconds + PARSE_SECONDS,
            )
            for target in config.exporter
        ]
    return readers


def lane_overrides(config: ReadersConfig, intervals: Mapping[Lane, float]) -> dict[str, dict[Lane, float]]:
    """Return intervals of lanes that differ from the agent's, by reader.

    An exporter reports events as states on its page. They are read on the fast lane's interval, not each second.
    """
    return {f"exporter/{target.name}": {Lane.EVENT: intervals[Lane.FAST]} for target in config.exporter}


def has_binding() -> bool:
    """Return whether NVML's Python binding is installed, without importing it."""
    return importlib.util.find_spec(BINDING) is not None


def enabled_readers(config: ReadersConfig, *, binding: bool) -> tuple[str, ...]:
    """Return the names of the readers to run on this machine. `binding` is whether NVML's binding is installed."""
    use_smi = _replaces_nvml(config, binding)
    wanted = {
        "host": config.host.enabled,
        "nvml": config.nvml.enabled and not use_smi,
        "nvidia_smi": config.nvidia_smi.use == "always" or use_smi,
        "kmsg": config.kmsg.enabled,
        "dcgm": config.dcgm.address is not None,
        "netdata": config.netdata.url is not None,
    }
    return tuple(name for name in READERS if wanted[name])


def capabilities(config: ReadersConfig, *, binding: bool) -> dict[str, str]:
    """Return explanations of enabled readers that do not run."""
    if not _replaces_nvml(config, binding):
        return {}
    return {"nvml": "no_library: the Python package nvidia-ml-py is not installed; nvidia_smi is used instead"}


def _replaces_nvml(config: ReadersConfig, binding: bool) -> bool:
    """Return whether nvidia-smi replaces NVML, because its binding is missing and the command is installed."""
    wanted = config.nvidia_smi.use == "auto" and config.nvml.enabled and not binding
    return wanted and shutil.which(config.nvidia_smi.command) is not None
