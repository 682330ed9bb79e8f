"""Dialect of lablup's all-smi.

It covers both generations of labels: `uuid`, `index` before 2026-04; `gpu_uuid`, `gpu_index` since.

Names, labels and units are from its renderers at b92ea0a; no page of a running server was seen. Only its mock and tests
print families of vGPU and MIG; its server never fills them.

Utilisation, power and memory are 0 if the driver returned an error, and utilisation is 0 in MIG mode. Such a 0 is
absent: that of utilisation and used memory cannot be distinguished from that of an idle GPU. On a page that gpufleet
wrote, a 0 is the driver's value, and `unread` families are imported, too. If the driver did not return the UUID or name
of a GPU, all-smi writes `GPU-` and its index, or `Unknown GPU`. Neither is used, nor is the constant that its reader
for Jetson writes as UUID.
"""

import re
from collections.abc import Mapping

from gpufleet.dialects.dialect import Dialect, FamilyMapping, SeriesSubject, small_number, table, text_of
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Subject
from gpufleet.model.catalogue.instances import ARR_MODES, SCHEDULER_POLICIES
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.view import Side, View, ViewKind, normalise_uuid

MHZ = 1_000_000
GPU, MIG, VGPU, MACHINE = (Subject.GPU,), (Subject.MIG,), (Subject.VGPU,), (Subject.MACHINE,)

_FALSE = "0 also if the query failed"
_VAGUE = "a number also for an unknown state"
_FROZEN = "read only once at start"
_PAST = "an average over the lifetime of a process, not a current value"
_DEFAULT = "2 if the mode is on by default, whether it is on or not"
_UNDEFINED = "the driver does not define it"
_OF_POWER = "integrated from power samples, not counted by the device"


def _row(
    of: tuple[Subject, ...],
    name: str,
    metric: str,
    *,
    times: int = 1,
    over: int = 1,
    labels: tuple[str, ...] = (),
    states: tuple[str, ...] = (),
    zero: Reason | None = None,
    counter: bool = False,
    unread: str = "",
) -> FamilyMapping:
    return FamilyMapping(
        name=f"all_smi_{name}",
        metric=metric,
        of=of,
        times=times,
        over=over,
        labels=labels,
        states=states,
        zero=zero,
        counter=counter,
        unread=unread,
    )


def _threshold(name: str, threshold: str) -> FamilyMapping:
    name = f"gpu_temperature_threshold_{name}_celsius"
    return _row(GPU, name, "gpu_temperature_threshold_celsius", labels=(threshold,))


_ENABLED = ("disabled", "enabled")

