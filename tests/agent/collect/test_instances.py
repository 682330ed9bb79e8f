"""MIG devices and vGPU instances in a snapshot: listed after their GPU, removed when a pass no longer lists them."""

from gpufleet.agent.collect.assemble import assemble
from gpufleet.model.catalogue import Lane
from gpufleet.model.snapshot import Snapshot
from tests.support.cut_gpus import cut_world, fast_samples, mig, vgpu
from tests.support.passes import World, gpu


def snap(world: World) -> Snapshot:
    return assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})


def test_instances_are_listed_after_their_gpu_by_number() -> None:
    snapshot = snap(cut_world())
    keys = [gpu(0).key, mig(9).key, mig(10).key, gpu(1).key, vgpu(3).key, vgpu(20).key]
    assert [device.key for device in snapshot.devices] == keys
    assert [device.parent for device in snapshot.devices] == [
        None,
        gpu(0).key,
        gpu(0).key,
        None,
        gpu(1).key,
        gpu(1).key,
    ]
    assert [device.name for device in snapshot.devices] == [
        "NVIDIA H200", "MIG 1g.18gb", "MIG 1g.18gb", None, "NVIDIA L40S-12Q", "NVIDIA L40S-12Q",
    ]  # fmt: skip


def test_partitioned_gpu_is_counted_once() -> None:
    aggregate = snap(cut_world()).aggregate
    assert aggregate.coverage == "2 of 2 devices"
    assert aggregate.metrics["gpu_memory_used_bytes"].value == 2**31 + 1


def test_instance_not_listed_by_a_newer_partial_pass_is_gone() -> None:
    world = cut_world()
    world.clock.advance(10)
    samples = [sample for sample in fast_samples(world) if sample.view not in (mig(9), vgpu(20))]
    world.passed("nvml", Lane.FAST, *samples, errors=("the GPU at index 5 cannot be named",))
    assert [device.key for device in snap(world).devices] == [gpu(0).key, mig(10).key, gpu(1).key, vgpu(3).key]


def test_gpu_missing_from_a_partial_pass_keeps_its_instances() -> None:
    world = cut_world()
    world.clock.advance(10)
    samples = [s for s in fast_samples(world) if s.view is not None and gpu(0).key not in (s.view.key, s.view.parent)]
    world.passed("nvml", Lane.FAST, *samples, errors=("the GPU at index 0 cannot be named",))
    assert mig(9).key in [device.key for device in snap(world).devices]
