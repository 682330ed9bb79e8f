"""Readings of the fleet's devices and hosts at an instant: catalogue name to value or absence.

The readings of a GPU follow from its activity: load, heat and power, with the faults that affect it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.fleet.board import drop_unproven_uses, unproven_uses
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.device_state import HUNG as HUNG_STATE
from gpufleet.model.device_state import LOST as LOST_STATE
from gpufleet.model.device_state import RESET_REQUIRED as RESET_STATE
from gpufleet.model.device_state import UNREADABLE
from gpufleet.model.reading import DimValue, Value
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault
from gpufleet.simulate.fleet.hardware import CUDA, DRIVER, MHZ, MIB, MIG_SLICES
from gpufleet.simulate.fleet.layout import FleetGpu, FleetGuest, FleetNode, GpuPart, Workload
from gpufleet.simulate.fleet.random_values import share
from gpufleet.simulate.fleet.value_faults import FABRIC_MANAGER, ReadingValues

THROTTLED_LOAD = 0.6
"""Share of its load that a GPU performs while it is too hot."""

CALL = "nvmlDeviceGetPowerUsage"

UNAVAILABLE = {
    FaultKind.GPU_LOST: Absent(Reason.GPU_LOST, CALL),
    FaultKind.GPU_HUNG: Absent(Reason.TIMEOUT, CALL),
    FaultKind.RESET_REQUIRED: Absent(Reason.RESET_REQUIRED, CALL),
    FaultKind.GPU_UNREADABLE: Absent(Reason.DRIVER_ERROR, CALL),
}
"""Faults of a GPU without any reading, with the reason."""

_STATES = {
    Reason.GPU_LOST: LOST_STATE,
    Reason.TIMEOUT: HUNG_STATE,
    Reason.RESET_REQUIRED: RESET_STATE,
    Reason.DRIVER_ERROR: UNREADABLE,
}

RIPPLE_WATTS = 0.5
RIPPLE_NS = 97 * 10**9
"""Ripple of the power of every GPU, also without load: its amplitude and period. No usual interval divides the period.
"""


class GpuActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of a GPU at an instant.

    Attributes:
        load: performed load, 0 to 1.
        heat: low-passed load that determines the temperature, 0 to 1.
        done: load-seconds since boot.
        watts: power.
        joules: energy since boot, the integral of `watts`.
        celsius: temperature of the die.
        hot: whether hardware slowdown is active.
        working: number of workloads that hold memory on it.
        uncorrected: uncorrectable memory errors since boot.
        uncorrected_lifetime: the same since manufacture.
        absent: why it has no readings, or None.
    """

    load: float
    heat: float
    done: float
    watts: float
    joules: float
    celsius: float
    hot: bool
    working: int
    uncorrected: int = 0
    uncorrected_lifetime: int = 0
    absent: Absent | None