FAMILIES = table(
    _row(GPU, "gpu_utilization", "gpu_utilization_ratio", over=100, zero=Reason.AMBIGUOUS_ZERO),
    _row(GPU, "gpu_memory_used_bytes", "gpu_memory_used_bytes", zero=Reason.AMBIGUOUS_ZERO),
    _row(GPU, "gpu_memory_total_bytes", "gpu_memory_total_bytes", zero=Reason.NO_DATA),
    _row(GPU, "gpu_temperature_celsius", "gpu_temperature_celsius", zero=Reason.NOT_SUPPORTED),
    _row(GPU, "gpu_power_consumption_watts", "gpu_power_watts", zero=Reason.NO_DATA),
    _row(GPU, "gpu_frequency_mhz", "gpu_graphics_clock_hertz", times=MHZ, zero=Reason.NOT_SUPPORTED),
    _row(GPU, "gpu_clock_graphics_max_mhz", "gpu_graphics_clock_max_hertz", times=MHZ),
    _row(GPU, "gpu_clock_memory_max_mhz", "gpu_memory_clock_max_hertz", times=MHZ),
    _row(GPU, "gpu_pcie_gen_current", "gpu_pcie_link_generation", unread=_FROZEN),
    _row(GPU, "gpu_pcie_width_current", "gpu_pcie_link_width", unread=_FROZEN),
    _row(GPU, "gpu_power_limit_current_watts", "gpu_power_limit_watts", unread=_FROZEN),
    _row(GPU, "gpu_power_limit_max_watts", "gpu_power_limit_max_watts"),
    _row(GPU, "gpu_performance_state", "gpu_performance_state"),
    _threshold("slowdown", "slowdown"),
    _threshold("shutdown", "shutdown"),
    _threshold("max_operating", "gpu_max"),
    _threshold("acoustic", "acoustic_current"),
    _row(GPU, "gpu_numa_node_id", "gpu_memory_numa_node"),
    _row(GPU, "gpu_gsp_firmware_mode", "gpu_gsp_firmware_mode", states=_ENABLED, unread=_DEFAULT),
    _row(GPU, "gpu_sm_occupancy", "gpu_sm_occupancy_ratio"),
    _row(GPU, "gpu_memory_bandwidth_utilization", "gpu_dram_activity_ratio"),
    _row(GPU, "gpu_mig_mode", "gpu_mig_mode", states=_ENABLED, unread=_FROZEN),
    _row(GPU, "vgpu_host_mode", "gpu_vgpu_host_mode", states=("non_sriov", "sriov"), unread=_VAGUE),
    _row(GPU, "vgpu_scheduler_state", "gpu_vgpu_scheduler_arr_mode", states=ARR_MODES[:3], unread=_FALSE),
    _row(GPU, "vgpu_scheduler_policy", "gpu_vgpu_scheduler_policy", states=SCHEDULER_POLICIES, unread=_FALSE),
    _row(VGPU, "vgpu_utilization", "gpu_utilization_ratio", over=100, unread=_PAST),
    _row(VGPU, "vgpu_memory_utilization", "gpu_memory_activity_ratio", over=100, unread=_PAST),
    _row(VGPU, "vgpu_memory_used_bytes", "gpu_memory_used_bytes", zero=Reason.AMBIGUOUS_ZERO),
    _row(VGPU, "vgpu_memory_total_bytes", "gpu_memory_total_bytes", zero=Reason.NO_DATA),
    _row(VGPU, "vgpu_active", "vgpu_active", unread="0 wherever accounting is off"),
    _row(MIG, "mig_instance_utilization_gpu", "gpu_graphics_activity_ratio", over=100, unread=_UNDEFINED),
    _row(MIG, "mig_instance_utilization_memory", "gpu_dram_activity_ratio", over=100, unread=_UNDEFINED),
    _row(MIG, "mig_instance_memory_used_bytes", "gpu_memory_used_bytes", zero=Reason.AMBIGUOUS_ZERO),
    _row(MIG, "mig_instance_memory_total_bytes", "gpu_memory_total_bytes", zero=Reason.NO_DATA),
    _row(GPU, "energy_consumed_joules_total", "gpu_energy_joules_total", counter=True, unread=_OF_POWER),
    _row(MACHINE, "cpu_utilization", "host_cpu_utilization_ratio", over=100),
    _row(MACHINE, "cpu_thread_count", "host_cpus"),
    _row(MACHINE, "memory_total_bytes", "host_memory_total_bytes"),
    _row(MACHINE, "memory_available_bytes", "host_memory_available_bytes"),
    _row(MACHINE, "memory_free_bytes", "host_memory_free_bytes"),
    _row(MACHINE, "memory_buffers_bytes", "host_memory_buffers_bytes"),
    _row(MACHINE, "memory_cached_bytes", "host_memory_cached_bytes"),
    _row(MACHINE, "swap_total_bytes", "host_swap_total_bytes"),
    _row(MACHINE, "swap_free_bytes", "host_swap_free_bytes"),
)

AMBIGUOUS = frozenset(one.metric for one in FAMILIES.values() if one.zero is Reason.AMBIGUOUS_ZERO)
"""Metrics that can be absent because they are 0: a mean without these readings is too high."""

_SUM = "a difference or quotient of other series"
_SELF = "status of the exporter itself"
_PROCESS = "per process: processes are in `/v1/snapshot`, not in metrics"
_TEXT = "a text: in `gpufleet_gpu_info` and `gpufleet_host_info`"
_OTHER_MAKER = "devices of other vendors"
_NOT_READ = "not collected: no kernel file has it on every machine"

UNREAD = {
    "all_smi_up": _SELF,
    "all_smi_build_info": _SELF,
    "all_smi_gpu_info": _TEXT,
    "all_smi_gpu_gsp_firmware_version_info": _TEXT,
    "all_smi_ane_utilization": _OTHER_MAKER,
    "all_smi_dla_utilization": _OTHER_MAKER,
    "all_smi_gpu_fan_speed_rpm": "not set for NVIDIA GPUs; ours is by fan (`gpufleet_gpu_fan_speed_rpm`)",
    "all_smi_nvlink_remote_device_type": "ours is by type of the remote device (`gpufleet_gpu_nvlink_peers`)",
    "all_smi_process_memory_used_bytes": _PROCESS,
    "all_smi_process_start_time_seconds": _PROCESS,
    "all_smi_process_cpu_percent": _PROCESS,
    "all_smi_cpu_info": _TEXT,
    "all_smi_cpu_socket_count": _NOT_READ,
    "all_smi_cpu_core_count": "not collected: `gpufleet_host_cpus` is the number of threads",
    "all_smi_cpu_frequency_mhz": _NOT_READ,
    "all_smi_cpu_temperature_celsius": _NOT_READ,
    "all_smi_cpu_power_consumption_watts": _NOT_READ,
    "all_smi_cpu_socket_utilization": "ours is by core, as time (`gpufleet_host_cpu_seconds_total`)",
    "all_smi_cpu_socket_frequency_mhz": _NOT_READ,
    "all_smi_cpu_socket_temperature_celsius": _NOT_READ,
    "all_smi_cpu_core_utilization": "ours is by core, as time (`gpufleet_host_cpu_seconds_total`)",
    "all_smi_memory_used_bytes": _SUM,
    "all_smi_memory_utilization": _SUM,
    "all_smi_swap_used_bytes": _SUM,
    "all_smi_disk_total_bytes": "ours is also by device and type (`gpufleet_host_filesystem_size_bytes`)",
    "all_smi_disk_available_bytes": "ours is also by device and type (`gpufleet_host_filesystem_available_bytes`)",
    "all_smi_container_runtime_info": _TEXT,
    "all_smi_kubernetes_pod_info": _SELF,
    "all_smi_virtualization_info": _TEXT,
    "all_smi_runtime_environment": _TEXT,
    "all_smi_chassis_info": _TEXT,
    "all_smi_chassis_power_watts": "a sum of other series",
    "all_smi_chassis_cpu_power_watts": _NOT_READ,
    "all_smi_chassis_gpu_power_watts": "a sum of other series",
    "all_smi_chassis_inlet_temperature_celsius": _NOT_READ,
    "all_smi_chassis_outlet_temperature_celsius": _NOT_READ,
    "all_smi_chassis_fan_speed_rpm": _NOT_READ,
}

