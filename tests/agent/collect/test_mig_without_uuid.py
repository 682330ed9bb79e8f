"""MIG devices that DCGM reports without UUID and NVML with UUID: each is shown and sent once."""

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.collect.state import without_unnamed
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import Side, View, ViewKind
from tests.support.cut_gpus import cut_world, mig
from tests.support.passes import World, gpu

UNNAMED = View(kind=ViewKind.MIG, side=Side.HOST, instance="9/0@0000:1b:00.0", parent=gpu(0).key)
ELSEWHERE = View(kind=ViewKind.MIG, side=Side.HOST, instance="1/0@0000:3b:00.0", parent=gpu(7).key)


def sample(world: World, view: View) -> Sample:
    return Sample(
        view=view, reader="dcgm", lane=Lane.FAST, measured_at=world.clock.now_ns(), values={"gpu_memory_used_bytes": 7}
    )


def keys(world: World) -> list[str]:
    found = assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})
    return [device.key for device in found.devices]


def test_mig_devices_without_uuid_are_dropped_if_nvml_has_uuids() -> None:
    world = cut_world()
    outcome = world.outcome("dcgm", Lane.FAST, Round(samples=(sample(world, UNNAMED), sample(world, ELSEWHERE))))
    filtered = without_unnamed(outcome, world.state)
    assert filtered.round is not None
    assert [one.view for one in filtered.round.samples] == [ELSEWHERE]


def test_mig_devices_without_uuid_are_hidden_even_if_read_first() -> None:
    world = cut_world(dcgm=(Lane.FAST,))
    world.passed("dcgm", Lane.FAST, sample(world, UNNAMED), sample(world, ELSEWHERE))
    shown = keys(world)
    assert UNNAMED.key not in shown
    assert ELSEWHERE.key in shown
    assert mig(9).key in shown


def test_mig_devices_without_uuid_of_the_same_reader_are_kept() -> None:
    world = cut_world()
    outcome = world.outcome("nvml", Lane.FAST, Round(samples=(sample(world, UNNAMED),)))
    assert without_unnamed(outcome, world.state).round == outcome.round
