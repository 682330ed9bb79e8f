"""Paths of each lane. Paths that depend on earlier results are requested by `fetch.py`."""

import msgspec

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
INSTANCE_DATA = "/run/cloud-init/instance-data.json"
POD_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
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
        f"{INFINIBAND}/*/device/net/*/dev_port", f"{INFINIBAND}/*/device/device",
    ),
    links=(
        f"{NET}/*/device", f"{NET}/*/device/driver", f"{NET}/*/device/physfn", f"{INFINIBAND}/*/device/driver",
    ),
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

_DMI_FILES = (
    "product_uuid", "product_serial", "sys_vendor", "product_name", "bios_version", "board_asset_tag",
    "chassis_asset_tag",
)  # fmt: skip

_STATIC = FetchPlan(
    files=(
        BOOT_ID, HOSTNAME, MACHINE_ID, KERNEL_RELEASE, *OS_RELEASE, CPUINFO, MOUNTINFO, NVIDIA_VERSION,
        *(f"{DMI}/{name}" for name in _DMI_FILES),
        HYPERVISOR, CLOCKS, SYSTEMD_CONTAINER, CONTAINERENV, DOCKERENV, INIT_ENVIRON, CGROUP, KERNEL_THREADS,
        INSTANCE_DATA, *_PCI_FILES,
    ),
    max_file_bytes=8 << 20,
)  # fmt: skip

PLANS = {Lane.FAST: _FAST, Lane.SLOW: _SLOW, Lane.STATIC: _STATIC}
"""First fetch of each lane. 8 MiB per file are enough for hundreds of mounts or processors."""


CLIENT_CERTIFICATE = "kubelet-client-current.pem"
"""File of the kubelet's client certificate, in its folder of certificates."""

NODE_VARIABLE = "NODE_NAME"
"""Environment variable with the name of a pod's node, from the downward API."""

INSTANCE_METRICS = (
    "host_cloud_provider", "host_instance_id", "host_instance_type", "host_cloud_region", "host_cloud_zone",
)  # fmt: skip


class KubernetesNode(msgspec.Struct, frozen=True, kw_only=True):
    """Sources of this machine's name in Kubernetes.

    Attributes:
        name, uid: by the configuration; empty if unknown.
        pod_node: node of the pod that this process runs in, by `NODE_VARIABLE`; empty if unknown.
        certificate: path of the kubelet's client certificate.
    """

    name: str = ""
    uid: str = ""
    pod_node: str = ""
    certificate: str = f"/var/lib/kubelet/pki/{CLIENT_CERTIFICATE}"


def kubernetes_plan(node: KubernetesNode) -> FetchPlan:
    """Return the files with the node's name. The certificate's file has a private key and is read only if needed."""
    is_named = bool(node.name or node.pod_node)
    return FetchPlan(files=(POD_TOKEN,) if is_named else (POD_TOKEN, node.certificate), max_file_bytes=1 << 17)


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
    """Return the fetch plan of a disk's identity and size.

    SCSI and NVMe have it on the device, virtio on the disk, and udev in its properties.
    """
    return FetchPlan(
        files=(
            f"{BLOCK}/{name}/device/[m]odel", f"{BLOCK}/{name}/device/[s]erial", f"{BLOCK}/{name}/[s]erial",
            f"{BLOCK}/{name}/[s]ize", f"/run/udev/data/[b]{device}",
        ),
    )  # fmt: skip
