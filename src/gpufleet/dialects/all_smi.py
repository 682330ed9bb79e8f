"""lablup's all-smi, both generations of its labels (`uuid`, `index` before 2026-04; `gpu_uuid`, `gpu_index` since).

Names, labels and units were read in its renderers at b92ea0a; no page of a running one was seen.
"""

import re

from gpufleet.dialects.dialect import Dialect, Family, Subject, table
from gpufleet.model.absence import Reason
from gpufleet.model.series import Series
from gpufleet.model.view import Side, View, ViewKind

MHZ = 1_000_000

FAMILIES = table(
    Family(name="all_smi_gpu_utilization", metric="gpu_utilization_ratio", over=100),
    Family(name="all_smi_gpu_memory_used_bytes", metric="gpu_memory_used_bytes"),
    Family(name="all_smi_gpu_memory_total_bytes", metric="gpu_memory_total_bytes"),
    Family(name="all_smi_gpu_temperature_celsius", metric="gpu_temperature_celsius", zero=Reason.NOT_SUPPORTED),
    Family(name="all_smi_gpu_power_consumption_watts", metric="gpu_power_watts"),
    Family(name="all_smi_gpu_frequency_mhz", metric="gpu_graphics_clock_hertz", times=MHZ, zero=Reason.NOT_SUPPORTED),
    Family(name="all_smi_gpu_clock_graphics_max_mhz", metric="gpu_graphics_clock_max_hertz", times=MHZ),
    Family(name="all_smi_gpu_clock_memory_max_mhz", metric="gpu_memory_clock_max_hertz", times=MHZ),
    Family(name="all_smi_gpu_power_limit_max_watts", metric="gpu_power_limit_max_watts"),
    Family(name="all_smi_gpu_performance_state", metric="gpu_performance_state"),
    Family(name="all_smi_vgpu_memory_used_bytes", metric="gpu_memory_used_bytes"),
    Family(name="all_smi_vgpu_memory_total_bytes", metric="gpu_memory_total_bytes"),
    Family(name="all_smi_mig_instance_memory_used_bytes", metric="gpu_memory_used_bytes"),
    Family(name="all_smi_mig_instance_memory_total_bytes", metric="gpu_memory_total_bytes"),
    Family(name="all_smi_cpu_utilization", metric="host_cpu_utilization_ratio", over=100),
    Family(name="all_smi_memory_total_bytes", metric="host_memory_total_bytes"),
    Family(name="all_smi_memory_available_bytes", metric="host_memory_available_bytes"),
    Family(name="all_smi_memory_free_bytes", metric="host_memory_free_bytes"),
    Family(name="all_smi_memory_buffers_bytes", metric="host_memory_buffers_bytes"),
    Family(name="all_smi_memory_cached_bytes", metric="host_memory_cached_bytes"),
    Family(name="all_smi_swap_total_bytes", metric="host_swap_total_bytes"),
    Family(name="all_smi_swap_free_bytes", metric="host_swap_free_bytes"),
)

_FALSE = "its value is 0 also where the query failed"
_FROZEN = "read once when it starts, and not again"
UNREAD = {
    "all_smi_vgpu_utilization": "an average over one process's life, not the present",
    "all_smi_vgpu_memory_utilization": "an average over one process's life, not the present",
    "all_smi_vgpu_active": "0 wherever accounting is off",
    "all_smi_vgpu_host_mode": "a number for what it could not tell, too",
    "all_smi_vgpu_scheduler_state": _FALSE,
    "all_smi_vgpu_scheduler_policy": _FALSE,
    "all_smi_gpu_mig_mode": _FROZEN,
    "all_smi_gpu_power_limit_current_watts": _FROZEN,
    "all_smi_mig_instance_utilization_gpu": "the driver does not define it",
    "all_smi_mig_instance_utilization_memory": "the driver does not define it",
    "all_smi_energy_consumed_joules_total": "integrated from samples of power, not counted by the device",
    "all_smi_chassis_power_watts": "a sum of other series",
}

_BARE_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_PER_MACHINE = ("all_smi_cpu_", "all_smi_memory_", "all_smi_swap_")


def subject(series: Series) -> Subject | None:
    """Read who it is. A row without a UUID names no device."""
    labels = series.labels
    machine = labels.get("hostname") or labels.get("host") or labels.get("instance") or ""
    if series.name.startswith(_PER_MACHINE):
        return Subject(machine=machine, view=None)
    uuid = labels.get("gpu_uuid") or labels.get("uuid") or ""
    if not uuid:
        return None
    if _BARE_UUID.match(uuid):  # as its mock nodes write it
        uuid = f"GPU-{uuid.lower()}"
    number = labels.get("gpu_index") or labels.get("index") or ""
    index = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else None
    gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, index=index)
    name = labels.get("gpu", "")
    if series.name.startswith("all_smi_vgpu_"):
        own = labels.get("vgpu_uuid")
        vgpu = View(kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=own.lower(), parent=gpu.key) if own else None
        return Subject(machine=machine, view=vgpu, name=labels.get("vgpu_type", "")) if vgpu else None
    if series.name.startswith("all_smi_mig_"):
        own = labels.get("mig_uuid")
        mig = View(kind=ViewKind.MIG, side=Side.HOST, uuid=own, parent=gpu.key) if own else None
        return Subject(machine=machine, view=mig, name=name) if mig else None
    return Subject(machine=machine, view=gpu, name=name)


ALL_SMI = Dialect(name="all-smi", prefixes=("all_smi_",), families=FAMILIES, unread=UNREAD, subject=subject)
