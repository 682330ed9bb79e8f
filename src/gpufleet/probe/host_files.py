"""Facts of the machine from files of /proc, /sys and /etc: plans of the fetches, and their parsers. Pure."""

import re
from collections import Counter
from collections.abc import Callable

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.errors import WireError
from gpufleet.model.machine import NVIDIA_VENDOR
from gpufleet.model.reading import Value
from gpufleet.ports.channel import FetchPlan
from gpufleet.probe.clocks import OF_CONTAINER, uptime_is_of_container
from gpufleet.probe.containers import CONTAINERD_CONFIG, DOCKER_CONFIG, add_runtimes
from gpufleet.probe.facts import FactList
from gpufleet.readers.host.mapping.devices import NO_SIZE
from gpufleet.readers.host.parse.kernel import parse_meminfo
from gpufleet.readers.host.parse.pci import basename, is_address, is_display, parse_numa_node
from gpufleet.readers.host.parse.storage import parse_mountinfo, root_mount
from gpufleet.readers.host.parse.text import count, decode, hexadecimal, line, number, printable
from gpufleet.readers.host.source import FetchedFiles

UPTIME = "/proc/uptime"
MEMINFO = "/proc/meminfo"
CMDLINE = "/proc/cmdline"
MODULES = "/proc/modules"
MOUNTINFO = "/proc/self/mountinfo"
SYSFS = "/sys/kernel/uevent_seqnum"
CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
HUGEPAGES = "/sys/kernel/mm/hugepages"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"
IOMMU = "/sys/kernel/iommu_groups"
INFINIBAND = "/sys/class/infiniband"
PCI = "/sys/bus/pci/devices"
NVIDIA_VERSION = "/proc/driver/nvidia/version"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
CDI_FILES = tuple(f"{folder}/*.{kind}" for folder in CDI_FOLDERS for kind in ("json", "yaml"))

MACHINE_PLAN = FetchPlan(
    files=(
        UPTIME, MEMINFO, CMDLINE, MODULES, MOUNTINFO, SYSFS, f"{CPU}/online", f"{CPU}/smt/active", THP,
        DOCKER_CONFIG, CONTAINERD_CONFIG, NVIDIA_VERSION,
        f"{CPU}/cpu[0-9]*/cpufreq/scaling_governor", f"{CPU}/cpu[0-9]*/topology/physical_package_id",
        f"{NODE}/node[0-9]*/cpulist",
        f"{HUGEPAGES}/hugepages-*/nr_hugepages", f"{HUGEPAGES}/hugepages-*/free_hugepages",
        f"{IOMMU}/*/type", f"{PCI}/*/class", f"{PCI}/*/vendor",
        *CDI_FILES,
    ),
    links=(f"{INFINIBAND}/*", f"{IOMMU}/*/devices/*"),
    filesystems=("/",),
)  # fmt: skip
"""First fetch. The files of GPUs are in `gpu_plan`."""

LINK_FILES = {
    "pci_link_width": "current_link_width",
    "pci_link_width_max": "max_link_width",
    "pci_link_speed": "current_link_speed",
    "pci_link_speed_max": "max_link_speed",
}

KERNEL_PARAMETERS = frozenset({
    "amd_iommu", "default_hugepagesz", "hugepages", "hugepagesz", "idle", "intel_idle.max_cstate", "intel_iommu",
    "intel_pstate", "amd_pstate", "iommu", "isolcpus", "kvm.nx_huge_pages", "mitigations", "nohz_full", "nosmt",
    "numa_balancing", "pci", "pcie_acs_override", "pcie_aspm", "processor.max_cstate", "rcu_nocbs",
    "transparent_hugepage", "vfio-pci.ids",
})  # fmt: skip
"""Recorded parameters. Others can have secrets."""

KERNEL_MODULES = {
    "host_nvidia_peermem": "nvidia_peermem",
    "host_gdrcopy": "gdrdrv",
    "host_nvidia_fs": "nvidia_fs",
}
"""Fact to the kernel module of a prerequisite of GPUDirect."""

