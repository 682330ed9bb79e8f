"""Mapping of filesystems, services and the PCI inventory."""

from collections import Counter

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.model.machine import PciFunction
from gpufleet.readers.host import plan
from gpufleet.readers.host.mapping import Readings
from gpufleet.readers.host.parse.pci import is_address, is_display, parse_function, parse_numa_node
from gpufleet.readers.host.parse.services import (
    SERVICES,
    UNIT_FOLDERS,
    build_processes,
    parse_process_stat,
    service_state,
)
from gpufleet.readers.host.parse.storage import Mount, choose_filesystems, parse_mountinfo
from gpufleet.readers.host.parse.text import printable
from gpufleet.readers.host.source import FetchedFiles

HIDDEN = Absent(
    Reason.NOT_PERMITTED, "the machine's processes are hidden by a container's PID namespace, or by hidepid on /proc"
)
NO_SYSTEMD = Absent(Reason.NOT_SUPPORTED, "no process found; without systemd the installed services are unknown")
NO_SIZE = Absent(Reason.NOT_SUPPORTED, "the filesystem reports no size")
"""A ramfs, a tmpfs without a limit, and FUSE filesystems without the call, report no blocks."""
NO_FILE_LIMIT = Absent(Reason.NOT_SUPPORTED, "the filesystem has no maximum number of files")
"""btrfs and similar filesystems allocate inodes dynamically and report 0 files. CephFS reports its files, and 2^64-1 as
free."""
NONE = "none"
"""Label of a PCI function without a driver."""


def map_filesystems(source: FetchedFiles, into: Readings) -> None:
    """Add the readings of every filesystem with its own storage."""
    mounts = source.take(plan.MOUNTINFO, parse_mountinfo, required=True)
    if isinstance(mounts, Absent):
        return
    for mount in choose_filesystems(mounts):
        labels = (printable(mount.point), printable(mount.source), printable(mount.fstype))
        into.dim("host_filesystem_read_only", labels, int(mount.read_only))
        for metric, value in _figures(source, mount).items():
            into.dim(metric, labels, value)


def _figures(source: FetchedFiles, mount: Mount) -> dict[str, int | Absent]:
    figures = source.fetched.filesystems.get(mount.point)
    names = ("size_bytes", "free_bytes", "available_bytes", "files", "files_free")
    if figures is None:
        absent = source.absence(mount.point)
        return {f"host_filesystem_{name}": absent for name in names}
    values: dict[str, int | Absent] = {f"host_filesystem_{name}": getattr(figures, name) for name in names}
    if figures.size_bytes == 0:
        values |= {f"host_filesystem_{name}": NO_SIZE for name in names if name.endswith("_bytes")}
    if figures.files == 0 or figures.files_free > figures.files:
        values["host_filesystem_files"] = values["host_filesystem_files_free"] = NO_FILE_LIMIT
    return values


def map_services(source: FetchedFiles, into: Readings) -> None:
    """Add the state of every service, as far as files show it."""
    stats: dict[int, tuple[str, str]] = {}
    for pid in source.names_under("/proc", "stat"):
        path = f"/proc/{pid}/stat"
        if pid.isascii() and pid.isdecimal() and path in source.fetched.files:
            parsed = source.take(path, parse_process_stat)
            if not isinstance(parsed, Absent):
                stats[int(pid)] = parsed
    processes = build_processes(stats)
    # sd_booted(3): the directory exists if and only if systemd is the init system.
    booted = source.fetched.errors.get(plan.SYSTEMD) == "EISDIR"
    units = frozenset(
        unit
        for service in SERVICES
        for unit in service.units
        if any(f"{folder}/{unit}.service" in source.fetched.files for folder in UNIT_FOLDERS)
    )
    for service in SERVICES:
        state = service_state(service, processes, units if booted else None)
        absent = NO_SYSTEMD if processes.complete else HIDDEN
        into.dim("host_service_state", (service.name,), absent if state is None else state)


def map_inventory(source: FetchedFiles) -> tuple[PciFunction, ...] | None:
    """Return the display controllers; None if sysfs is missing.

    A machine without a PCI bus has an empty inventory.
    """
    files, links = source.fetched.files, source.fetched.links
    if plan.PCI_BUS not in files and plan.SYSFS not in files:
        source.fail(f"{plan.PCI_BUS}: {source.fetched.errors.get(plan.PCI_BUS, 'ENOENT')}")
        return None
    functions: list[PciFunction] = []
    for address in source.names_under(plan.PCI, "class"):
        folder = f"{plan.PCI}/{address}"
        try:
            if f"{folder}/class" not in files:
                source.absence(f"{folder}/class")  # adds an error if the file exists but cannot be read
                continue
            if not is_display(files[f"{folder}/class"], f"{folder}/class"):
                continue
            if not is_address(address):
                raise WireError(folder, "is not a PCI address")
            contents = {
                name: files[f"{folder}/{name}"] for name in ("vendor", "device", "class") if f"{folder}/{name}" in files
            }
            node = source.take(f"{folder}/numa_node", parse_numa_node)
            function = parse_function(
                address,
                contents,
                driver=links.get(f"{folder}/driver"),
                physical_function=links.get(f"{folder}/physfn"),
                numa_node=None if isinstance(node, Absent) else node,
            )
            functions.append(function)
        except WireError as error:
            source.fail(str(error))
    return tuple(functions)


def map_display_devices(inventory: tuple[PciFunction, ...] | None, into: Readings) -> None:
    """Count the display controllers by vendor and driver."""
    counted = Counter((f"0x{function.vendor:04x}", function.driver or NONE) for function in inventory or ())
    for labels, number in sorted(counted.items()):
        into.dim("host_pci_display_devices", labels, number)
