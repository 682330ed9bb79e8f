"""Fetching of a lane's files over any channel that offers Files, in several steps if paths depend on results."""

import msgspec

from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.errors import WireError
from gpufleet.ports.channel import FetchPlan, FetchResult, Files
from gpufleet.readers.host import plan
from gpufleet.readers.host.parse.pci import basename, is_address, is_display
from gpufleet.readers.host.parse.storage import (
    BlockDevice,
    Mount,
    choose_filesystems,
    parse_mountinfo,
    root_mount,
    underlying_devices,
)

MAX_STEPS = 8
"""Maximum number of layers between the root filesystem and its disks (partition, RAID, encryption, volume)."""


class RootDisk(msgspec.Struct, frozen=True, kw_only=True):
    """Block device and disks of the root filesystem.

    Attributes:
        mount: mount of the root, or None if the mounts could not be read.
        device: the kernel's name of the block device; empty if there is none.
        disks: names of the underlying disks; several for RAID and volumes.
    """

    mount: Mount | None = None
    device: str = ""
    disks: tuple[str, ...] = ()


async def fetch_lane(files: Files, lane: Lane, node: plan.KubernetesNode | None = None) -> tuple[FetchResult, RootDisk]:
    """Fetch all files of a lane, and find the root disk on the static lane.

    Args:
        files: channel to the machine's files.
        lane: the lane.
        node: sources of the machine's name in Kubernetes; None leaves it out.

    Raises:
        ChannelError: if the channel failed.
    """
    fetched = await files.fetch(plan.PLANS[lane])
    if lane is Lane.FAST:
        return fetched, RootDisk()
    addresses = display_addresses(fetched)
    if addresses:
        _merge(fetched, await files.fetch(plan.pci_plan(addresses)))
    mounts = _mounts(fetched)
    if lane is Lane.SLOW:
        points = tuple(mount.point for mount in choose_filesystems(mounts))
        _merge(fetched, await files.fetch(FetchPlan(filesystems=points)))
        return fetched, RootDisk()
    if node is not None:
        _merge(fetched, await files.fetch(plan.kubernetes_plan(node)))
    return fetched, await _fetch_root_disk(files, root_mount(mounts), fetched)


def display_addresses(fetched: FetchResult) -> tuple[str, ...]:
    """Return the addresses of the display controllers among the PCI functions whose class was read."""
    found: list[str] = []
    for path, content in fetched.files.items():
        if path.startswith(f"{plan.PCI}/") and path.endswith("/class"):
            address = path.removeprefix(f"{plan.PCI}/").removesuffix("/class")
            try:
                if is_address(address) and is_display(content, path):
                    found.append(address)
            except WireError:
                continue  # the mapping reports it
    return tuple(found)


async def _fetch_root_disk(files: Files, mount: Mount | None, fetched: FetchResult) -> RootDisk:
    if mount is None:
        return RootDisk()
    device = await _block_name(files, mount)
    if not device:
        return RootDisk(mount=mount)
    level = {device}
    disks: set[str] = set()
    for _ in range(MAX_STEPS):
        step: set[str] = set()
        for name in sorted(level):
            lower = underlying_devices(await _fetch_block(files, name, fetched))
            step.update(lower)
            if not lower:
                disks.add(name)
        if not step:
            break
        level = step
    for name in disks:
        number = fetched.files.get(f"{plan.BLOCK}/{name}/dev", b"").decode("ascii", errors="replace").strip()
        _merge(fetched, await files.fetch(plan.disk_plan(name, number)))
    return RootDisk(mount=mount, device=device, disks=tuple(sorted(disks)))


async def _block_name(files: Files, mount: Mount) -> str:
    """Return the block device of a mount: by number, or by source if the number is the filesystem's own."""
    by_number = f"/sys/dev/block/{mount.device}"
    by_source = f"{plan.BLOCK}/{basename(mount.source)}" if mount.source.startswith("/dev/") else ""
    answer = await files.fetch(FetchPlan(links=tuple(path for path in (by_number, by_source) if path)))
    return basename(answer.links.get(by_number, answer.links.get(by_source, "")))


async def _fetch_block(files: Files, name: str, fetched: FetchResult) -> BlockDevice:
    answer = await files.fetch(plan.block_plan(name))
    _merge(fetched, answer)
    return BlockDevice(
        name=name,
        link=answer.links.get(f"{plan.BLOCK}/{name}", ""),
        is_partition=f"{plan.BLOCK}/{name}/partition" in answer.files,
        parts=tuple(sorted(basename(path) for path in answer.links if "/slaves/" in path)),
    )


def _mounts(fetched: FetchResult) -> tuple[Mount, ...]:
    content = fetched.files.get(plan.MOUNTINFO)
    if content is None:
        return ()
    try:
        return parse_mountinfo(content, plan.MOUNTINFO)
    except WireError:
        return ()  # the mapping reports it


def _merge(into: FetchResult, other: FetchResult) -> None:
    into.files.update(other.files)
    into.links.update(other.links)
    into.filesystems.update(other.filesystems)
    into.errors.update(other.errors)
