"""Paths of each lane. Paths that depend on earlier results are requested by `fetch.py`."""

from gpufleet.model.catalogue.metric import Lane
from gpufleet.ports.channel import FetchPlan
from gpufleet.readers.host.parse.network import ERROR_COUNTERS
from gpufleet.readers.host.parse.services import SERVICES, UNIT_FOLDERS

BOOT_ID = "/proc/sys/kernel/random/boot_id"
HOSTNAME = "/proc/sys/kernel/hostname"
KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
STAT = "/proc/stat"
LOADAVG = "/proc/loadavg"
MEMINFO = "/proc/meminfo"
CPUINFO = "/proc/cpuinfo"
MOUNTINFO = "/proc/self/mountinfo"
CGROUP = "/proc/self/cgroup"
INIT_ENVIRON = "/proc/1/environ"
KERNEL_THREADS = "/proc/2/stat"
PRESSURE = "/proc/pressure"
NET = "/sys/class/net"
INFINIBAND = "/sys/class/infiniband"
PCI = "/sys/bus/pci/devices"
PCI_BUS = "/sys/bus/pci/drivers_autoprobe"
SYSFS = "/sys/kernel/uevent_seqnum"
BLOCK = "/sys/class/block"
DMI = "/sys/class/dmi/id"
HYPERVISOR = "/sys/hypervisor/type"
CLOCKS = "/sys/devices/system/clocksource/clocksource0/available_clocksource"
NVIDIA_VERSION = "/sys/module/nvidia/version"
SYSTEMD = "/run/systemd/system"
SYSTEMD_CONTAINER = "/run/systemd/container"
DOCKERENV = "/.dockerenv"
CONTAINERENV = "/run/.containerenv"
MACHINE_ID = "/etc/machine-id"
OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")

NET_FILES = (
    "operstate", "carrier", "speed", "type", "ifindex", "iflink", "uevent", "tun_flags", "phys_port_name",
    "bridge/bridge_id", "bonding/mode",
)  # fmt: skip
NET_COUNTERS = ("bytes", "packets", "errors", "dropped")
PORT_FILES = ("state", "rate", "link_layer", "gid_attrs/ndevs/0", "counters/port_rcv_data", "counters/port_xmit_data")

_FAST = FetchPlan(
    files=(
        BOOT_ID, STAT, LOADAVG, MEMINFO, f"{PRESSURE}/*",
        *(f"{NET}/*/{name}" for name in NET_FILES),
        *(f"{NET}/*/statistics/{way}_{name}" for way in ("rx", "tx") for name in NET_COUNTERS),
        *(f"{INFINIBAND}/*/ports/*/{name}" for name in PORT_FILES),
        *(f"{INFINIBAND}/*/ports/*/counters/{name}" for name in ERROR_COUNTERS),
        f"{INFINIBAND}/*/device/net/*/dev_port",
    ),
    links=(f"{NET}/*/device", f"{NET}/*/device/driver", f"{NET}/*/device/physfn"),
)  # fmt: skip

_PCI_FILES = (PCI_BUS, SYSFS, f"{PCI}/*/class")

_SLOW = FetchPlan(
    files=(
        BOOT_ID, STAT, MOUNTINFO, SYSTEMD, "/proc/[0-9]*/stat",
        *(f"{folder}/{unit}.service" for folder in UNIT_FOLDERS for service in SERVICES for unit in service.units),
        *_PCI_FILES,
    ),
    max_file_bytes=8 << 20,
)  # fmt: skip

_STATIC = FetchPlan(
    files=(
        BOOT_ID, HOSTNAME, MACHINE_ID, KERNEL_RELEASE, *OS_RELEASE, CPUINFO, MOUNTINFO, NVIDIA_VERSION,
        *(f"{DMI}/{name}" for name in ("product_uuid", "product_serial", "sys_vendor", "product_name", "bios_version")),
        HYPERVISOR, CLOCKS, SYSTEMD_CONTAINER, CONTAINERENV, DOCKERENV, INIT_ENVIRON, CGROUP, KERNEL_THREADS,
        *_PCI_FILES,
    ),
    max_file_bytes=8 << 20,
)  # fmt: skip

PLANS = {Lane.FAST: _FAST, Lane.SLOW: _SLOW, Lane.STATIC: _STATIC}
"""First fetch of each lane. 8 MiB per file are enough for hundreds of mounts or processors."""


def pci_plan(addresses: tuple[str, ...]) -> FetchPlan:
    """Return the fetch plan of display controllers; optional files are patterns, which may match nothing."""
    return FetchPlan(
        files=tuple(f"{PCI}/{address}/{name}" for address in addresses for name in ("vendor", "device", "numa_nod[e]")),
        links=tuple(f"{PCI}/{address}/{name}" for address in addresses for name in ("drive[r]", "physf[n]")),
    )


def block_plan(name: str) -> FetchPlan:
    """Return the fetch plan of a block device and its underlying devices."""
    return FetchPlan(
        files=(f"{BLOCK}/{name}/dev", f"{BLOCK}/{name}/[p]artition"),
        links=(f"{BLOCK}/{name}", f"{BLOCK}/{name}/slaves/*"),
    )


def disk_plan(name: str, device: str) -> FetchPlan:
    """Return the fetch plan of a disk's identity.

    SCSI and NVMe have it on the device, virtio on the disk, and udev in its properties.
    """
    return FetchPlan(
        files=(
            f"{BLOCK}/{name}/device/[m]odel", f"{BLOCK}/{name}/device/[s]erial", f"{BLOCK}/{name}/[s]erial",
            f"/run/udev/data/[b]{device}",
        ),
    )  # fmt: skip
