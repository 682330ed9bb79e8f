"""Parsers of /proc/self/mountinfo, /sys/class/block and udev properties; selection of filesystems and disks."""

import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.pci import basename
from gpufleet.readers.host.parse.text import decode, printable

PSEUDO_TYPES = frozenset(
    (
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
        "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "fusectl", "hugetlbfs", "iso9660", "mqueue", "nsfs", "proc",
        "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "smackfs", "squashfs", "sysfs", "tracefs",
    )
)  # fmt: skip
"""Types without their own storage. autofs must not be accessed: that mounts its target."""

RUNTIME_FOLDERS = (
    "/proc", "/sys", "/run/containerd", "/run/credentials", "/run/docker", "/run/k3s", "/run/netns", "/run/user",
    "/snap", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/pods", "/var/lib/rancher/k3s/agent",
)  # fmt: skip
"""Directories with mounts of container runtimes and sessions: short-lived, and hundreds on a busy node."""

FILE_MOUNTS = frozenset(("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log"))
"""Files that container engines mount from the node's disk."""

_ESCAPE = re.compile(r"\\(040|011|012|043|134)", re.ASCII)  # escapes of seq_path() and mangle()
_DEVICE = re.compile(r"[0-9]{1,10}:[0-9]{1,10}", re.ASCII)


class Mount(msgspec.Struct, frozen=True):
    """Mount: one line of mountinfo.

    Attributes:
        device: `major:minor` of the filesystem; major 0 has no block device.
        root: mounted directory within the filesystem; other than `/` for a bind mount.
        point: mount point.
        fstype, source: type and source.
        options: of the mount and of the whole filesystem.
        read_only: whether the whole filesystem is read-only. The mount's own flag does not count: a service's sandbox
            sets it on all mounts.
    """

    device: str
    root: str
    point: str
    fstype: str
    source: str
    options: frozenset[str]
    read_only: bool


def parse_mountinfo(content: bytes, where: str) -> tuple[Mount, ...]:
    """Parse all mounts in order; spaces and backslashes are octal escapes (proc(5)).

    Raises:
        WireError: if a line is malformed.
    """
    mounts: list[Mount] = []
    for row in decode(content).splitlines():
        before, dash, after = row.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not dash or len(left) < 6 or len(right) < 3 or _DEVICE.fullmatch(left[2]) is None:
            raise WireError(where, f"{printable(row)[:60]!r} is not a mount")
        whole = right[2].split(",")
        names = (_unescape(left[3]), _unescape(left[4]), _unescape(right[0]), _unescape(right[1]))
        mounts.append(Mount(left[2], *names, frozenset((*left[5].split(","), *whole)), "ro" in whole))
    return tuple(mounts)


def choose_filesystems(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """Return one mount per filesystem with its own storage.

    The last of several mounts on one mount point hides the others. Of several mounts of one filesystem (bind mounts), a
    mount of its whole tree is preferred, then the shortest mount point. An overlay is included only at `/`.
    """
    visible = {mount.point: mount for mount in mounts}
    chosen: dict[str, Mount] = {}
    for mount in visible.values():
        if not _has_space(mount):
            continue
        other = chosen.get(mount.device)
        if other is None or _rank(mount) < _rank(other):
            chosen[mount.device] = mount
    return tuple(sorted(chosen.values(), key=lambda mount: mount.point))


def root_mount(mounts: tuple[Mount, ...]) -> Mount | None:
    """Return the mount at `/`, or None if there is none in the list."""
    return next((mount for mount in reversed(mounts) if mount.point == "/"), None)


def is_of_lxcfs(mounts: tuple[Mount, ...], path: str) -> bool:
    """Return whether lxcfs replaces a file of /proc: it then has the view of the container, not of the kernel."""
    return any(mount.point == path and mount.fstype == "fuse.lxcfs" for mount in mounts)


def hidepid_option(mounts: tuple[Mount, ...]) -> str:
    """Return the option of /proc that hides other users' processes, or empty if there is none."""
    proc = next((mount for mount in reversed(mounts) if mount.point == "/proc"), None)
    options = proc.options if proc is not None else frozenset()
    return next((o for o in options if o.startswith("hidepid=") and o not in ("hidepid=0", "hidepid=off")), "")


def _has_space(mount: Mount) -> bool:
    if mount.fstype in PSEUDO_TYPES or mount.point in FILE_MOUNTS:
        return False
    if mount.fstype == "overlay" and mount.point != "/":
        return False
    return not any(mount.point == folder or mount.point.startswith(folder + "/") for folder in RUNTIME_FOLDERS)


def _rank(mount: Mount) -> tuple[bool, int, str]:
    return mount.root != "/", len(mount.point), mount.point


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Block device in sysfs.

    Attributes:
        name: kernel name, such as `nvme0n1p2` or `dm-0`.
        link: target of its link in /sys/class/block.
        is_partition: whether the device is a partition.
        parts: names of its component devices (device mapper, RAID).
    """

    name: str
    link: str
    is_partition: bool
    parts: tuple[str, ...]


def underlying_devices(device: BlockDevice) -> tuple[str, ...]:
    """Return the devices one layer below: components, or the disk of a partition; empty for a disk."""
    if device.parts:
        return device.parts
    if device.is_partition:
        return (basename(device.link.rpartition("/")[0]),)
    return ()


def parse_udev(content: bytes) -> dict[str, str]:
    """Parse the properties (`E:NAME=value`) of a device in the udev database."""
    rows = (row[2:].partition("=") for row in decode(content).splitlines() if row.startswith("E:"))
    return {name: printable(value) for name, eq, value in rows if eq}
