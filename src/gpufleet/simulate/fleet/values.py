"""What devices and hosts of the fleet say at an instant: catalogue name to value, or the reason for its absence.

What a GPU does at an instant: load, heat and power, with the faults that bear on it.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Subject
from gpufleet.model.reading import Value
from gpufleet.simulate.fleet.chance import share
from gpufleet.simulate.fleet.faults import Fault, FaultKind
from gpufleet.simulate.fleet.hardware import CUDA, DRIVER, MHZ, MIB, MIG_SLICES
from gpufleet.simulate.fleet.layout import Gpu, Node, Part, Work

HOT_LEAVES = 0.6
"""Share of its load that a GPU does while it is too hot."""

LOST = Absent(Reason.GPU_LOST, "nvmlDeviceGetPowerUsage")
HUNG = Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage")


class Strain(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one instant.

    Attributes:
        load: 0 to 1, as it is done.
        heat: what its temperature follows, 0 to 1.
        done: load-seconds since it was booted.
        watts: what it draws.
        joules: what it has drawn since it was booted: the integral of `watts`.
        celsius: of the die.
        hot: whether the hardware slows it down.
        working: works that hold memory on it.
        silent: why it says nothing, or None.
    """

    load: float
    heat: float
    done: float
    watts: float
    joules: float
    celsius: float
    hot: bool
    working: int
    silent: Absent | None


