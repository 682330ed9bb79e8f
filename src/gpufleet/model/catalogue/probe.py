"""Rows of the catalogue from the performance probe of a machine. Ids 700 to 779.

The probe runs once after the start of a machine or of its agent, each day, and on demand.
"""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.host import NO_MODEL, NO_SIZE
from gpufleet.model.catalogue.metric import Absence, Lane, Metric, MetricKind, Storage, Subject, ValueType

PROBE_READER = "probe"
"""Reader name of the performance probe."""

GAUGE, INFO = MetricKind.GAUGE, MetricKind.INFO
INT, FLOAT, TEXT = ValueType.INT, ValueType.FLOAT, ValueType.TEXT

NO_PACKAGE = Absence(Reason.NOT_REPORTED, "the kernel does not know the packages")
OF_CONTAINER = Absence(Reason.NOT_REPORTED, "in a container with lxcfs, the uptime is that of the container")
ABSENT_TOOL = Absence(Reason.NOT_ENABLED, "the program is not installed")
RESTRICTED = Absence(Reason.NOT_PERMITTED, "the file can have secrets, and a restricted key may not read it")
ROOT_ONLY = Absence(Reason.NOT_PERMITTED, "the kernel shows it to root only")
NO_SYSTEMD = Absence(Reason.NOT_ENABLED, "systemd does not run on the machine")
NO_PHASE = Absence(Reason.NOT_REPORTED, "systemd reports no time of this phase")
NO_DISK = Absence(Reason.NOT_SUPPORTED, "the root filesystem has no single disk, or the disk does not report it")
NO_KERNEL = Absence(Reason.NOT_REPORTED, "a container, or a soft reboot: the kernel did not start the init process")
INACTIVE = Absence(Reason.NOT_ENABLED, "no unit of this kind is active")
NO_VERSION = Absence(Reason.NOT_SUPPORTED, "nvidia-smi has no version, as on some Jetson modules")
NO_DRIVER = Absence(Reason.NO_DRIVER, "nvidia-smi cannot communicate with the driver")


def _row(
    id: int,  # noqa: A002 - the column's own name
    name: str,
    type: ValueType,  # noqa: A002 - the column's own name
    help: str,  # noqa: A002 - the column's own name
    source: str,
    *absent: Absence,
    unit: str = "",
    low: float | None = 0,
) -> Metric:
    is_text = type is TEXT
    return Metric(
        id=id,
        name=f"probe_{name}",
        kind=INFO if is_text else GAUGE,
        type=type,
        unit=unit,
        low=None if is_text else low,
        help=help,
        subjects=(Subject.MACHINE,),
        lane=Lane.STATIC,
        storage=Storage.INFO if is_text else Storage.TAIL,
        kernel=(source,),
        absent_when=absent,
    )


def _text(id: int, name: str, help: str, source: str, *absent: Absence) -> Metric:  # noqa: A002
    return _row(id, name, TEXT, help, source, *absent)


def _count(id: int, name: str, help: str, source: str, *absent: Absence) -> Metric:  # noqa: A002
    return _row(id, name, INT, help, source, *absent)


def _seconds(id: int, name: str, help: str, source: str, *absent: Absence) -> Metric:  # noqa: A002
    return _row(id, f"{name}_seconds", FLOAT, help, source, *absent, unit="seconds")


