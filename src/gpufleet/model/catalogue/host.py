"""Rows of the catalogue about the machine itself. Ids 200 to 399."""

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue.metric import (
    Absence,
    Lane,
    Metric,
    MetricKind,
    Storage,
    Subject,
    ValueType,
)

GAUGE, COUNTER, STATE, INFO = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.STATE, MetricKind.INFO
INT, FLOAT, ENUM, TEXT = ValueType.INT, ValueType.FLOAT, ValueType.ENUM, ValueType.TEXT
FAST, SLOW, STATIC = Lane.FAST, Lane.SLOW, Lane.STATIC
CORE, TAIL, DIM = Storage.CORE, Storage.TAIL, Storage.DIM

FIRST_ROUND = Absence(Reason.NO_DATA, "the first round: a share of time needs two readings")
OF_GVISOR = Absence(Reason.NOT_REPORTED, "in a sandbox of gVisor")
NO_BUFFERS = Absence(Reason.NOT_REPORTED, "in a container with lxcfs or a sandbox of gVisor")
NO_MODES = Absence(
    Reason.NOT_REPORTED,
    "in a sandbox of gVisor; in a container with lxcfs and cgroup v1, for modes other than user, system and idle",
)
NO_MODEL = Absence(Reason.NOT_REPORTED, "the processor reports no model, or gVisor hides it")
NO_SIZE = Absence(Reason.NOT_SUPPORTED, "the filesystem reports no size")
NO_FILE_LIMIT = Absence(Reason.NOT_SUPPORTED, "the filesystem has no maximum number of files, such as btrfs and CephFS")
NO_BLOCK_DEVICE = Absence(Reason.NOT_SUPPORTED, "the root filesystem has no block device")
NO_DISK = Absence(Reason.NOT_SUPPORTED, "the root filesystem has no single disk, or the disk does not report it")
NO_PSI = Absence(Reason.NOT_SUPPORTED, "the kernel was built or booted without pressure stall information")
NO_LINK = Absence(Reason.NO_DATA, "the interface has no link or is virtual: the kernel does not report it")
PORT_DOWN = Absence(Reason.NO_DATA, "the port is down")
NO_COUNTER = Absence(Reason.NOT_SUPPORTED, "the adapter does not count it")
CONSTANT_ERRORS = Absence(
    Reason.NOT_SUPPORTED,
    "it is 0, and the driver fills it with a constant: hfi1 some counters, mlx4 all with Ethernet or virtual functions",
)
ROOT_ONLY = Absence(Reason.NOT_PERMITTED, "the kernel shows it to root only")
NO_PROVIDER = Absence(Reason.NOT_SUPPORTED, "DMI names no known cloud provider")
STALE_DATA = Absence(Reason.IDENTITY_MISMATCH, "cloud-init's data are of another instance than DMI's")
CLOUD = "/sys/class/dmi/id, /run/cloud-init/instance-data.json"

INTERFACE_CLASSES = (
    "physical",
    "virtual_function",
    "bridge",
    "bond",
    "tap",
    "veth",
    "loopback",
    "tmfifo",
    "virtual",
    "unknown",
)
"""Values of the label `class` of network metrics."""

SERVICE_STATES = ("running", "not_running", "failed", "not_installed")
"""Running: its process exists. Not running: installed without a process. Failed: reported by systemd."""

NO_CONFIDENTIAL = Absence(Reason.NOT_SUPPORTED, "the chip or the driver does not support confidential computing")
NOT_CONFIDENTIAL = Absence(Reason.NOT_SUPPORTED, "confidential computing is off or not supported")


def _row(
    id: int,  # noqa: A002 - the column's own name
    name: str,
    kind: MetricKind,
    type: ValueType,  # noqa: A002 - the column's own name
    unit: str,
    help: str,  # noqa: A002 - the column's own name
    kernel: str,
    *,
    lane: Lane = FAST,
    storage: Storage = TAIL,
    low: float | None = 0,
    high: float | None = None,
    dims: tuple[str, ...] = (),
    states: tuple[str, ...] = (),
    absent: tuple[Absence, ...] = (),
    otel: str = "",
) -> Metric:
    return Metric(
        id=id,
        name=name,
        kind=kind,
        type=type,
        unit=unit,
        low=low,
        high=high,
        dims=dims,
        help=help,
        subjects=(Subject.MACHINE,),
        lane=lane,
        storage=DIM if dims else storage,
        states=states,
        kernel=(kernel,),
        absent_when=absent,
        otel=otel,
    )


