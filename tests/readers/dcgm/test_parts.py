"""GPUs in MIG mode: every MIG device is reported with its own identity and readings."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.dcgm_wire.replies import Instance
from gpufleet.codecs.dcgm_wire.values import COMPUTE_INSTANCE, GPU, GPU_INSTANCE, Entity
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.readers.dcgm.session import mig_devices_of, mig_entities_of
from gpufleet.simulate.dcgm.state import EngineState
from gpufleet.simulate.dcgm.values import compute_instance_values
from tests.readers.dcgm.engines import blanks, reading
from tests.readers.dcgm.test_faults import values_of

GPU_KEY = "gpu/GPU-5b4e07f6-3a86-4340-039d-000000000000"
UUID, PROFILE = 54, 50


def parts(found: Round) -> dict[str, Sample]:
    return {
        str(one.view.instance): one for one in found.samples if one.view is not None and one.view.kind is ViewKind.MIG
    }


def mig_views(found: Round) -> set[View]:
    return {one.view for one in found.samples if one.view is not None and one.view.kind is ViewKind.MIG}


def mig_engine(*, named: bool) -> EngineState:
    """Return an engine with two GPUs in MIG mode: three MIG devices and one, with or without UUIDs."""
    state = EngineState.with_mig(2)
    state.gpus[1].values[67], state.gpus[1].instances = 1, [("7g.141gb", 7)]
    state.parts[GPU_INSTANCE, 2] = {PROFILE: "7g.141gb"}
    state.parts[COMPUTE_INSTANCE, 3] = compute_instance_values(3)
    for number in range(4 if named else 0):
        state.parts[COMPUTE_INSTANCE, number][UUID] = f"MIG-6a3c1ac4-4b1e-5d9f-8d6a-00000000000{number}"
    return state


async def test_each_mig_device_has_its_own_readings(tmp_path: Path) -> None:
    async with reading(tmp_path, EngineState.with_mig(2), side=Side.GUEST) as (reader, _):
        fast, slow = await reader.read(Lane.FAST), await reader.read(Lane.SLOW)
    found = parts(fast)
    assert set(found) == {"1/0@0000:05:00.0", "2/0@0000:05:00.0", "2/1@0000:05:00.0"}
    third = found["2/1@0000:05:00.0"]
    assert third.view is not None
    assert (third.view.parent, third.view.side, third.view.uuid) == (GPU_KEY, Side.GUEST, None)
    values = third.values
    assert values["gpu_memory_used_bytes"] == 802 << 20
    assert values["gpu_memory_total_bytes"] == 71_000 << 20
    assert values["gpu_sm_activity_ratio"] == pytest.approx(0.80)
    assert values["gpu_dram_activity_ratio"] == pytest.approx(0.6)  # of its GPU instance, which shares the memory
    assert values["gpu_utilization_ratio"] == Absent(Reason.NOT_IN_MIG_MODE)
    assert (values["mig_profile"], values["mig_gpu_instance"], values["mig_compute_instance"]) == (
        "3c.4g.71gb",
        "2",
        "1",
    )
    assert "gpu_power_watts" not in values
    assert found["1/0@0000:05:00.0"].values["mig_profile"] == "3g.71gb"
    assert parts(slow)["2/1@0000:05:00.0"].values == {"mig_gpu_slices": 4, "mig_compute_slices": 3}
    assert values_of(fast)["gpu_mig_devices"] == 3
    assert "gpu_mig_devices" not in values_of(fast, 1)


async def test_mig_device_with_a_uuid_is_identified_by_it(tmp_path: Path) -> None:
    state = EngineState.with_mig(1)
    state.parts[COMPUTE_INSTANCE, 0][UUID] = "MIG-6a3c1ac4-4b1e-5d9f-8d6a-000000000001"
    async with reading(tmp_path, state) as (reader, _):
        views = {one.view.key for one in (await reader.read(Lane.FAST)).samples if one.view is not None}
    assert "mig/MIG-6a3c1ac4-4b1e-5d9f-8d6a-000000000001" in views


@pytest.mark.parametrize("named", [True, False], ids=["UUIDs", "no UUIDs"])
async def test_mig_devices_have_one_view_in_all_lanes(tmp_path: Path, *, named: bool) -> None:
    state = mig_engine(named=named)
    async with reading(tmp_path, state) as (reader, _):
        fast, slow = [mig_views(await reader.read(lane)) for lane in (Lane.FAST, Lane.SLOW)]
    assert len(fast) == 4
    assert fast == slow


@pytest.mark.parametrize("lane", [Lane.FAST, Lane.SLOW])
@pytest.mark.parametrize("named", [True, False], ids=["UUIDs", "no UUIDs"])
async def test_mig_devices_of_an_unread_gpu_keep_their_views(tmp_path: Path, lane: Lane, *, named: bool) -> None:
    """Another GPU is in MIG mode: the engine still lists the MIG devices of the lost one."""
    state = mig_engine(named=named)
    async with reading(tmp_path, state) as (reader, _):
        before = await reader.read(lane)
        state.gpus[0].values = blanks(state.gpus[0].values)
        for number in range(3):
            state.parts[COMPUTE_INSTANCE, number] = blanks(state.parts[COMPUTE_INSTANCE, number])
        found = await reader.read(lane)
    assert mig_views(found) == mig_views(before)
    lost = [one for one in found.samples if one.view is not None and one.view.parent == GPU_KEY]
    assert len(lost) == 3
    assert all(isinstance(value, Absent) for one in lost for value in one.values.values())


@pytest.mark.parametrize("named", [True, False], ids=["UUIDs", "no UUIDs"])
async def test_unlistable_mig_devices_are_kept_with_absent_values(tmp_path: Path, *, named: bool) -> None:
    state = EngineState.with_mig(1)
    if named:
        state.parts[COMPUTE_INSTANCE, 0][UUID] = "MIG-6a3c1ac4-4b1e-5d9f-8d6a-000000000001"
    async with reading(tmp_path, state) as (reader, _):
        before = await reader.read(Lane.FAST)
        state.hierarchy_error = -3
        found = await reader.read(Lane.FAST)
    assert mig_views(found) == mig_views(before)
    assert "MIG devices cannot be listed" in found.errors[0]
    assert len(parts(found)) == 3
    for sample in parts(found).values():
        assert {value.reason for value in sample.values.values() if isinstance(value, Absent)} == {Reason.DRIVER_ERROR}
        assert all(isinstance(value, Absent) for value in sample.values.values())
    assert isinstance(values_of(found)["gpu_mig_devices"], Absent)
    assert values_of(found)["gpu_power_watts"] == 312.25


async def test_mig_devices_of_a_lost_gpu_are_absent(tmp_path: Path) -> None:
    state = EngineState.with_mig(1)
    async with reading(tmp_path, state) as (reader, _):
        before = parts(await reader.read(Lane.FAST))
        state.gpus[0].statuses = dict.fromkeys(set(state.gpus[0].values) - {54, 57}, -18)
        found = await reader.read(Lane.FAST)
    assert values_of(found)["gpu_state"] == "lost"
    assert parts(found).keys() == before.keys()
    for sample in parts(found).values():
        assert set(sample.values.values()) == {Absent(Reason.GPU_LOST)}


async def test_disabling_mig_removes_its_devices(tmp_path: Path) -> None:
    state = EngineState.with_mig(1)
    async with reading(tmp_path, state) as (reader, engine):
        assert parts(await reader.read(Lane.FAST))
        state.gpus[0].values |= {67: 0, 203: 50}
        state.gpus[0].instances.clear()
        found = await reader.read(Lane.FAST)
        assert not engine.held[0].groups  # no field of a MIG device is watched any longer
    assert not parts(found)
    assert values_of(found)["gpu_utilization_ratio"] == 0.5


entities = st.builds(Entity, st.integers(0, 6), st.integers(0, 4))


@given(st.lists(st.builds(Instance, entities, entities, st.just("GPU-1"), *[st.integers(0, 5)] * 5), max_size=12))
def test_any_hierarchy_yields_mig_devices_of_gpus(hierarchy: list[Instance]) -> None:
    found = mig_devices_of(hierarchy)
    assert len({part.compute_instance for part in found}) == len(found)
    for part in found:
        assert (part.gpu.group, part.gpu_instance.group, part.compute_instance.group) == (
            GPU,
            GPU_INSTANCE,
            COMPUTE_INSTANCE,
        )
    assert len(set(mig_entities_of(found))) == len(mig_entities_of(found))
