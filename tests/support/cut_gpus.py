"""Two GPUs, one with MIG devices and one with vGPUs, as passes of a reader."""

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Sample, Value
from gpufleet.model.view import Side, View, ViewKind
from tests.support.passes import World, gpu

VM = "5a1c3f0e-8f5b-4d0a-9d5e-3c1f4a2b6d70"


def mig(number: int, parent: int = 0) -> View:
    return View(
        kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{number:08x}", instance=f"{number}/0", parent=gpu(parent).key
    )


def vgpu(number: int, parent: int = 1) -> View:
    return View(
        kind=ViewKind.VGPU, side=Side.VGPU_HOST, uuid=f"{number:08x}-vgpu", instance=str(number), parent=gpu(parent).key
    )


def cut_world(**others: tuple[Lane, ...]) -> World:
    """Return GPU 0 with MIG devices 9 and 10, and GPU 1 with vGPU instances 3 and 20, out of order.

    `others` are the lanes of other readers.
    """
    world = World({"nvml": (Lane.STATIC, Lane.SLOW, Lane.FAST), **others})
    world.passed("nvml", Lane.FAST, *fast_samples(world))
    world.passed("nvml", Lane.SLOW, _sample(world, Lane.SLOW, vgpu(20), vgpu_license_state="unlicensed_restricted"))
    world.passed("nvml", Lane.STATIC, _sample(world, Lane.STATIC, gpu(0), gpu_name="NVIDIA H200"))
    return world


def shared_world() -> World:
    """Return a world in which GPU 1 hosts vGPU instances 3 and 20, with every metric of the all-smi dialect."""
    world = World({"nvml": (Lane.STATIC, Lane.SLOW, Lane.FAST)})
    host: dict[str, Value] = {
        "gpu_vgpu_host_mode": "sriov",
        "gpu_vgpu_scheduler_arr_mode": "enabled",
        "gpu_vgpu_scheduler_arr_supported": 1,
        "gpu_vgpu_scheduler_policy": "best_effort",
        "gpu_mig_mode": "disabled",
    }
    use: dict[str, Value] = {
        "gpu_utilization_ratio": 0.64,
        "gpu_memory_activity_ratio": 0.45,
        "gpu_memory_total_bytes": 8 << 30,
        "gpu_memory_used_bytes": 3 << 30,
        "vgpu_type": "GRID A100-8C",
        "vgpu_vm_id": VM,
    }
    busy: dict[str, Value] = {"vgpu_accounting_processes": 3, "vgpu_active": 1}
    idle: dict[str, Value] = {"vgpu_accounting_processes": 0, "vgpu_active": 0}
    fast = [(gpu(1), dict[str, Value](gpu_state="ok")), (vgpu(3), use), (vgpu(20), use)]
    slow = [(gpu(1), host), (vgpu(20), busy), (vgpu(3), idle)]
    world.passed("nvml", Lane.FAST, *(world.sample("nvml", Lane.FAST, view, values) for view, values in fast))
    world.passed("nvml", Lane.SLOW, *(world.sample("nvml", Lane.SLOW, view, values) for view, values in slow))
    return world


def fast_samples(world: World) -> list[Sample]:
    """Return one fast pass over both GPUs."""
    shared = {"vgpu_type": "NVIDIA L40S-12Q", "vgpu_vm_id": VM, "vgpu_vm_id_kind": "uuid"}
    samples = [_sample(world, Lane.FAST, gpu(n), gpu_memory_used_bytes=2**30 + n, gpu_state="ok") for n in (0, 1)]
    for number in (10, 9):
        ids = {"mig_profile": "1g.18gb", "mig_gpu_instance": str(number), "mig_compute_instance": "0"}
        undefined = Absent(Reason.NOT_IN_MIG_MODE)
        samples.append(
            _sample(world, Lane.FAST, mig(number), gpu_utilization_ratio=undefined, gpu_memory_used_bytes=number, **ids)
        )
    return samples + [
        _sample(world, Lane.FAST, vgpu(number), gpu_utilization_ratio=0.25, gpu_memory_used_bytes=number, **shared)
        for number in (20, 3)
    ]


def _sample(world: World, lane: Lane, view: View, **values: Value | Absent) -> Sample:
    return world.sample("nvml", lane, view, values)
