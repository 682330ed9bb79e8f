"""Instances of a lost GPU."""

from gpufleet.fleet.lost_instances import MAX_LISTS, InstanceMemory
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.view import Side, View, ViewKind

GPU = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1")
LOST = {GPU.key: Absent(Reason.GPU_LOST)}


def sample(view: View, at: int = 1) -> Sample:
    dims = (DimValue("gpu_ecc_location_errors_total", ("sram", "uncorrected"), 0),)
    values: dict[str, Value | Absent] = {"gpu_memory_used_bytes": 5}
    return Sample(view=view, reader="x", lane=Lane.FAST, measured_at=at, values=values, dims=dims, processes=())


def mig(number: int) -> View:
    return View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{number}", parent=GPU.key)


def test_instances_of_a_lost_gpu_are_absent() -> None:
    memory = InstanceMemory()
    assert memory.missing([sample(GPU), sample(mig(1)), sample(mig(2))], {}, Lane.FAST) == []
    for _ in range(2):
        (found,) = memory.missing([sample(GPU, 9), sample(mig(1), 9)], LOST, Lane.FAST)
        assert (found.view, found.measured_at, found.processes) == (mig(2), 9, None)
        assert set(found.values.values()) == {Absent(Reason.GPU_LOST)}
        assert [dim.value for dim in found.dims] == [Absent(Reason.GPU_LOST)]


def test_instances_that_a_working_gpu_no_longer_has_are_gone() -> None:
    memory = InstanceMemory()
    memory.missing([sample(GPU), sample(mig(1))], {}, Lane.FAST)
    assert memory.missing([sample(GPU)], {}, Lane.FAST) == []
    assert memory.missing([sample(GPU)], LOST, Lane.FAST) == []


def test_lanes_are_remembered_separately() -> None:
    memory = InstanceMemory()
    memory.missing([sample(GPU), sample(mig(1))], {}, Lane.FAST)
    assert memory.missing([sample(GPU)], LOST, Lane.SLOW) == []


def test_memory_is_bounded() -> None:
    memory = InstanceMemory()
    for number in range(MAX_LISTS + 1):
        gpu = View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}")
        part = View(kind=ViewKind.MIG, side=Side.HOST, uuid=f"MIG-{number}", parent=gpu.key)
        memory.missing([sample(gpu), sample(part)], {}, Lane.FAST)
    first = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-0")
    assert memory.missing([sample(first)], {first.key: Absent(Reason.GPU_LOST)}, Lane.FAST) == []
