"""State of a GPU by the values that the engine returned, and the events that follow."""

from pathlib import Path

import pytest

from gpufleet.fleet.ecc import ECC_COUNTS
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Round, Sample
from gpufleet.model.view import ViewKind
from gpufleet.simulate.dcgm.state import COMPUTE_INSTANCE, GPU_INSTANCE, GPU_LOST, EngineFault, EngineState
from tests.readers.dcgm.engines import blanks, reading

UUID, PCI_BUS_ID, MIG_MODE, POWER, ECC_MODE = 54, 57, 67, 155, 300
PROFILE, SM_ACTIVITY, DRAM_ACTIVITY = 50, 1002, 1005
NOT_SUPPORTED, GENERIC_ERROR, RESET_REQUIRED, DRIVER_TIMEOUT = -6, -3, -19, -57


def of_gpu(found: Round, index: int) -> Sample:
    (sample,) = [one for one in found.samples if one.view is not None and one.view.index == index]
    return sample


@pytest.mark.parametrize(
    ("status", "state", "kinds"),
    [
        (GPU_LOST, "lost", ["gpu_lost"]),
        (RESET_REQUIRED, "reset_required", ["gpu_reset_required"]),
        (GENERIC_ERROR, "error", ["gpu_failed"]),
        (DRIVER_TIMEOUT, "error", ["gpu_failed"]),
    ],
)
async def test_one_status_decides_the_state(status: int, state: str, kinds: list[str], tmp_path: Path) -> None:
    engine = EngineState.healthy(2)
    engine.gpus[1].statuses[POWER] = status
    async with reading(tmp_path, engine) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert [of_gpu(found, index).values["gpu_state"] for index in (0, 1)] == ["ok", state]
    assert [(event.kind, event.view, event.attributes) for event in found.events] == [
        (kind, of_gpu(found, 1).view, {"sources": "dcgm"}) for kind in kinds
    ]


async def test_gpu_with_errors_only_is_unreadable(tmp_path: Path) -> None:
    engine = EngineState.healthy(2)
    engine.gpus[1].statuses = dict.fromkeys(set(engine.gpus[1].values) - {UUID, PCI_BUS_ID}, GENERIC_ERROR)
    async with reading(tmp_path, engine) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert of_gpu(found, 1).values["gpu_state"] == "unreadable"


@pytest.mark.parametrize("lost_ids", [[1], [0, 1]])
@pytest.mark.parametrize("closes", [False, True])
async def test_lost_gpu_without_identity_keeps_its_own(tmp_path: Path, *, closes: bool, lost_ids: list[int]) -> None:
    engine = EngineState.healthy(2)
    async with reading(tmp_path, engine) as (reader, _):
        known = of_gpu(await reader.read(Lane.FAST), 1).view
        if closes:
            await reader.close()
        for number in lost_ids:
            engine.gpus[number].statuses = dict.fromkeys(engine.gpus[number].values, GPU_LOST)
        lost = await reader.read(Lane.FAST)
        if closes:
            await reader.close()
        for number in lost_ids:
            engine.gpus[number].statuses = {}
        recovered = await reader.read(Lane.FAST)
    assert of_gpu(lost, 1).view == known
    assert of_gpu(lost, 1).values["gpu_state"] == "lost"
    assert [event.kind for event in lost.events] == ["gpu_lost"] * len(lost_ids)
    assert [event.kind for event in recovered.events] == ["gpu_recovered"] * len(lost_ids)


async def test_gpu_with_blanks_only_is_unreadable(tmp_path: Path) -> None:
    engine = EngineState.healthy(2)
    engine.gpus[1].values[MIG_MODE], engine.gpus[1].instances = 1, [("1g.18gb", 1)]
    values = engine.gpus[1].values
    async with reading(tmp_path, engine) as (reader, _):
        known = [await reader.read(lane) for lane in (Lane.FAST, Lane.SLOW)]
        engine.gpus[1].values = blanks(values)
        engine.gpus[1].instances = []
        blank = [await reader.read(lane) for lane in (Lane.FAST, Lane.SLOW, Lane.STATIC)]
        engine.gpus[1].values = values
        recovered = await reader.read(Lane.FAST)
    assert [of_gpu(one, 1).view for one in blank] == [of_gpu(known[0], 1).view] * 3
    assert of_gpu(blank[0], 1).values["gpu_state"] == "unreadable"
    assert of_gpu(blank[0], 0).values["gpu_state"] == "ok"
    for before, after in zip(known, blank, strict=False):
        (mig,) = [one for one in before.samples if one.view is not None and one.view.kind is ViewKind.MIG]
        (absent,) = [one for one in after.samples if one.view == mig.view]
        assert all(isinstance(value, Absent) for value in absent.values.values())
    assert [event.kind for one in blank for event in one.events] == ["gpu_failed"]
    assert [event.kind for event in recovered.events] == ["gpu_recovered"]


@pytest.mark.parametrize("ids", [{0: 0, 1: 1, 2: 3, 3: 2}, {0: 0, 1: 1, 2: 2}], ids=["other ids", "fewer GPUs"])
async def test_lost_gpu_of_a_restarted_engine_has_no_earlier_identity(ids: dict[int, int], tmp_path: Path) -> None:
    """The new engine's GPU 1 is lost. It reports no identity, and can be another one than the old engine's GPU 1."""
    engine = EngineState.healthy(4)
    async with reading(tmp_path, engine) as (reader, _):
        await reader.read(Lane.FAST)
        await reader.close()
        engine.gpus = {number: engine.gpus[before] for number, before in ids.items()}
        engine.gpus[1].statuses = dict.fromkeys(engine.gpus[1].values, GPU_LOST)
        restarted = await reader.read(Lane.FAST)
    named = [one.view.index for one in restarted.samples if one.view is not None]
    assert named == [number for number in ids if number != 1]
    assert restarted.events == ()


