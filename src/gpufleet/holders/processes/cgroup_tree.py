"""Pods and jobs whose cgroups have processes, from the cgroup file systems."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpufleet.holders.processes.parse.cgroup import job_of, leads_to_holders, pod_of
from gpufleet.model.holdings import HolderKind
from gpufleet.ports.holder import HolderId

MOUNT = "/sys/fs/cgroup"
V1_HIERARCHIES = ("memory", "devices", "freezer", "systemd")
"""Hierarchies of cgroup v1. Kubelet, container runtimes and SLURM use at least one of these."""

MAX_FOLDERS = 8_192
MAX_DEPTH = 12
_MAX_V1_FOLDERS = 256
_FILE_BYTES = 4_096


class _Folder(NamedTuple):
    path: str
    names: tuple[str, ...]  # of itself and the folder around it
    depth: int


def find_living(root: str) -> frozenset[HolderId] | None:
    """Return the pods and jobs that have processes.

    None if the tree is not that of the whole machine (the agent is in a container with its own view of it), cannot be
    read, or is too large.
    """
    mount = root + MOUNT
    if Path(mount, "cgroup.controllers").exists():
        return _walk(mount, is_v2=True) if _is_root(mount, is_v2=True) else None
    found: set[HolderId] = set()
    hierarchies = [f"{mount}/{name}" for name in V1_HIERARCHIES if Path(mount, name).is_dir()]
    for hierarchy in hierarchies:
        own = _walk(hierarchy, is_v2=False) if _is_root(hierarchy, is_v2=False) else None
        if own is None:
            return None
        found |= own
    return frozenset(found) if hierarchies else None


def _is_root(mount: str, *, is_v2: bool) -> bool:
    """Return whether a mount shows the machine's root cgroup: it alone has no events (v2), or a release agent (v1)."""
    if is_v2:
        return not Path(mount, "cgroup.events").exists()
    return Path(mount, "release_agent").exists()


def _walk(mount: str, *, is_v2: bool) -> frozenset[HolderId] | None:
    found: set[HolderId] = set()
    folders = [_Folder(mount, (), 0)]
    for visited in range(MAX_FOLDERS):
        if not folders:
            return frozenset(found)
        folder = folders.pop()
        try:
            children = list(_subfolders(folder.path))
        except FileNotFoundError:
            continue  # it ended meanwhile
        except OSError:
            return None
        if len(children) + visited > MAX_FOLDERS or folder.depth >= MAX_DEPTH:
            return None
        for name in children:
            path = f"{folder.path}/{name}"
            holder = _holder(name, folder.names)
            if holder is not None:
                if holder not in found and _has_processes(path, is_v2=is_v2):
                    found.add(holder)
            elif leads_to_holders(name):
                folders.append(_Folder(path, (*folder.names[-1:], name), folder.depth + 1))
    return None


def _holder(name: str, before: tuple[str, ...]) -> HolderId | None:
    if pod := pod_of(name, before[-1] if before else ""):
        return HolderKind.POD, pod
    if job := job_of(name, before):
        return HolderKind.JOB, job
    return None


def _has_processes(path: str, *, is_v2: bool) -> bool:
    if is_v2:
        return b"populated 1" in _read(f"{path}/cgroup.events")
    folders = [path]
    for _ in range(_MAX_V1_FOLDERS):
        if not folders:
            return False
        folder = folders.pop()
        if _read(f"{folder}/cgroup.procs"):
            return True
        try:
            folders += [f"{folder}/{name}" for name in _subfolders(folder)]
        except OSError:
            continue
    return True  # unknown: an end is not proven


def _subfolders(path: str) -> Iterator[str]:
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _FILE_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