UNKNOWN_PACKAGE = "-1"
"""Package of a processor if the kernel does not know it."""

NO_PACKAGE = Absent(Reason.NOT_REPORTED, "the kernel does not know the packages")

MAX_GPUS = 64
"""Maximum number of GPUs with facts of their own."""

_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s(?: PCIe)?", re.ASCII)
_CHOSEN = re.compile(r"\[([a-z]{1,20})\]", re.ASCII)

Parser = Callable[[bytes, str], Value]


def gpu_plan(addresses: tuple[str, ...]) -> FetchPlan:
    """Return the plan of GPUs by PCI address."""
    names = (*LINK_FILES.values(), "numa_node")
    return FetchPlan(
        files=tuple(f"{PCI}/{address}/{name}" for address in addresses for name in names),
        links=tuple(f"{PCI}/{address}/{name}" for address in addresses for name in ("driver", "iommu_group")),
    )


def gpu_addresses(source: FetchedFiles) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA display controllers."""
    found = []
    for address in source.names_under(PCI, "class"):
        files = source.fetched.files
        try:
            vendor = hexadecimal(decode(files.get(f"{PCI}/{address}/vendor", b"")), PCI)
            is_gpu = vendor == NVIDIA_VENDOR and is_display(files.get(f"{PCI}/{address}/class", b""), PCI)
        except WireError:
            continue
        if is_gpu and is_address(address):
            found.append(address)
    return tuple(found[:MAX_GPUS])


def add_machine_facts(source: FetchedFiles, into: FactList) -> None:
    """Add the facts of the first fetch."""

    def take(name: str, path: str, parse: Parser) -> None:
        into.add(name, source.take(path, parse), path)

    if uptime_is_of_container(source):
        into.add("host_uptime_seconds", OF_CONTAINER, UPTIME)
    else:
        take("host_uptime_seconds", UPTIME, lambda content, where: number(decode(content).partition(" ")[0], where))
    take("host_cpus", f"{CPU}/online", _count_range)
    take("host_memory_bytes", MEMINFO, _total_memory)
    take("host_transparent_hugepages", THP, _chosen_mode)
    take("host_kernel_parameters", CMDLINE, _parameters)
    smt = source.take(f"{CPU}/smt/active", line)
    into.add("host_smt_active", smt if isinstance(smt, Absent) else smt == "1", f"{CPU}/smt/active")
    _add_topology(source, into)
    _add_hugepages(source, into)
    _add_iommu_modes(source, into)
    _add_counts(source, into)
    _add_root_filesystem(source, into)
    add_runtimes(source, into)
    modules = source.take(MODULES, _module_names)
    for name, module in KERNEL_MODULES.items():
        into.add(name, modules if isinstance(modules, Absent) else module in modules.split(), MODULES)
    take("nvidia_module_kind", NVIDIA_VERSION, _module_kind)


def add_gpu_facts(source: FetchedFiles, addresses: tuple[str, ...], into: FactList) -> None:
    """Add driver, IOMMU group, NUMA node and PCIe link of each GPU."""
    for address in addresses:
        folder = f"{PCI}/{address}"
        for name, file in LINK_FILES.items():
            parse = _link_width if "width" in name else _link_speed
            into.add(name, source.take(f"{folder}/{file}", parse), f"{folder}/{file}", address)
        node = source.take(f"{folder}/numa_node", parse_numa_node)
        known_node = Absent(Reason.NOT_REPORTED, "the platform reports no node") if node is None else node
        into.add("pci_numa_node", known_node, f"{folder}/numa_node", address)
        for name, link in (("pci_driver", "driver"), ("pci_iommu_group", "iommu_group")):
            target = source.fetched.links.get(f"{folder}/{link}")
            known = source.absence(f"{folder}/{link}") if target is None else printable(basename(target))
            into.add(name, known, f"{folder}/{link}", address)


def add_link_fact(source: FetchedFiles, addresses: tuple[str, ...], into: FactList) -> None:
    """Add the PCIe links of all GPUs as one text of the machine. A part that is unknown is `?`."""

    def shown(address: str, file: str, parse: Callable[[bytes, str], float]) -> str:
        value = source.take(f"{PCI}/{address}/{file}", parse)
        return "?" if isinstance(value, Absent) else f"{value:g}"

    def link(address: str) -> str:
        width, most = (shown(address, f"{kind}_link_width", _link_width) for kind in ("current", "max"))
        speed = shown(address, "max_link_speed", lambda content, where: _link_speed(content, where) / 1e9)
        return f"{address} x{width} of x{most}, {speed} GT/s"

    none = Absent(Reason.NOT_SUPPORTED, "no GPU is on the PCI bus")
    into.add("host_pci_links", "; ".join(map(link, addresses)) or none, f"{PCI}/*/*_link_*")


def _add_topology(source: FetchedFiles, into: FactList) -> None:
    packages = set(_texts(source, f"{CPU}/", "topology/physical_package_id").values())
    unknown = NO_PACKAGE if packages else source.absence(f"{CPU}/cpu0/topology/physical_package_id")
    sockets: int | Absent = len(packages - {UNKNOWN_PACKAGE}) or unknown
    into.add("host_cpu_sockets", sockets, f"{CPU}/cpu*/topology/physical_package_id")
    governors = Counter(_texts(source, f"{CPU}/", "cpufreq/scaling_governor").values())
    shown = ", ".join(f"{name} ({total})" for name, total in sorted(governors.items()))
    into.add(
        "host_cpu_governors",
        shown or source.absence(f"{CPU}/cpu0/cpufreq/scaling_governor"),
        f"{CPU}/cpu*/cpufreq/scaling_governor",
    )
    nodes = _texts(source, f"{NODE}/", "cpulist")
    absent = source.absence(f"{NODE}/node0/cpulist")
    into.add("host_numa_nodes", len(nodes) or absent, f"{NODE}/node*/cpulist")
    ordered = sorted(nodes.items(), key=lambda item: (len(item[0]), item[0]))
    listed = "; ".join(f"{node.removeprefix('node')}: {cpus or 'none'}" for node, cpus in ordered)
    into.add("host_numa_cpus", listed or absent, f"{NODE}/node*/cpulist")


def _add_hugepages(source: FetchedFiles, into: FactList) -> None:
    for name, file in (("host_hugepages", "nr_hugepages"), ("host_hugepages_free", "free_hugepages")):
        sizes = _texts(source, f"{HUGEPAGES}/", file)
        shown = ", ".join(f"{size.removeprefix('hugepages-')}: {total}" for size, total in sorted(sizes.items()))
        into.add(name, shown or source.absence(HUGEPAGES), f"{HUGEPAGES}/*/{file}")


def _add_iommu_modes(source: FetchedFiles, into: FactList) -> None:
    """Add the mode of translation of the groups, such as `identity` for the kernel parameter `iommu=pt`."""
    modes = Counter(_texts(source, f"{IOMMU}/", "type").values())
    shown = ", ".join(f"{mode} ({total})" for mode, total in sorted(modes.items()))
    has_groups = any(path.startswith(f"{IOMMU}/") for path in source.fetched.links)
    is_inactive = SYSFS in source.fetched.files and not has_groups
    absent = Absent(Reason.NOT_SUPPORTED, "no IOMMU is active") if is_inactive else source.absence(f"{IOMMU}/0/type")
    into.add("host_iommu_modes", shown or absent, f"{IOMMU}/*/type")


def _add_counts(source: FetchedFiles, into: FactList) -> None:
    """Add numbers of devices. A folder without entries is zero only if sysfs itself is readable."""
    links = source.fetched.links
    groups = {path.removeprefix(f"{IOMMU}/").partition("/")[0] for path in links if path.startswith(f"{IOMMU}/")}
    rdma = [path for path in links if path.startswith(f"{INFINIBAND}/")]
    for name, total, pattern in (
        ("host_iommu_groups", len(groups), f"{IOMMU}/*/devices/*"),
        ("host_rdma_devices", len(rdma), f"{INFINIBAND}/*"),
        ("host_pci_gpus", len(gpu_addresses(source)), f"{PCI}/*/class"),
    ):
        if pattern in source.fetched.errors:
            into.add(name, source.absence(pattern), pattern)
        else:
            into.add(name, total if SYSFS in source.fetched.files else source.absence(SYSFS), pattern)
    _add_specifications(source, into)


def _add_specifications(source: FetchedFiles, into: FactList) -> None:
    """Add the names of CDI specifications. Those of DRA drivers are often readable by root only."""
    errors = source.fetched.errors
    hidden = next((source.absence(pattern) for pattern in CDI_FILES if pattern in errors), None)
    found = sorted(path for path in (*source.fetched.files, *errors) if path.startswith(CDI_FOLDERS))
    into.add("host_cdi_specifications", hidden or ", ".join(found) or "none", " ".join(CDI_FOLDERS))


def _add_root_filesystem(source: FetchedFiles, into: FactList) -> None:
    mounts = source.take(MOUNTINFO, parse_mountinfo)
    root = mounts if isinstance(mounts, Absent) else root_mount(mounts)
    if root is None:
        root = Absent(Reason.NO_DATA, f"{MOUNTINFO} has no root mount")
    into.add("host_root_filesystem", root if isinstance(root, Absent) else root.fstype, MOUNTINFO)
    sizes = source.fetched.filesystems.get("/")
    into.add("host_root_bytes", source.absence("/") if sizes is None else sizes.size_bytes or NO_SIZE, "statvfs /")


def _texts(source: FetchedFiles, folder: str, file: str) -> dict[str, str]:
    """Return the text of `folder/X/file` for each X."""
    paths = {name: f"{folder}{name}/{file}" for name in source.names_under(folder.rstrip("/"), file)}
    files = source.fetched.files
    return {name: printable(decode(files[path])) for name, path in paths.items() if path in files}


def _count_range(content: bytes, where: str) -> int:
    """Return the number of entries of a list such as `0-3,8`."""
    total = 0
    for part in decode(content).strip().split(","):
        found = _RANGE.fullmatch(part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise WireError(where, f"{printable(part)[:40]!r} is not a range")
        total += int(found[2] or found[1]) - int(found[1]) + 1
    return total


def _total_memory(content: bytes, where: str) -> int:
    total = parse_meminfo(content, where).get("MemTotal")
    if total is None:
        raise WireError(where, "MemTotal is missing")
    return total


def _chosen_mode(content: bytes, where: str) -> str:
    found = _CHOSEN.search(decode(content))
    if found is None:
        raise WireError(where, "no mode is in brackets")
    return found[1]


def _parameters(content: bytes, _: str) -> str:
    kept = [part for part in decode(content).split() if part.partition("=")[0] in KERNEL_PARAMETERS]
    return printable(" ".join(sorted(kept))) or "none"


def _module_names(content: bytes, _: str) -> str:
    return " ".join(row.partition(" ")[0] for row in decode(content).splitlines())


def _module_kind(content: bytes, where: str) -> str:
    text = decode(content)
    if "NVIDIA" not in text:
        raise WireError(where, "not the version of the NVIDIA module")
    return "open" if "Open Kernel Module" in text else "proprietary"


def _link_width(content: bytes, where: str) -> int:
    width = count(decode(content), where)
    if not 1 <= width <= 32:
        raise WireError(where, f"{width} is not a number of lanes")
    return width


def _link_speed(content: bytes, where: str) -> float:
    found = _SPEED.fullmatch(decode(content).strip())
    if found is None:
        raise WireError(where, f"{printable(decode(content))[:40]!r} is not a speed")
    return float(found[1]) * 1e9
