"""Batches of a simulated fleet with realistic values: noisy, correlated and never constant.

Values are deterministic in (node, step). Every node has eight GPUs and every core metric of a GPU and a machine.
"""

import math

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CORE_METRICS, Lane, Subject
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample, Value
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.model.wire.batch import Batch, MachineReport

GPUS = 8
STEP_NS = 15_000_000_000
MEMORY = 150_754_820_096
GPU_CORE = tuple(m.name for m in CORE_METRICS if Subject.GPU in m.subjects)
HOST_CORE = tuple(m.name for m in CORE_METRICS if Subject.MACHINE in m.subjects)
VALUES_PER_BATCH = GPUS * len(GPU_CORE) + len(HOST_CORE)


def noise(node: int, gpu: int, step: int) -> float:
    """Return a pseudo-random number in [0, 1)."""
    mixed = (node * 73_856_093) ^ (gpu * 19_349_663) ^ (step * 83_492_791)
    mixed = (mixed ^ (mixed >> 13)) * 1_274_126_177 & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 16)) & 0xFFFFFF) / 0x1000000


def gpu_values(node: int, gpu: int, step: int) -> dict[str, Value | Absent]:
    """Return every core metric of one GPU: load in waves, temperature and power that follow, growing counters."""
    wobble = noise(node, gpu, step)
    load = max(0.0, min(1.0, 0.5 + 0.6 * math.sin(step / 40 + node) + 0.2 * (wobble - 0.5)))
    used = int(MEMORY * (0.1 + 0.8 * noise(node, gpu, step // 200))) // 2_097_152 * 2_097_152
    watts = round(90 + 600 * load + 10 * wobble, 3)
    known: dict[str, Value | Absent] = {
        "gpu_utilization_ratio": round(load, 2),
        "gpu_memory_activity_ratio": round(load * 0.6, 2),
        "gpu_encoder_utilization_ratio": 0.0,
        "gpu_decoder_utilization_ratio": 0.0,
        "gpu_memory_total_bytes": MEMORY,
        "gpu_memory_used_bytes": used,
        "gpu_memory_free_bytes": MEMORY - used - 675_282_944,
        "gpu_memory_reserved_bytes": 675_282_944,
        "gpu_temperature_celsius": float(30 + int(45 * load + 2 * wobble)),
        "gpu_memory_temperature_celsius": float(35 + int(45 * load + 2 * wobble)),
        "gpu_power_watts": watts,
        "gpu_power_limit_watts": 700.0,
        "gpu_energy_joules_total": round(step * 15 * 400.0 + 15 * watts, 3),
        "gpu_graphics_clock_hertz": (1980 if load > 0.1 else 345) * 1_000_000,
        "gpu_sm_clock_hertz": (1980 if load > 0.1 else 345) * 1_000_000,
        "gpu_memory_clock_hertz": 3_201_000_000,
        "gpu_clock_event_reasons_mask": 0 if load > 0.1 else 1,
        "gpu_performance_state": 0,
        "gpu_recovery_action": "none",
        "gpu_state": "ok",
        "gpu_pcie_link_generation": 5,
        "gpu_pcie_link_width": 16,
        "gpu_compute_processes": 1 if load > 0.1 else 0,
    }
    return {name: known.get(name, 0) for name in GPU_CORE}


def host_values(node: int, step: int) -> dict[str, Value | Absent]:
    """Return every core metric of a machine."""
    wobble = noise(node, 99, step)
    known: dict[str, Value | Absent] = {
        "host_cpu_utilization_ratio": round(0.2 + 0.1 * wobble, 4),
        "host_load_1m": round(20 + 4 * wobble, 2),
        "host_memory_total_bytes": 2_164_000_000_000,
        "host_memory_available_bytes": 1_900_000_000_000 + int(wobble * 1e9) // 4096 * 4096,
    }
    return {name: known.get(name, Absent(Reason.NOT_COLLECTED)) for name in HOST_CORE}


def batch(node: int, step: int, *, start_ns: int, epoch: str | None = None) -> Batch:
    """Return the batch of a node at a step: one sample per GPU and one of the machine."""
    at = start_ns + step * STEP_NS
    samples = [
        Sample(
            view=View(
                kind=ViewKind.GPU,
                side=Side.HOST,
                uuid=f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}",
                pci_address=f"0000:{0x10 + gpu:02x}:00.0",
                index=gpu,
            ),
            reader="nvml",
            lane=Lane.FAST,
            measured_at=at + gpu,
            values=gpu_values(node, gpu, step),
            driver_session=1,
        )
        for gpu in range(GPUS)
    ]
    samples.append(
        Sample(view=None, reader="host", lane=Lane.FAST, measured_at=at + GPUS, values=host_values(node, step))
    )
    machine = Machine(name=f"node-{node:06d}", machine_id=f"{node:032x}", boot_id=f"boot-{node}")
    return Batch(
        cluster="local",
        sender=machine.name,
        epoch=epoch or f"{node + 1:032x}",
        seq=step + 1,
        sent_at=at + 1_000_000,
        reports=(MachineReport(machine=machine, samples=tuple(samples)),),
    )