def strain_of(gpu: Gpu, at: int, booted_at: int, faults: Iterable[Fault] = ()) -> Strain:
    """Return what a GPU does.

    Args:
        gpu: which.
        at: nanoseconds since 1970.
        booted_at: when its counters began; not after `at`.
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
    hot, slowdown, silent = False, gpu.model.slowdown_celsius, None
    for fault in faults:
        if fault.kind is FaultKind.HOT_GPU:
            begin, end = max(fault.begin, booted_at), min(fault.end, at)
            if end > begin:
                done -= (1 - HOT_LEAVES) * _done(gpu, begin, end)
            if fault.begin <= at < fault.end:
                hot, slowdown = True, slowdown + fault.amount
        elif fault.begin <= at < fault.end:
            silent = {FaultKind.GPU_LOST: LOST, FaultKind.GPU_HUNG: HUNG}.get(fault.kind, silent)
    load *= HOT_LEAVES if hot else 1.0
    idle, span = gpu.model.idle_watts, gpu.peak_watts - gpu.model.idle_watts
    return Strain(
        load=load,
        heat=heat,
        done=done,
        watts=idle + span * load,
        joules=idle * (at - booted_at) / 1e9 + span * done,
        celsius=slowdown if hot else gpu.ambient + 5.0 + gpu.rise * heat,
        hot=hot,
        working=working,
        silent=silent,
    )


def _done(gpu: Gpu, begin: int, end: int) -> float:
    """Return the load-seconds between two instants."""
    return sum(share * (work.done_by(end) - work.done_by(begin)) for share, work in gpu.loads)


Said = dict[str, Value | Absent]

IDLE_LOAD = 0.01
"""Below this a GPU rests."""

EMPTY_BYTES = 4 * MIB
"""What the driver counts as used where nobody uses anything."""

GPU_IDLE, HW_SLOWDOWN, HW_THERMAL = 0x1, 0x8, 0x40
"""Bits of `gpu_clock_event_reasons_mask`."""

ECC_NS = 11 * 86_400 * 10**9
"""Between two corrected errors of a GPU that has some."""

_NEVER = Absent(Reason.NOT_SUPPORTED)
_CUT = Absent(Reason.NOT_IN_MIG_MODE)


def _undefined(subject: Subject) -> Said:
    """Return what the driver does not define for GPUs in MIG mode, or for MIG devices."""
    return {
        metric.name: _CUT
        for metric in CATALOGUE.values()
        if subject in metric.subjects
        and metric.lane is Lane.FAST
        and not metric.dims
        and any(one.reason is Reason.NOT_IN_MIG_MODE for one in metric.absent_when)
    }


_CUT_GPU, _MIG = _undefined(Subject.GPU), _undefined(Subject.MIG)
_NO_HBM: Said = {"gpu_memory_temperature_celsius": _NEVER}
_NO_NVLINK: Said = {"gpu_nvlink_transmit_bytes_total": _NEVER, "gpu_nvlink_receive_bytes_total": _NEVER}


def gpu_fast(gpu: Gpu, at: int, booted_at: int, now: Strain) -> Said:
    """Return a GPU's readings of the fast lane: forty that are always the same ones, in the same order."""
    model, load, resting = gpu.model, now.load, now.load < IDLE_LOAD
    used = _used(gpu, at)
    clock = model.idle_hertz if resting else model.busy_hertz - int(18 * load) * 15 * MHZ
    if now.hot and not resting:
        clock = model.busy_hertz // 2 // (15 * MHZ) * 15 * MHZ
    busy = 0.0 if resting else min(1.0, load * 1.08)
    celsius = float(int(now.celsius))
    errors = _ecc(gpu, at) - _ecc(gpu, booted_at)
    linked = int(0.25 * model.nvlink_bytes * now.done)
    moved = int(1.5e9 * now.done)
    said: Said = {
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
        "gpu_clock_event_reasons_mask": HW_SLOWDOWN | HW_THERMAL if now.hot else GPU_IDLE if resting else 0,
        "gpu_performance_state": model.idle_state if resting else 0,
        "gpu_ecc_corrected_errors_total": errors,
        "gpu_ecc_uncorrected_errors_total": 0,
        "gpu_pcie_link_generation": model.idle_pcie if resting else model.pcie,
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
        said |= _NO_HBM
    if not model.nvlink_bytes:
        said |= _NO_NVLINK
    if any(part.slot for part in gpu.parts):
        said |= {name: why for name, why in _CUT_GPU.items() if name in said}
    return said if now.silent is None else _silenced(said, now.silent)


def gpu_slow(gpu: Gpu, at: int, now: Strain) -> Said:
    """Return a GPU's readings of the slow lane."""
    cut = any(part.slot for part in gpu.parts)
    said: Said = {
        "gpu_ecc_corrected_lifetime_errors_total": gpu.worn + _ecc(gpu, at),
        "gpu_ecc_uncorrected_lifetime_errors_total": 0,
        "gpu_remapped_rows_correctable": 0,
        "gpu_remapped_rows_uncorrectable": 0,
        "gpu_row_remap_pending": 0,
        "gpu_row_remap_failed": 0,
        "gpu_recovery_action": "none",
        "gpu_mig_mode": ("enabled" if cut else "disabled") if gpu.model.hbm else _NEVER,
    }
    if cut:
        said["gpu_mig_devices_max"] = MIG_SLICES
    return said if now.silent is None else dict.fromkeys(said, now.silent)


def gpu_static(gpu: Gpu, now: Strain) -> Said:
    """Return a GPU's readings of the static lane."""
    model = gpu.model
    said: Said = {
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
    return said if now.silent is None else dict.fromkeys(said, now.silent)


def mig_fast(part: Part, at: int, silent: Absent | None) -> Said:
    """Return a MIG device's readings of the fast lane."""
    assert part.slot is not None
    load, used = _load(part.work, at), _taken(part.work, at, part.memory_bytes)
    said: Said = {
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
    return said if silent is None else dict.fromkeys(said, silent)


def mig_slow(part: Part, silent: Absent | None) -> Said:
    """Return a MIG device's readings of the slow lane."""
    assert part.slot is not None
    profile = part.slot.profile
    copies, decoders, jpegs = profile.engines
    said: Said = {
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
    return said if silent is None else dict.fromkeys(said, silent)


def vgpu_fast(gpu: Gpu, part: Part, at: int, silent: Absent | None) -> Said:
    """Return a vGPU instance's readings of the fast lane, as its host sees it."""
    load = _load(part.work, at)
    said: Said = {
        "gpu_utilization_ratio": round(part.share * load, 2),
        "gpu_memory_activity_ratio": round(part.share * load * 0.6, 2),
        "gpu_encoder_utilization_ratio": 0.0,
        "gpu_decoder_utilization_ratio": 0.0,
        "gpu_memory_total_bytes": part.memory_bytes,
        "gpu_memory_used_bytes": _taken(part.work, at, part.memory_bytes),
        "vgpu_type": gpu.model.vgpu_type,
        "vgpu_vm_id": part.vm,
        "vgpu_vm_id_kind": "uuid",
    }
    return said if silent is None else dict.fromkeys(said, silent)


def vgpu_slow(silent: Absent | None) -> Said:
    """Return a vGPU instance's readings of the slow lane."""
    said: Said = {
        "vgpu_guest_driver_version": DRIVER,
        "vgpu_license_state": "licensed",
        "vgpu_frame_rate_limit_hertz": 60,
    }
    return said if silent is None else dict.fromkeys(said, silent)


def host_fast(node: Node, at: int, load: float) -> Said:
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


def host_static(node: Node, boot_id: str) -> Said:
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


def guest_fast(strains: Sequence[tuple[Gpu, Strain]]) -> Said:
    """Return what an agent says of a guest that it reads: `ok` while any of its GPUs speaks."""
    silent = [(gpu, now.silent) for gpu, now in strains if now.silent is not None]
    problem = "; ".join(f"{gpu.view.key}: {why.detail} ({why.reason})" for gpu, why in silent)
    return {
        "guest_state": "ok" if len(silent) < len(strains) else silent[0][1].reason.value,
        "guest_problem": problem,
        "guest_way": "ssh/nvidia_smi",
        "guest_gpus": len(strains),
        "guest_expected_gpus": len(strains),
    }


DRIVER_TEXTS: Said = {
    "nvidia_driver_version": DRIVER,
    "nvidia_library_version": DRIVER,
    "nvidia_cuda_version": CUDA,
}
"""What a machine's driver says of itself."""


def _silenced(said: Mapping[str, Value | Absent], why: Absent) -> Said:
    return {**dict.fromkeys(said, why), "gpu_state": "lost" if why.reason is Reason.GPU_LOST else "hung"}


def _load(work: Work, at: int) -> float:
    return work.cycle.load_at(work.day(at)[1])


def _taken(work: Work, at: int, whole: int) -> int:
    """Return the memory that a work takes of a device with so much of it."""
    is_there = work.cycle.span_at(work.day(at)[1]) >= 0
    return int(work.memory * whole) // (2 * MIB) * 2 * MIB if is_there else EMPTY_BYTES


def _used(gpu: Gpu, at: int) -> int:
    if any(part.vm for part in gpu.parts):
        return sum(part.memory_bytes for part in gpu.parts)
    if gpu.parts:
        return sum(_taken(part.work, at, part.memory_bytes) for part in gpu.parts)
    return sum(_taken(work, at, gpu.model.memory_bytes) for _, work in gpu.loads) or EMPTY_BYTES


def _ecc(gpu: Gpu, at: int) -> int:
    """Return the errors that a GPU has corrected since 1970: every fourth has any."""
    return at // ECC_NS if gpu.worn % 4 == 0 else 0
