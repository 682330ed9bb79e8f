"""The process table and unit files: how the services of a GPU node are."""

import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.text import decode, shown

COMM_LENGTH = 15
"""The kernel cuts a process's name to this (TASK_COMM_LEN less the end)."""

UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
"""Where systemd finds units, first one first (systemd.unit(5))."""


class Service(msgspec.Struct, frozen=True):
    """A service, the processes that are it, and the units that would start it."""

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
"""The services that a GPU node lives on."""

_STAT = re.compile(r"[0-9]+ \((.*)\) ([A-Za-z])( .*)?", re.ASCII | re.DOTALL)


class Processes(msgspec.Struct, frozen=True):
    """The process table.

    Attributes:
        names: of the processes that live (no zombies), cut to 15 characters.
        complete: whether all of the machine's processes are seen. Process 2 is the kernel's thread
            keeper and nobody else's: a PID namespace or `hidepid` hides it.
    """

    names: frozenset[str]
    complete: bool


def parse_process_stat(content: bytes, where: str) -> tuple[str, str]:
    """Read name and state of one /proc/[pid]/stat. The name is the process's own choice, parentheses and all.

    Raises:
        WireError: if it is malformed.
    """
    match = _STAT.fullmatch(decode(content).rstrip("\n"))
    if match is None:
        raise WireError(where, "is not a process's stat")
    return shown(match[1]), match[2]


def build_processes(stats: dict[int, tuple[str, str]]) -> Processes:
    """Build the table from pid to (name, state)."""
    names = frozenset(name for name, state in stats.values() if state not in "ZXx")
    return Processes(names, complete=stats.get(2, ("", ""))[0] == "kthreadd")


def judge_service(service: Service, processes: Processes, units: frozenset[str] | None) -> str | None:
    """Tell a service's state as far as files do; None where they cannot.

    A process that is there runs, whoever looks. That there is none is known only from the whole table,
    and that it is not installed only from the folders of a systemd that runs the machine. Files never
    tell `failed`: systemd keeps that to itself.

    Args:
        service: which.
        processes: the table.
        units: names of the units found, or None where systemd does not run the machine.
    """
    if any(name[:COMM_LENGTH] in processes.names for name in service.processes):
        return "running"
    if not processes.complete:
        return None
    if units is None:
        return None
    return "not_running" if any(unit in units for unit in service.units) else "not_installed"