_NO_UUID, _NO_NAME = re.compile(r"(?:GPU-[0-9]{1,5}|JetsonGPU)\Z"), "Unknown GPU"
_BARE_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_OF_VGPU_HOSTS = frozenset(
    family.name for family in FAMILIES.values() if family.of == GPU and family.name.startswith("all_smi_vgpu_")
)
_PER_MACHINE = ("all_smi_cpu_", "all_smi_memory_", "all_smi_swap_")


def _machine(labels: Mapping[str, str]) -> str:
    """Return the machine name of the exporter.

    Its label `instance` collides with that of Prometheus, which is an address with a port and no machine name; the
    exporter's value is then in `exported_instance`.
    """
    own = ("hostname", "host", "exported_instance", "instance")
    name = next((labels[label] for label in own if labels.get(label)), "")
    return "" if ":" in name else name


def identify(series: ImportedSeries) -> SeriesSubject | None:
    """Return the subject of a series. One without a UUID, or with an index or constant in its place, has none."""
    labels = series.labels
    machine = _machine(labels)
    if series.name.startswith(_PER_MACHINE):
        return SeriesSubject(machine=machine, view=None)
    uuid = text_of(labels, "gpu_uuid", "uuid")
    if not uuid or _NO_UUID.match(uuid):
        return None
    if _BARE_UUID.match(uuid):  # format of its mock nodes
        uuid = f"GPU-{uuid.lower()}"
    index = small_number(labels.get("gpu_index") or labels.get("index") or "")
    gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, index=index)
    name = text_of(labels, "gpu").removeprefix(_NO_NAME)
    if series.name.startswith("all_smi_vgpu_"):
        if series.name in _OF_VGPU_HOSTS:
            return SeriesSubject(machine=machine, view=gpu, name=name)
        return _vgpu_subject(machine, gpu, labels)
    if series.name.startswith("all_smi_mig_"):
        return _mig_subject(machine, gpu, labels, name)
    return SeriesSubject(machine=machine, view=gpu, name=name)


def _vgpu_subject(machine: str, gpu: View, labels: Mapping[str, str]) -> SeriesSubject | None:
    uuid, vm = text_of(labels, "vgpu_uuid"), labels.get("vgpu_vm_id", "")
    if not uuid:
        return None
    view = View(
        kind=ViewKind.VGPU,
        side=Side.VGPU_HOST,
        uuid=uuid.lower(),
        instance=text_of(labels, "vgpu_id") or None,
        parent=gpu.key,
    )
    texts = (("vgpu_type", text_of(labels, "vgpu_type")), ("vgpu_vm_id", normalise_uuid(vm) or vm))
    return SeriesSubject(machine=machine, view=view, texts=texts)


def _mig_subject(machine: str, gpu: View, labels: Mapping[str, str], name: str) -> SeriesSubject | None:
    uuid = text_of(labels, "mig_uuid")
    if not uuid:
        return None
    gpu_instance, compute_instance = text_of(labels, "gpu_instance_id"), text_of(labels, "compute_instance_id")
    view = View(
        kind=ViewKind.MIG,
        side=Side.HOST,
        uuid=uuid,
        instance=f"{gpu_instance}/{compute_instance}" if gpu_instance and compute_instance else None,
        parent=gpu.key,
    )
    texts = (
        ("mig_profile", text_of(labels, "mig_profile")),
        ("mig_gpu_instance", gpu_instance),
        ("mig_compute_instance", compute_instance),
    )
    return SeriesSubject(machine=machine, view=view, name=name, texts=texts)


LABELS = frozenset(
    {
        *("gpu", "gpu_uuid", "uuid", "gpu_index", "index", "host", "hostname", "cpu_model"),
        *("vgpu_id", "vgpu_uuid", "vgpu_type", "vgpu_vm_id"),
        *("mig_instance", "mig_uuid", "mig_profile", "gpu_instance_id", "compute_instance_id"),
    }
)

ALL_SMI = Dialect(
    name="all-smi", prefixes=("all_smi_",), families=FAMILIES, unread=UNREAD, identify=identify, labels=LABELS
)