# fmt: off
PROBE_METRICS = (
    # processor and memory
    _count(700, "cpu_sockets", "Processor packages", "/sys/devices/system/cpu/*/topology", NO_PACKAGE),
    _count(701, "smt_active", "1 if simultaneous multithreading is active, else 0", "/sys/devices/system/cpu/smt"),
    _text(702, "cpu_governors", "Frequency governors with their processor counts",
          "/sys/devices/system/cpu/*/cpufreq"),
    _count(703, "numa_nodes", "NUMA nodes", "/sys/devices/system/node"),
    _text(704, "numa_cpus", "Processors of each NUMA node", "/sys/devices/system/node"),
    _text(705, "hugepages", "Huge pages of each size: reserved number", "/sys/kernel/mm/hugepages"),
    _text(706, "transparent_hugepages", "Mode of transparent huge pages", "/sys/kernel/mm/transparent_hugepage"),
    _text(707, "kernel_parameters", "Kernel parameters of tuning, IOMMU and huge pages", "/proc/cmdline", RESTRICTED),
    _text(708, "hugepages_free", "Huge pages of each size: free number", "/sys/kernel/mm/hugepages"),
    _count(709, "cpus", "Logical processors online", "/sys/devices/system/cpu/online"),
    _row(714, "memory_bytes", INT, "Memory managed by the kernel", "/proc/meminfo", unit="bytes"),
    _text(715, "cpu_model", "Model of the processor", "/proc/cpuinfo", NO_MODEL),
    # system
    _text(760, "kernel_release", "Release of the kernel", "/proc/sys/kernel/osrelease"),
    _text(761, "os_name", "Name of the operating system", "/etc/os-release"),
    _text(762, "virtualization", "Hypervisor this machine runs under, or none", "/proc/cpuinfo, DMI"),
    # disk
    _text(710, "root_filesystem", "Type of the root filesystem", "/proc/self/mountinfo"),
    _row(711, "root_bytes", INT, "Size of the root filesystem", "statvfs", NO_SIZE, unit="bytes"),
    _text(712, "root_disk_model", "Model of the root disk", "/sys/class/block/*/device/model", NO_DISK),
    _text(713, "root_disk_serial", "Serial number of the root disk", "/sys/class/block/*/device/serial", NO_DISK),
    _row(716, "root_disk_bytes", INT, "Size of the root disk", "/sys/class/block/*/size", NO_DISK, unit="bytes"),
    # devices
    _count(720, "iommu_groups", "IOMMU groups with devices; 0 without an active IOMMU", "/sys/kernel/iommu_groups"),
    _text(728, "iommu_modes", "IOMMU groups by mode of translation; identity is passthrough",
          "/sys/kernel/iommu_groups/*/type", Absence(Reason.NOT_SUPPORTED, "no IOMMU is active")),
    _text(721, "pci_acs", "PCI bridges by state of Access Control Services", "/sys/bus/pci/devices/*/config",
          ROOT_ONLY),
    _count(722, "rdma_devices", "RDMA devices, with and without ports", "/sys/class/infiniband"),
    _count(723, "pci_gpus", "NVIDIA display controllers on the PCI bus", "/sys/bus/pci/devices"),
    _text(729, "pci_links", "PCIe link of each GPU: lanes, and the maximum speed", "/sys/bus/pci/devices/*",
          Absence(Reason.NOT_SUPPORTED, "no GPU is on the PCI bus")),
    _count(724, "nvidia_peermem", "1 if the kernel module nvidia_peermem is loaded, else 0", "/proc/modules"),
    _count(725, "gdrcopy", "1 if the kernel module gdrdrv of GDRCopy is loaded, else 0", "/proc/modules"),
    _count(726, "nvidia_fs", "1 if the kernel module nvidia_fs of GPUDirect Storage is loaded, else 0",
           "/proc/modules"),
    _text(727, "nvidia_module_kind", "Kind of the NVIDIA kernel module: open or proprietary",
          "/proc/driver/nvidia/version", Absence(Reason.NOT_SUPPORTED, "the module is not loaded")),
    # driver
    _count(730, "nvidia_gpus", "GPUs by nvidia-smi", "nvidia-smi -L", ABSENT_TOOL, NO_DRIVER),
    _text(731, "nvidia_driver_version", "Driver version by nvidia-smi", "nvidia-smi", ABSENT_TOOL, NO_DRIVER,
          NO_VERSION),
    _text(732, "nvidia_cuda_version", "CUDA version by nvidia-smi", "nvidia-smi", ABSENT_TOOL, NO_DRIVER),
    _count(733, "nvidia_smi_exit_code", "Exit code of the first plain call of nvidia-smi", "nvidia-smi", ABSENT_TOOL),
    _seconds(734, "nvidia_smi_cold", "Duration of the first plain call of nvidia-smi by the probe", "nvidia-smi",
             ABSENT_TOOL, NO_DRIVER),
    _seconds(735, "nvidia_smi_warm", "Duration of the next plain call of nvidia-smi", "nvidia-smi",
             ABSENT_TOOL, NO_DRIVER),
    # containers
    _text(740, "docker_version", "Version of the Docker command", "docker --version", ABSENT_TOOL),
    _text(741, "docker_default_runtime", "Default runtime in Docker's configuration", "/etc/docker/daemon.json",
          RESTRICTED),
    _count(742, "docker_nvidia_runtime", "1 if Docker's configuration has the runtime nvidia, else 0",
           "/etc/docker/daemon.json", RESTRICTED),
    _text(743, "containerd_version", "Version of containerd", "containerd --version", ABSENT_TOOL),
    _text(744, "containerd_runtimes", "Runtimes in containerd's configuration; the default is marked with *",
          "/etc/containerd/config.toml", RESTRICTED),
    _text(745, "runc_version", "Version of runc", "runc --version", ABSENT_TOOL),
    _text(746, "nvidia_container_toolkit_version", "Version of the NVIDIA Container Toolkit", "nvidia-ctk --version",
          ABSENT_TOOL),
    _text(747, "cdi_specifications", "Files of Container Device Interface specifications", "/etc/cdi, /var/run/cdi",
          Absence(Reason.NOT_PERMITTED, "a folder is not readable by this user")),
    # boot and readiness, by the machine's own monotonic clock
    _seconds(750, "boot_firmware", "Firmware, up to the boot loader", "systemctl show", NO_SYSTEMD, NO_PHASE),
    _seconds(751, "boot_loader", "Boot loader, up to the kernel", "systemctl show", NO_SYSTEMD, NO_PHASE),
    _seconds(752, "boot_kernel", "Kernel, up to the initial RAM disk or the init process", "systemctl show",
             NO_SYSTEMD, NO_PHASE),
    _seconds(753, "boot_initrd", "Initial RAM disk, up to the init process", "systemctl show", NO_SYSTEMD, NO_PHASE),
    _seconds(754, "boot_userspace", "Init process, up to the end of the boot", "systemctl show",
             NO_SYSTEMD, NO_PHASE),
    _seconds(755, "ready_network", "Time since kernel start at which the network was online", "systemctl show",
             NO_SYSTEMD, INACTIVE, NO_KERNEL),
    _seconds(756, "ready_ssh", "Time since kernel start at which the SSH server was active", "systemctl show",
             NO_SYSTEMD, INACTIVE, NO_KERNEL),
    _seconds(757, "ready_driver", "Time since kernel start at which nvidia-persistenced was active", "systemctl show",
             NO_SYSTEMD, INACTIVE, NO_KERNEL),
    _seconds(758, "ready_containers", "Time since kernel start at which a container runtime was active",
             "systemctl show", NO_SYSTEMD, INACTIVE, NO_KERNEL),
    _seconds(759, "ready_kubelet", "Time since kernel start at which the kubelet was active", "systemctl show",
             NO_SYSTEMD, INACTIVE, NO_KERNEL),
    # clocks and channel
    _row(770, "clock_boot_seconds", FLOAT, "Start of the kernel since 1970, by the clock of the agent", "/proc/uptime",
         OF_CONTAINER, unit="seconds"),
    _row(771, "clock_boot_uncertainty_seconds", FLOAT, "Uncertainty of that time, in both directions", "/proc/uptime",
         OF_CONTAINER, unit="seconds"),
    _row(772, "clock_offset_seconds", FLOAT, "The machine's wall clock minus that of the agent", "/proc/stat btime",
         OF_CONTAINER, unit="seconds", low=None),
    _row(773, "clock_offset_uncertainty_seconds", FLOAT, "Uncertainty of that difference, in both directions",
         "/proc/stat btime", OF_CONTAINER, unit="seconds"),
    _seconds(774, "channel_latency", "Duration of reading two small files over the channel", "channel"),
)
# fmt: on

PROBE_NAMES = frozenset(metric.name for metric in PROBE_METRICS)
"""Names of the rows."""