def gpu_activity(gpu: FleetGpu, at: int, booted_at: int, faults: Iterable[FleetFault] = ()) -> GpuActivity:
    """Return the activity of a GPU.

    Args:
        gpu: the GPU.
        at: nanoseconds since 1970.
        booted_at: start of its counters; not after `at`.
        faults: of this GPU.
    """
    load = heat = 0.0
    working = 0
    for part, work in gpu.loads:
        _, second = work.day(at)
        load += part * work.cycle.load_at(second)
        heat += part * work.cycle.heat_at(second)
        working += work.cycle.span_at(second) >= 0
    done = _done(gpu, booted_at, at)
    hot, slowdown, absent = False, gpu.model.slowdown_celsius, None
    uncorrected = lifetime = 0
    for fault in faults:
        if fault.kind is FaultKind.HOT_GPU:
            begin, end = max(fault.begin, booted_at), min(fault.end, at)
            if end > begin:
                done -= (1 - THROTTLED_LOAD) * _done(gpu, begin, end)
            if fault.begin <= at < fault.end:
                hot, slowdown = True, slowdown + fault.amount
        elif fault.kind is FaultKind.ECC_ERROR:
            lifetime += int(fault.amount) if fault.begin <= at else 0
            uncorrected += int(fault.amount) if booted_at <= fault.begin <= at else 0
        elif fault.begin <= at < fault.end:
            absent = UNAVAILABLE.get(fault.kind, absent)
    load *= THROTTLED_LOAD if hot else 1.0
    idle, span = gpu.model.idle_watts + RIPPLE_WATTS, gpu.peak_watts - gpu.model.idle_watts
    return GpuActivity(
        load=load,
        heat=heat,
        done=done,
        watts=idle + RIPPLE_WATTS * math.sin(_ripple(gpu, at)) + span * load,
        joules=idle * (at - booted_at) / 1e9 + _ripple_joules(gpu, booted_at, at) + span * done,
        celsius=slowdown if hot else gpu.ambient + 5.0 + gpu.rise * heat,
        hot=hot,
        working=working,
        uncorrected=uncorrected,
        uncorrected_lifetime=lifetime,
        absent=absent,
    )


def _done(gpu: FleetGpu, begin: int, end: int) -> float:
    """Return the load-seconds between two instants."""
    return sum(share * (work.done_by(end) - work.done_by(begin)) for share, work in gpu.loads)


def _ripple(gpu: FleetGpu, at: int) -> float:
    """Return the angle of a GPU's ripple at an instant."""
    return 2 * math.pi * (at % RIPPLE_NS / RIPPLE_NS + gpu.ambient)


def _ripple_joules(gpu: FleetGpu, begin: int, end: int) -> float:
    """Return the energy of the ripple between two instants."""
    radians_per_second = 2e9 * math.pi / RIPPLE_NS
    return RIPPLE_WATTS / radians_per_second * (math.cos(_ripple(gpu, begin)) - math.cos(_ripple(gpu, end)))


IDLE_LOAD = 0.01
"""Load below which a GPU is idle."""

EMPTY_BYTES = 4 * MIB
"""Used memory that the driver reports without any process."""

GPU_IDLE, HW_SLOWDOWN, HW_THERMAL = 0x1, 0x8, 0x40
"""Bits of `gpu_clock_event_reasons_mask`."""

CLOCK_EVENT = "gpu_clock_event_active"

ECC_NS = 11 * 86_400 * 10**9
"""Interval between corrected errors of a GPU that has errors."""

_NEVER = Absent(Reason.NOT_SUPPORTED)
_CUT = Absent(Reason.NOT_IN_MIG_MODE)


def _undefined(subject: Subject) -> ReadingValues:
    """Return the readings that the driver does not define for GPUs in MIG mode, or for MIG devices."""
    return {
        metric.name: _CUT
        for metric in CATALOGUE.values()
        if subject in metric.subjects
        and metric.lane is Lane.FAST
        and not metric.dims
        and any(one.reason is Reason.NOT_IN_MIG_MODE for one in metric.absent_when)
    }


_CUT_GPU, _MIG = _undefined(Subject.GPU), _undefined(Subject.MIG)
_VGPU_HOST: ReadingValues = {
    "gpu_vgpu_host_mode": "sriov",
    "gpu_vgpu_scheduler_policy": "equal_share",
    "gpu_vgpu_scheduler_arr_mode": "enabled",
    "gpu_vgpu_scheduler_arr_supported": 1,
}
_NO_HBM: ReadingValues = {"gpu_memory_temperature_celsius": _NEVER}
_NO_NVLINK: ReadingValues = {"gpu_nvlink_transmit_bytes_total": _NEVER, "gpu_nvlink_receive_bytes_total": _NEVER}


