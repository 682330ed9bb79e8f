"""/proc/self/mountinfo: which filesystems are worth a look, and what is behind the root.

The disk behind a block device: /sys/class/block and udev's notes.
"""

import re

import msgspec

from gpufleet.model.errors import WireError
from gpufleet.readers.host.parse.pci import basename
from gpufleet.readers.host.parse.text import decode, shown

PSEUDO_TYPES = frozenset(
    (
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
        "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.portal", "fusectl", "hugetlbfs", "iso9660", "mqueue", "nsfs", "proc",
        "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "smackfs", "squashfs", "sysfs", "tracefs",
    )
)  # fmt: skip
"""Types without space of their own. autofs above all: looking at one mounts what it stands for."""

FOREIGN_FOLDERS = (
    "/proc", "/sys", "/run/containerd", "/run/credentials", "/run/docker", "/run/k3s", "/run/netns", "/run/user",
    "/snap", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/pods", "/var/lib/rancher/k3s/agent",
)  # fmt: skip
"""Where runtimes and sessions mount for someone else: hundreds on a busy node, gone tomorrow."""

FILE_MOUNTS = frozenset(("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log"))
"""Files that container engines mount: the node's disk, under a name that says nothing."""

_ESCAPE = re.compile(r"\\(040|011|012|043|134)", re.ASCII)  # what seq_path() and mangle() write so
_DEVICE = re.compile(r"[0-9]{1,10}:[0-9]{1,10}", re.ASCII)


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo.

    Attributes:
        device: `major:minor` of the filesystem; major 0 has no block device.
        root: the folder inside the filesystem that is mounted; other than `/` for a bind mount.
        point: where it is mounted.
        fstype, source: as mounted.
        options: of the mount and of the whole filesystem.
        read_only: whether the whole filesystem is. A mount alone can be too: a service's sandbox makes all of its
            own so, and that says nothing of the machine.
    """

    device: str
    root: str
    point: str
    fstype: str
    source: str
    options: frozenset[str]
    read_only: bool


def parse_mountinfo(content: bytes, where: str) -> tuple[Mount, ...]:
    """Read every mount, in order; spaces and backslashes are written in octal there (proc(5)).

    Raises:
        WireError: if a line is malformed.
    """
    mounts: list[Mount] = []
    for row in decode(content).splitlines():
        before, dash, after = row.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not dash or len(left) < 6 or len(right) < 3 or _DEVICE.fullmatch(left[2]) is None:
            raise WireError(where, f"{shown(row)[:60]!r} is not a mount")
        whole = right[2].split(",")
        names = (_plain(left[3]), _plain(left[4]), _plain(right[0]), _plain(right[1]))
        mounts.append(Mount(left[2], *names, frozenset((*left[5].split(","), *whole)), "ro" in whole))
    return tuple(mounts)


def choose_filesystems(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """Return one mount a filesystem, for those with space of their own.

    Of several mounts on one point the last hides the others. Of several mounts of one filesystem (bind
    mounts) the one of its whole tree is taken, then the shortest point. An overlay counts only as a root.
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
    """Return what is mounted at `/`, or None if the list does not tell."""
    return next((mount for mount in reversed(mounts) if mount.point == "/"), None)


def hides_processes(mounts: tuple[Mount, ...]) -> str:
    """Return the option with which /proc hides other users' processes, or empty if it does not."""
    proc = next((mount for mount in reversed(mounts) if mount.point == "/proc"), None)
    options = proc.options if proc is not None else frozenset()
    return next((o for o in options if o.startswith("hidepid=") and o not in ("hidepid=0", "hidepid=off")), "")


def _has_space(mount: Mount) -> bool:
    if mount.fstype in PSEUDO_TYPES or mount.point in FILE_MOUNTS:
        return False
    if mount.fstype == "overlay" and mount.point != "/":
        return False
    return not any(mount.point == folder or mount.point.startswith(folder + "/") for folder in FOREIGN_FOLDERS)


def _rank(mount: Mount) -> tuple[bool, int, str]:
    return mount.root != "/", len(mount.point), mount.point


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A block device as sysfs shows it.

    Attributes:
        name: the kernel's, such as `nvme0n1p2` or `dm-0`.
        link: text of its link in /sys/class/block.
        is_partition: whether it is one.
        parts: names of the devices it is made of (device mapper, RAID).
    """

    name: str
    link: str
    is_partition: bool
    parts: tuple[str, ...]


def below(device: BlockDevice) -> tuple[str, ...]:
    """Return the devices one step down: what it is made of, or the disk of a partition; empty for a disk."""
    if device.parts:
        return device.parts
    if device.is_partition:
        return (basename(device.link.rpartition("/")[0]),)
    return ()


def parse_udev(content: bytes) -> dict[str, str]:
    """Read the properties (`E:NAME=value`) of udev's note on a device."""
    rows = (row[2:].partition("=") for row in decode(content).splitlines() if row.startswith("E:"))
    return {name: shown(value) for name, eq, value in rows if eq}