@pytest.mark.parametrize("status", [0, NOT_SUPPORTED])
async def test_zeros_without_ecc_are_not_values(status: int, tmp_path: Path) -> None:
    engine = EngineState.healthy(2)
    engine.gpus[1].values |= dict.fromkeys((ECC_MODE, 310, 311, 312, 313), 0)
    engine.gpus[1].statuses[ECC_MODE] = status
    async with reading(tmp_path, engine) as (reader, _):
        found = [await reader.read(lane) for lane in (Lane.FAST, Lane.SLOW)]
    counts = [
        {name: value for pass_ in found for name, value in of_gpu(pass_, index).values.items() if name in ECC_COUNTS}
        for index in (0, 1)
    ]
    assert len(counts[0]) == len(counts[1]) == 4
    assert not any(isinstance(value, Absent) for value in counts[0].values())
    assert set(counts[1].values()) == {Absent(Reason.NOT_SUPPORTED, "DCGM 300")}


@pytest.mark.parametrize(
    ("status", "reason"), [(-57, Reason.TIMEOUT), (-17, Reason.NOT_PERMITTED), (-14, Reason.NO_DATA)]
)
async def test_zeros_with_an_unreadable_ecc_mode_are_not_values(status: int, reason: Reason, tmp_path: Path) -> None:
    """A count above zero proves that the zero beside it was counted."""
    engine = EngineState.healthy(2)
    for gpu, count in zip(engine.gpus.values(), (3, 0), strict=True):
        gpu.values |= {ECC_MODE: 0, 310: count, 311: 0}
        gpu.statuses[ECC_MODE] = status
    async with reading(tmp_path, engine) as (reader, _):
        found = await reader.read(Lane.FAST)
    names = ("gpu_ecc_corrected_errors_total", "gpu_ecc_uncorrected_errors_total")
    counted, unproven = ([of_gpu(found, index).values[name] for name in names] for index in (0, 1))
    assert (counted, unproven) == ([3, 0], [Absent(reason, "DCGM 300")] * 2)


async def test_identities_of_zeros_are_not_values(tmp_path: Path) -> None:
    engine = EngineState.healthy(2)
    engine.gpus[1].values |= {53: "0", 85: "00.00.00.00.00"}
    async with reading(tmp_path, engine) as (reader, _):
        values = of_gpu(await reader.read(Lane.STATIC), 1).values
    assert {values["gpu_serial"], values["gpu_vbios_version"]} == {
        Absent(Reason.NOT_SUPPORTED, "gpu_serial"),
        Absent(Reason.NOT_SUPPORTED, "gpu_vbios_version"),
    }


@pytest.mark.parametrize(
    ("part", "field"),
    [((COMPUTE_INSTANCE, 1), 252), ((GPU_INSTANCE, 1), PROFILE), ((GPU_INSTANCE, 1), DRAM_ACTIVITY)],
)
async def test_lost_mig_device_is_a_lost_gpu(part: tuple[int, int], field: int, tmp_path: Path) -> None:
    engine = EngineState.with_mig(2)
    engine.part_statuses[part] = {field: GPU_LOST}
    async with reading(tmp_path, engine) as (reader, _):
        found = await reader.read(Lane.FAST)
    gpus = [one for one in found.samples if one.view is not None and one.view.kind is ViewKind.GPU]
    assert [one.values["gpu_state"] for one in gpus] == ["lost", "ok"]
    assert [(event.kind, event.view) for event in found.events] == [("gpu_lost", gpus[0].view)]


async def test_lost_profiling_field_is_a_lost_gpu(tmp_path: Path) -> None:
    engine = EngineState.healthy(2)
    engine.gpus[1].statuses[SM_ACTIVITY] = GPU_LOST
    async with reading(tmp_path, engine) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert [of_gpu(found, index).values["gpu_state"] for index in (0, 1)] == ["ok", "lost"]
    assert [(event.kind, event.view) for event in found.events] == [("gpu_lost", of_gpu(found, 1).view)]


async def test_old_loss_of_a_profiling_field_is_stale(tmp_path: Path) -> None:
    """The engine no longer samples it: the GPU can have recovered since."""
    engine = EngineState.healthy(2)
    engine.gpus[1].statuses[SM_ACTIVITY] = GPU_LOST
    engine.faults.add(EngineFault.STALE)
    async with reading(tmp_path, engine) as (reader, _):
        found = await reader.read(Lane.FAST)
    values = [of_gpu(found, 1).values[name] for name in ("gpu_state", "gpu_sm_activity_ratio")]
    assert [isinstance(value, Absent) and value.reason for value in values] == [Reason.STALE] * 2
    assert found.events == ()


async def test_worst_reason_of_a_gpu_and_its_mig_devices_decides(tmp_path: Path) -> None:
    engine = EngineState.with_mig(2)
    engine.part_statuses = {(GPU_INSTANCE, 1): {PROFILE: RESET_REQUIRED}, (COMPUTE_INSTANCE, 1): {252: GPU_LOST}}
    engine.gpus[0].statuses[POWER] = RESET_REQUIRED
    async with reading(tmp_path, engine) as (reader, _):
        found = await reader.read(Lane.FAST)
    gpus = [one for one in found.samples if one.view is not None and one.view.kind is ViewKind.GPU]
    assert [one.values["gpu_state"] for one in gpus] == ["lost", "ok"]