def gpu_fast(gpu: FleetGpu, at: int, booted_at: int, now: GpuActivity) -> ReadingValues:
    """Return a GPU's readings of the fast lane: always the same forty metrics, in the same order."""
    model, load, idle = gpu.model, now.load, now.load < IDLE_LOAD
    used = _used(gpu, at)
    clock = model.idle_hertz if idle else model.busy_hertz - int(18 * load) * 15 * MHZ
    if now.hot and not idle:
        clock = model.busy_hertz // 2 // (15 * MHZ) * 15 * MHZ
    busy = 0.0 if idle else min(1.0, load * 1.08)
    celsius = float(int(now.celsius))
    errors = _ecc(gpu, at) - _ecc(gpu, booted_at)
    linked = int(0.25 * model.nvlink_bytes * now.done)
    moved = int(1.5e9 * now.done)
    readings: ReadingValues = {
        "gpu_utilization_ratio": round(busy, 2),
        "gpu_memory_activity_ratio": round(busy * 0.6, 2),
        "gpu_encoder_utilization_ratio": 0.0,
        "gpu_decoder_utilization_ratio": 0.0,
        "gpu_memory_total_bytes": model.memory_bytes,
        "gpu_memory_used_bytes": used,
        "gpu_memory_free_bytes": model.memory_bytes - model.reserved_bytes - used,
        "gpu_memory_reserved_bytes": model.reserved_bytes,
        "gpu_temperature_celsius": celsius,
        "gpu_memory_temperature_celsius": celsius + (8.0 if load > 0.5 else 3.0),
        "gpu_power_watts": round(now.watts, 3),
        "gpu_power_limit_watts": model.limit_watts,
        "gpu_energy_joules_total": round(now.joules, 3),
        "gpu_graphics_clock_hertz": clock,
        "gpu_sm_clock_hertz": clock,
        "gpu_memory_clock_hertz": model.memory_hertz,
        "gpu_clock_event_reasons_mask": HW_SLOWDOWN | HW_THERMAL if now.hot else GPU_IDLE if idle else 0,
        "gpu_performance_state": model.idle_state if idle else 0,
        "gpu_ecc_corrected_errors_total": errors,
        "gpu_ecc_uncorrected_errors_total": now.uncorrected,
        "gpu_pcie_link_generation": model.idle_pcie if idle else model.pcie,
        "gpu_pcie_link_width": 16,
        "gpu_pcie_replays_total": 0,
        "gpu_compute_processes": now.working,
        "gpu_state": "ok",
        "gpu_bar1_total_bytes": model.bar1_bytes,
        "gpu_bar1_used_bytes": MIB * (1 + 2 * now.working),
        "gpu_temperature_margin_celsius": model.slowdown_celsius - celsius,
        "gpu_power_instant_watts": round(now.watts, 3),
        "gpu_video_clock_hertz": clock // 13 // MHZ * 10 * MHZ,
        "gpu_graphics_activity_ratio": round(busy, 4),
        "gpu_sm_activity_ratio": round(busy * 0.9, 4),
        "gpu_sm_occupancy_ratio": round(busy * 0.4, 4),
        "gpu_tensor_activity_ratio": round(busy * 0.55, 4),
        "gpu_dram_activity_ratio": round(busy * 0.5, 4),
        "gpu_fp32_activity_ratio": round(busy * 0.1, 4),
        "gpu_pcie_transmit_bytes_total": moved,
        "gpu_pcie_receive_bytes_total": 2 * moved,
        "gpu_nvlink_transmit_bytes_total": linked,
        "gpu_nvlink_receive_bytes_total": linked,
    }
    if not model.hbm:
        readings |= _NO_HBM
    if not model.nvlink_bytes:
        readings |= _NO_NVLINK
    drop_unproven_uses(readings, unproven_uses(model.name))
    if any(part.slot for part in gpu.parts):
        readings |= {name: why for name, why in _CUT_GPU.items() if name in readings}
    return readings if now.absent is None else _unavailable(readings, now.absent)