def _info(id: int, name: str, help: str, kernel: str, *, absent: tuple[Absence, ...] = ()) -> Metric:  # noqa: A002
    return _row(id, name, INFO, TEXT, "", help, kernel, lane=STATIC, storage=Storage.INFO, low=None, absent=absent)


# fmt: off
HOST_METRICS = (
    # processor
    _row(200, "host_cpu_utilization_ratio", GAUGE, FLOAT, "ratio",
         "Share of processor time not idle since the previous round", "/proc/stat", high=1, storage=CORE,
         absent=(FIRST_ROUND, OF_GVISOR)),
    _row(201, "host_cpu_seconds_total", COUNTER, FLOAT, "seconds", "Processor time spent by core and mode",
         "/proc/stat", dims=("cpu", "mode"), otel="system.cpu.time", absent=(NO_MODES,)),
    _row(202, "host_cpus", GAUGE, INT, "", "Logical processors online", "/proc/stat",
         otel="system.cpu.logical.count"),
    _row(203, "host_load_1m", GAUGE, FLOAT, "", "Runnable and blocked tasks, averaged over 1 minute",
         "/proc/loadavg", storage=CORE, absent=(OF_GVISOR,)),
    _row(204, "host_load_5m", GAUGE, FLOAT, "", "Runnable and blocked tasks, averaged over 5 minutes",
         "/proc/loadavg", absent=(OF_GVISOR,)),
    _row(205, "host_load_15m", GAUGE, FLOAT, "", "Runnable and blocked tasks, averaged over 15 minutes",
         "/proc/loadavg", absent=(OF_GVISOR,)),
    _row(206, "host_boot_timestamp_seconds", GAUGE, INT, "seconds", "When the kernel booted, since 1970",
         "/proc/stat btime", lane=SLOW),
    # memory
    _row(210, "host_memory_total_bytes", GAUGE, INT, "bytes", "Memory managed by the kernel", "/proc/meminfo",
         storage=CORE, otel="system.memory.limit"),
    _row(211, "host_memory_available_bytes", GAUGE, INT, "bytes",
         "Memory available to a new program without swapping", "/proc/meminfo", storage=CORE),
    _row(212, "host_memory_free_bytes", GAUGE, INT, "bytes", "Unused memory", "/proc/meminfo"),
    _row(213, "host_memory_buffers_bytes", GAUGE, INT, "bytes", "Memory in block buffers", "/proc/meminfo",
         absent=(NO_BUFFERS,)),
    _row(214, "host_memory_cached_bytes", GAUGE, INT, "bytes", "Memory in the page cache", "/proc/meminfo"),
    _row(215, "host_swap_total_bytes", GAUGE, INT, "bytes", "Swap space", "/proc/meminfo"),
    _row(216, "host_swap_free_bytes", GAUGE, INT, "bytes", "Swap space free", "/proc/meminfo"),
    # pressure
    _row(220, "host_pressure_ratio", GAUGE, FLOAT, "ratio",
         "Share of time in which some or all tasks waited for a resource, averaged over a window",
         "/proc/pressure", high=1, dims=("resource", "share", "window"), absent=(NO_PSI,)),
    _row(221, "host_pressure_seconds_total", COUNTER, FLOAT, "seconds",
         "Time in which some or all tasks waited for a resource", "/proc/pressure",
         dims=("resource", "share"), absent=(NO_PSI,)),
    # filesystems
    _row(230, "host_filesystem_size_bytes", GAUGE, INT, "bytes", "Size of the filesystem",
         "statvfs", lane=SLOW, dims=("mountpoint", "device", "fstype"), otel="system.filesystem.limit",
         absent=(NO_SIZE,)),
    _row(231, "host_filesystem_free_bytes", GAUGE, INT, "bytes", "Space free, root's reserve included",
         "statvfs", lane=SLOW, dims=("mountpoint", "device", "fstype"), absent=(NO_SIZE,)),
    _row(232, "host_filesystem_available_bytes", GAUGE, INT, "bytes", "Space free for everyone",
         "statvfs", lane=SLOW, dims=("mountpoint", "device", "fstype"), absent=(NO_SIZE,)),
    _row(233, "host_filesystem_files", GAUGE, INT, "", "Maximum number of files (inodes)",
         "statvfs", lane=SLOW, dims=("mountpoint", "device", "fstype"), absent=(NO_FILE_LIMIT,)),
    _row(234, "host_filesystem_files_free", GAUGE, INT, "", "Free file entries (inodes)",
         "statvfs", lane=SLOW, dims=("mountpoint", "device", "fstype"), absent=(NO_FILE_LIMIT,)),
    _row(235, "host_filesystem_read_only", GAUGE, INT, "", "1 if the whole filesystem is read-only, else 0",
         "/proc/self/mounts", lane=SLOW, high=1, dims=("mountpoint", "device", "fstype")),
    # network
    _row(240, "host_network_up", GAUGE, INT, "", "1 if the interface is operational, else 0",
         "/sys/class/net/*/operstate", high=1, dims=("interface", "class")),
    _row(241, "host_network_speed_bytes_per_second", GAUGE, INT, "bytes_per_second", "Speed of the link",
         "/sys/class/net/*/speed", dims=("interface", "class"), absent=(NO_LINK,)),
    _row(242, "host_network_receive_bytes_total", COUNTER, INT, "bytes", "Bytes received",
         "/sys/class/net/*/statistics", dims=("interface", "class"), otel="system.network.io"),
    _row(243, "host_network_transmit_bytes_total", COUNTER, INT, "bytes", "Bytes sent",
         "/sys/class/net/*/statistics", dims=("interface", "class"), otel="system.network.io"),
    _row(244, "host_network_receive_packets_total", COUNTER, INT, "", "Packets received",
         "/sys/class/net/*/statistics", dims=("interface", "class")),
    _row(245, "host_network_transmit_packets_total", COUNTER, INT, "", "Packets sent",
         "/sys/class/net/*/statistics", dims=("interface", "class")),
    _row(246, "host_network_receive_errors_total", COUNTER, INT, "", "Packets received with errors",
         "/sys/class/net/*/statistics", dims=("interface", "class"), otel="system.network.errors"),
    _row(247, "host_network_transmit_errors_total", COUNTER, INT, "", "Packets that failed to be sent",
         "/sys/class/net/*/statistics", dims=("interface", "class"), otel="system.network.errors"),
    _row(248, "host_network_receive_drops_total", COUNTER, INT, "", "Packets dropped on receipt",
         "/sys/class/net/*/statistics", dims=("interface", "class"), otel="system.network.packet.dropped"),
    _row(249, "host_network_transmit_drops_total", COUNTER, INT, "", "Packets dropped before sending",
         "/sys/class/net/*/statistics", dims=("interface", "class"), otel="system.network.packet.dropped"),
    _row(250, "host_network_receive_bytes_per_second", GAUGE, FLOAT, "bytes_per_second",
         "Rate of receipt, if a source reports rates and no counters", "Netdata net.*", dims=("interface", "class")),
    _row(251, "host_network_transmit_bytes_per_second", GAUGE, FLOAT, "bytes_per_second",
         "Rate of sending, if a source reports rates and no counters", "Netdata net.*", dims=("interface", "class")),
    # InfiniBand and RoCE
    _row(260, "host_infiniband_port_state", STATE, ENUM, "", "Logical state of the port",
         "/sys/class/infiniband/*/ports/*/state", low=None,
         dims=("device", "port", "link_layer", "interface"),
         states=("nop", "down", "init", "armed", "active", "active_defer")),
    _row(261, "host_infiniband_rate_bytes_per_second", GAUGE, INT, "bytes_per_second", "Speed of the port",
         "/sys/class/infiniband/*/ports/*/rate", dims=("device", "port", "link_layer", "interface"),
         absent=(PORT_DOWN,)),
    _row(262, "host_infiniband_receive_bytes_total", COUNTER, INT, "bytes", "Bytes received by the port",
         "counters/port_rcv_data (times 4)", dims=("device", "port", "link_layer", "interface"),
         absent=(NO_COUNTER,)),
    _row(263, "host_infiniband_transmit_bytes_total", COUNTER, INT, "bytes", "Bytes sent by the port",
         "counters/port_xmit_data (times 4)", dims=("device", "port", "link_layer", "interface"),
         absent=(NO_COUNTER,)),
    _row(264, "host_infiniband_errors_total", COUNTER, INT, "", "Errors of the port by the kernel's counter name",
         "counters/*", dims=("device", "port", "link_layer", "interface", "counter"),
         absent=(NO_COUNTER, CONSTANT_ERRORS)),
    # services and inventory
    _row(270, "host_service_state", STATE, ENUM, "", "State of a service that a GPU node depends on",
         "/proc, /run/systemd, unit files", lane=SLOW, low=None, dims=("service",), states=SERVICE_STATES),
    _row(271, "host_pci_display_devices", GAUGE, INT, "", "Display and 3D controllers on the PCI bus by bound driver",
         "/sys/bus/pci/devices", lane=SLOW, dims=("vendor", "driver")),
    # node in Kubernetes and in a cloud
    _info(272, "host_k8s_node_name", "Name of the node in Kubernetes",
          "configuration, pod's token, NODE_NAME, kubelet's client certificate"),
    _info(273, "host_k8s_node_uid", "UID of the node in Kubernetes", "configuration, pod's token"),
    _info(274, "host_cloud_provider", "Cloud provider, as in OpenTelemetry's cloud.provider", "/sys/class/dmi/id",
          absent=(NO_PROVIDER,)),
    _info(275, "host_instance_id", "Instance id given by the cloud provider", CLOUD, absent=(NO_PROVIDER, STALE_DATA)),
    _info(276, "host_instance_type", "Instance type given by the cloud provider", CLOUD,
          absent=(NO_PROVIDER, STALE_DATA)),
    _info(277, "host_cloud_region", "Region of the cloud provider", "/run/cloud-init/instance-data.json",
          absent=(NO_PROVIDER, STALE_DATA)),
    _info(278, "host_cloud_zone", "Availability zone of the cloud provider", "/run/cloud-init/instance-data.json",
          absent=(NO_PROVIDER, STALE_DATA)),
    # identity
    _info(280, "host_hostname", "Host name", "/proc/sys/kernel/hostname"),
    _info(281, "host_machine_id", "Id of the installation", "/etc/machine-id"),
    _info(282, "host_boot_id", "Random id of this boot", "/proc/sys/kernel/random/boot_id"),
    _info(283, "host_system_uuid", "UUID of the system from DMI", "/sys/class/dmi/id/product_uuid",
          absent=(ROOT_ONLY,)),
    _info(284, "host_system_serial", "Serial number of the system from DMI", "/sys/class/dmi/id/product_serial",
          absent=(ROOT_ONLY,)),
    _info(285, "host_system_vendor", "Vendor of the system", "/sys/class/dmi/id/sys_vendor"),
    _info(286, "host_product_name", "Product name of the system", "/sys/class/dmi/id/product_name"),
    _info(287, "host_bios_version", "Version of the system's firmware", "/sys/class/dmi/id/bios_version"),
    _info(288, "host_kernel_release", "Release of the kernel", "/proc/sys/kernel/osrelease"),
    _info(289, "host_os_name", "Name of the operating system", "/etc/os-release"),
    _info(290, "host_cpu_model", "Model of the processor", "/proc/cpuinfo", absent=(NO_MODEL,)),
    _info(291, "host_virtualization", "Hypervisor this machine runs under, or none",
          "/proc/cpuinfo hypervisor flag, DMI, /sys/hypervisor"),
    _info(292, "host_container", "Container engine this process runs in, or none",
          "/run/systemd/container, /proc/1/environ, /.dockerenv, /proc/self/cgroup"),
    _info(293, "host_root_device", "Block device behind the root filesystem", "/proc/self/mountinfo",
          absent=(NO_BLOCK_DEVICE,)),
    _info(294, "host_root_disk_model", "Model of the disk behind the root filesystem",
          "/sys/class/block/*/device/model", absent=(NO_DISK,)),
    _info(295, "host_root_disk_serial", "Serial number of the disk behind the root filesystem",
          "/sys/class/block/*/device/serial", absent=(NO_DISK,)),
    _info(296, "host_nvidia_kernel_driver_version", "Version of the loaded NVIDIA kernel driver",
          "/sys/module/nvidia/version"),
    _row(297, "host_root_disk_bytes", GAUGE, INT, "bytes", "Size of the disk behind the root filesystem",
         "/sys/class/block/*/size", lane=STATIC, absent=(NO_DISK,)),
    # the NVIDIA stack of the machine, read through NVML
    _info(300, "nvidia_driver_version", "Version of the driver", "nvmlSystemGetDriverVersion"),
    _info(301, "nvidia_library_version", "Version of the management library", "nvmlSystemGetNVMLVersion"),
    _info(302, "nvidia_cuda_version", "Newest CUDA version the driver supports",
          "nvmlSystemGetCudaDriverVersion"),
    _row(303, "nvidia_devices", GAUGE, INT, "", "GPUs visible to this process through the driver",
         "nvmlDeviceGetCount_v2"),
    _row(304, "nvidia_driver_state", STATE, ENUM, "", "State of the driver as determined by its reader",
         "nvmlInitWithFlags", low=None,
         states=("ok", "no_library", "no_driver", "mismatch", "no_supported_gpu", "no_access", "hung", "error")),
    _row(500, "nvidia_confidential_environment", STATE, ENUM, "", "Environment of confidential computing",
         "nvmlSystemGetConfComputeState", lane=STATIC, low=None, states=("unavailable", "simulation", "production"),
         absent=(NO_CONFIDENTIAL,)),
    _row(501, "nvidia_confidential_computing", STATE, ENUM, "", "Whether confidential computing is on",
         "nvmlSystemGetConfComputeState", lane=STATIC, low=None, states=("disabled", "enabled"),
         absent=(NO_CONFIDENTIAL,)),
    _row(502, "nvidia_confidential_devtools", STATE, ENUM, "",
         "Whether developer tools are enabled in confidential computing",
         "nvmlSystemGetConfComputeState", lane=STATIC, low=None, states=("off", "on"), absent=(NO_CONFIDENTIAL,)),
    _row(503, "nvidia_confidential_multi_gpu", STATE, ENUM, "", "Multi-GPU mode of confidential computing",
         "nvmlSystemGetConfComputeSettings", lane=STATIC, low=None, states=("none", "protected_pcie", "nvlink"),
         absent=(NO_CONFIDENTIAL,)),
    _row(504, "nvidia_confidential_gpus_ready", GAUGE, INT, "", "1 if confidential GPUs accept work, else 0",
         "nvmlSystemGetConfComputeGpusReadyState", lane=STATIC, high=1, absent=(NOT_CONFIDENTIAL,)),
    # a DCGM host engine on the machine
    _info(310, "dcgm_version", "Version of the host engine", "DCGM HOSTENGINE_VERSION"),
    _row(311, "dcgm_devices", GAUGE, INT, "", "GPUs reported by the host engine", "DCGM GET_ENTITY_GROUP_ENTITIES"),
    _row(312, "dcgm_clock_offset_seconds", GAUGE, FLOAT, "seconds",
         "Clock of the engine's machine minus the reader's, at the instant of reading", "DCGM value timestamps",
         low=None),
    _row(313, "dcgm_compatibility", STATE, ENUM, "",
         "Supported request version for latest values: first choice, an older or newer one, or none",
         "DCGM ENTITIES_GET_LATEST", lane=STATIC, low=None, states=("first_choice", "fallback", "incompatible")),
)
# fmt: on
