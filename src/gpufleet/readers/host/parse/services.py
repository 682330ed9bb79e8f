"""State of the services of a GPU node, by process table and unit files."""

import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import decode, printable

COMM_LENGTH = 15
"""Maximum length of a process name in the kernel (TASK_COMM_LEN without the terminator)."""

UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
"""Directories of systemd units, in order of precedence (systemd.unit(5))."""


class Service(msgspec.Struct, frozen=True):
    """Service, with the names of its processes and units."""

    name: str
    processes: tuple[str, ...]
    units: tuple[str, ...]


SERVICES = (
    Service("nvidia-fabricmanager", ("nv-fabricmanager",), ("nvidia-fabricmanager",)),
    Service("nvidia-persistenced", ("nvidia-persistenced",), ("nvidia-persistenced",)),
    Service("nvidia-imex", ("nvidia-imex",), ("nvidia-imex",)),
    Service("nvidia-vgpu-mgr", ("nvidia-vgpu-mgr",), ("nvidia-vgpu-mgr",)),
    Service("nvidia-dcgm", ("nv-hostengine",), ("nvidia-dcgm", "dcgm")),
    Service(
        "kubelet",
        ("kubelet", "k3s-server", "k3s-agent", "kubelite"),
        ("kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "snap.microk8s.daemon-kubelite"),
    ),
    Service("containerd", ("containerd",), ("containerd",)),
    Service("crio", ("crio",), ("crio",)),
    Service("docker", ("dockerd",), ("docker",)),
    Service("slurmd", ("slurmd",), ("slurmd",)),
    Service("libvirtd", ("libvirtd", "virtqemud"), ("libvirtd", "virtqemud")),
    Service("chronyd", ("chronyd",), ("chronyd", "chrony")),
    Service("sshd", ("sshd",), ("sshd", "ssh")),
)
"""Services of a GPU node."""

_STAT = re.compile(r"[0-9]+ \((.*)\) ([A-Za-z])( .*)?", re.ASCII | re.DOTALL)


class Processes(msgspec.Struct, frozen=True):
    """Process table.

    Attributes:
        names: names of live processes (no zombies), cut to 15 characters.
        complete: whether all processes of the machine are visible. They are if process 2 is kthreadd, which a PID
            namespace or `hidepid` hides.
    """

    names: frozenset[str]
    complete: bool


def parse_process_stat(content: bytes, where: str) -> tuple[str, str]:
    """Parse name and state of one /proc/[pid]/stat. A process chooses its name, which can contain parentheses.

    Raises:
        WireError: if the content is malformed.
    """
    match = _STAT.fullmatch(decode(content).rstrip("\n"))
    if match is None:
        raise WireError(where, "is not a process stat line")
    return printable(match[1]), match[2]


def build_processes(stats: dict[int, tuple[str, str]]) -> Processes:
    """Build the table from (name, state) by pid."""
    names = frozenset(name for name, state in stats.values() if state not in "ZXx")
    return Processes(names, complete=stats.get(2, ("", ""))[0] == "kthreadd")


def service_state(service: Service, processes: Processes, units: frozenset[str] | None) -> str | None:
    """Return the state of a service, or None if it is unknown.

    - `running`: a process of the service exists.
    - `not_running`: a unit exists, and the complete process table has no process of the service.
    - `not_installed`: systemd is the init system, and neither a process nor a unit exists.

    `failed` is never returned: systemd does not store it in files.

    Args:
        service: the service.
        processes: the process table.
        units: names of the existing units, or None if systemd is not the init system.
    """
    if any(name[:COMM_LENGTH] in processes.names for name in service.processes):
        return "running"
    if not processes.complete:
        return None
    if units is None:
        return None
    return "not_running" if any(unit in units for unit in service.units) else "not_installed"