def clock_events(readings: ReadingValues) -> tuple[DimValue, ...]:
    """Return each reason for slow clocks of a GPU's readings of the fast lane."""
    mask = readings["gpu_clock_event_reasons_mask"]
    if isinstance(mask, int):
        return tuple(DimValue(CLOCK_EVENT, (name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS)
    why = mask if isinstance(mask, Absent) else _NEVER
    return tuple(DimValue(CLOCK_EVENT, (name,), why) for name, _ in CLOCK_EVENT_REASONS)


def gpu_slow(gpu: FleetGpu, at: int, now: GpuActivity) -> ReadingValues:
    """Return a GPU's readings of the slow lane."""
    model, cut = gpu.model, any(part.slot for part in gpu.parts)
    mig_mode = ("enabled" if cut else "disabled") if model.hbm else _NEVER
    nvlinks = model.nvlinks if model.nvlinks and not cut else _NEVER
    readings: ReadingValues = {
        "gpu_ecc_corrected_lifetime_errors_total": gpu.worn + _ecc(gpu, at),
        "gpu_ecc_uncorrected_lifetime_errors_total": now.uncorrected_lifetime,
        "gpu_remapped_rows_correctable": 0,
        "gpu_remapped_rows_uncorrectable": now.uncorrected_lifetime,
        "gpu_row_remap_pending": int(now.uncorrected > 0),
        "gpu_row_remap_failed": 0,
        "gpu_recovery_action": "none",
        "gpu_channel_repair_pending": 0,
        "gpu_tpc_repair_pending": 0,
        "gpu_unrepairable_memory": 0,
        "gpu_nvlinks": nvlinks,
        "gpu_nvlinks_active": nvlinks,
        "gpu_nvswitch_links": nvlinks,
        "gpu_fabric_state": "completed" if model.has_fabric else _NEVER,
        "gpu_fabric_health_status": "healthy" if model.has_fabric else _NEVER,
        "gpu_fabric_incorrect_configuration": "none" if model.has_fabric else _NEVER,
        "gpu_mig_mode": mig_mode,
        "gpu_mig_mode_pending": mig_mode,
    }
    if cut:
        readings["gpu_mig_devices_max"] = MIG_SLICES
    if any(part.vm for part in gpu.parts):
        readings |= _VGPU_HOST
    return readings if now.absent is None else dict.fromkeys(readings, now.absent)


def gpu_static(gpu: FleetGpu, now: GpuActivity) -> ReadingValues:
    """Return a GPU's readings of the static lane."""
    model = gpu.model
    readings: ReadingValues = {
        "gpu_name": model.name,
        "gpu_serial": gpu.serial,
        "gpu_board_part_number": model.part_number,
        "gpu_vbios_version": model.vbios,
        "gpu_architecture": model.architecture,
        "gpu_compute_capability": model.compute_capability,
        "gpu_pci_address": gpu.view.pci_address or "",
        "gpu_minor_number": str(gpu.number),
        "gpu_power_default_limit_watts": model.limit_watts,
        "gpu_sm_clock_max_hertz": model.busy_hertz,
        "gpu_pcie_link_generation_max": model.pcie,
        "gpu_pcie_link_width_max": 16,
        "gpu_ecc_mode": "enabled",
        "gpu_persistence_mode": "enabled",
        "gpu_compute_mode": "default",
    }
    return readings if now.absent is None else dict.fromkeys(readings, now.absent)


def mig_fast(part: GpuPart, at: int, absent: Absent | None) -> ReadingValues:
    """Return a MIG device's readings of the fast lane."""
    assert part.slot is not None
    load, used = _load(part.work, at), _taken(part.work, at, part.memory_bytes)
    readings: ReadingValues = {
        **_MIG,
        "gpu_memory_total_bytes": part.memory_bytes,
        "gpu_memory_used_bytes": used,
        "gpu_memory_free_bytes": part.memory_bytes - used,
        "gpu_memory_reserved_bytes": 0,
        "gpu_compute_processes": int(used > EMPTY_BYTES),
        "gpu_graphics_activity_ratio": round(load, 4),
        "gpu_sm_activity_ratio": round(load * 0.85, 4),
        "gpu_dram_activity_ratio": round(load * 0.45, 4),
        "mig_profile": part.slot.profile.name,
        "mig_gpu_instance": str(part.slot.instance),
        "mig_compute_instance": "0",
    }
    return readings if absent is None else dict.fromkeys(readings, absent)


def mig_slow(part: GpuPart, absent: Absent | None) -> ReadingValues:
    """Return a MIG device's readings of the slow lane."""
    assert part.slot is not None
    profile = part.slot.profile
    copies, decoders, jpegs = profile.engines
    readings: ReadingValues = {
        "mig_multiprocessors": profile.multiprocessors,
        "mig_gpu_slices": profile.slices,
        "mig_compute_slices": profile.slices,
        "mig_copy_engines": copies,
        "mig_decoders": decoders,
        "mig_encoders": 0,
        "mig_jpeg_engines": jpegs,
        "mig_ofa_engines": 0,
        "mig_placement_start": part.slot.start,
        "mig_placement_size": profile.memory_slices,
    }
    return readings if absent is None else dict.fromkeys(readings, absent)


def vgpu_fast(part: GpuPart, at: int, absent: Absent | None) -> ReadingValues:
    """Return a vGPU instance's readings of the fast lane, as its host sees it."""
    load = _load(part.work, at)
    readings: ReadingValues = {
        "gpu_utilization_ratio": round(part.share * load, 2),
        "gpu_memory_activity_ratio": round(part.share * load * 0.6, 2),
        "gpu_encoder_utilization_ratio": 0.0,
        "gpu_decoder_utilization_ratio": 0.0,
        "gpu_memory_total_bytes": part.memory_bytes,
        "gpu_memory_used_bytes": _taken(part.work, at, part.memory_bytes),
        "vgpu_type": part.vgpu_type,
        "vgpu_vm_id": part.vm,
        "vgpu_vm_id_kind": "uuid",
    }
    drop_unproven_uses(readings, unproven_uses(part.vgpu_type))
    return readings if absent is None else dict.fromkeys(readings, absent)


def vgpu_slow(part: GpuPart, at: int, absent: Absent | None) -> ReadingValues:
    """Return a vGPU instance's readings of the slow lane."""
    readings: ReadingValues = {
        "vgpu_active": int(_load(part.work, at) > 0),
        "vgpu_guest_driver_version": DRIVER,
        "vgpu_license_state": "licensed",
        "vgpu_frame_rate_limit_hertz": 60,
    }
    return readings if absent is None else dict.fromkeys(readings, absent)


def host_fast(node: FleetNode, at: int, load: float) -> ReadingValues:
    """Return a host's readings of the fast lane; `load` is the mean of its GPUs'."""
    minute = at // (60 * 10**9)
    wobble = share(node.name, minute)
    cores, memory = 192, 2_164_000_000_000
    cpu = 0.02 + 0.25 * load + 0.03 * wobble
    return {
        "host_cpu_utilization_ratio": round(cpu, 4),
        "host_cpus": cores,
        "host_load_1m": round(cores * cpu, 2),
        "host_memory_total_bytes": memory,
        "host_memory_available_bytes": int(memory * (0.92 - 0.4 * load - 0.02 * wobble)) // 4096 * 4096,
    }


def host_slow(booted_at: int) -> ReadingValues:
    """Return a host's readings of the slow lane; `booted_at` is in nanoseconds since 1970."""
    return {"host_boot_timestamp_seconds": booted_at // 10**9}


def host_services(node: FleetNode) -> dict[tuple[str, tuple[str, ...]], Value]:
    """Return the states of a host's services, which belong to the slow lane."""
    has_switches = any(gpu.model.nvlinks for gpu in node.all_gpus)
    return {("host_service_state", (FABRIC_MANAGER,)): "running" if has_switches else "not_installed"}


def host_static(node: FleetNode, boot_id: str) -> ReadingValues:
    """Return a host's readings of the static lane."""
    return {
        "host_hostname": node.name,
        "host_machine_id": node.identity.machine_id or "",
        "host_boot_id": boot_id,
        "host_system_uuid": node.identity.system_uuid or "",
        "host_system_vendor": "Simulated",
        "host_product_name": f"gpufleet simulate fleet, {node.role}",
        "host_kernel_release": "6.8.0-85-generic",
        "host_os_name": "Ubuntu 24.04.3 LTS",
    }


def guest_fast(
    guest: FleetGuest, activities: Sequence[tuple[FleetGpu, GpuActivity]], at: int, *, answers: bool
) -> ReadingValues:
    """Return the agent's report on a guest: `ok` while it has all of its GPUs, and any of them has readings.

    `at` is the time of the pass, nanoseconds since 1970.
    """
    if not answers:
        return {
            "guest_state_timestamp_seconds": at / NANOS,
            "guest_state": Reason.GUEST_UNREACHABLE.value,
            "guest_problem": "no access path answers",
            "guest_access_path": Absent(Reason.NO_DATA, "no access path answers"),
            "guest_gpus": Absent(Reason.NO_DATA, "its GPUs cannot be read"),
            "guest_expected_gpus": guest.expected_gpus,
        }
    failed = [(gpu, now.absent) for gpu, now in activities if now.absent is not None]
    problem = "; ".join(f"{gpu.view.key}: {why.detail} ({why.reason})" for gpu, why in failed)
    state = "ok" if len(failed) < len(activities) else failed[0][1].reason.value if failed else "no_supported_gpu"
    if len(activities) != guest.expected_gpus:
        state = Reason.GPU_COUNT_DIFFERS.value
        problem = f"{len(activities)} GPUs, expected {guest.expected_gpus}"
    return {
        "guest_state_timestamp_seconds": at / NANOS,
        "guest_state": state,
        "guest_problem": problem,
        "guest_access_path": "ssh/nvidia_smi",
        "guest_gpus": len(activities),
        "guest_expected_gpus": guest.expected_gpus,
    }


def driver_fast(gpus: int) -> ReadingValues:
    """Return a working driver's readings of the fast lane about the machine, with its number of GPUs."""
    return {"nvidia_devices": gpus, "nvidia_driver_state": "ok"}


DRIVER_TEXTS: ReadingValues = {
    "nvidia_driver_version": DRIVER,
    "nvidia_library_version": DRIVER,
    "nvidia_cuda_version": CUDA,
}
"""Driver texts of a machine."""


def _unavailable(readings: Mapping[str, Value | Absent], why: Absent) -> ReadingValues:
    return {**dict.fromkeys(readings, why), "gpu_state": _STATES[why.reason]}


def _load(work: Workload, at: int) -> float:
    return work.cycle.load_at(work.day(at)[1])


def _taken(work: Workload, at: int, whole: int) -> int:
    """Return the memory that a workload uses of a device with `whole` bytes."""
    is_there = work.cycle.span_at(work.day(at)[1]) >= 0
    return int(work.memory * whole) // (2 * MIB) * 2 * MIB if is_there else EMPTY_BYTES


def _used(gpu: FleetGpu, at: int) -> int:
    if any(part.vm for part in gpu.parts):
        return sum(part.memory_bytes for part in gpu.parts)
    if gpu.parts:
        return sum(_taken(part.work, at, part.memory_bytes) for part in gpu.parts)
    return sum(_taken(work, at, gpu.model.memory_bytes) for _, work in gpu.loads) or EMPTY_BYTES


def _ecc(gpu: FleetGpu, at: int) -> int:
    """Return the corrected errors of a GPU since 1970: every fourth GPU has some."""
    return at // ECC_NS if gpu.worn % 4 == 0 else 0
