"""Faulty engines: an engine fault affects only its own readings, and no neighbour is delayed."""

import asyncio
from pathlib import Path

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample
from gpufleet.model.text import clean
from gpufleet.simulate.dcgm.state import EngineFault, EngineState
from tests.readers.dcgm.engines import reading

BROKEN = {
    EngineFault.WRONG_MAGIC: "",
    EngineFault.HANG_UP: "",
    EngineFault.NO_REPLY: r"\b0\.3\b",
    EngineFault.UNKNOWN_VERSION: r"9\.0\.0",
    EngineFault.LONG_BODY: "2147483647",
    EngineFault.SHORT_BODY: r"\b30\b",
    EngineFault.DRIP: r"\b0\.3\b",
    EngineFault.FLOOD: "",
    EngineFault.ERROR: "GENERIC_ERROR",
    EngineFault.VERSION_MISMATCH: "",
    EngineFault.OTHER_COMMAND: r"\b999\b",
    EngineFault.WRONG_COUNT: "5000",
    EngineFault.ZERO_RECORD: r"\b0\b",
    EngineFault.LONG_RECORD: "65535",
    EngineFault.UNREQUESTED: "",
    EngineFault.HUGE: "4194612",
}
"""Faults that fail a pass, with a pattern that the error has to match."""

HARMLESS = {EngineFault.TRICKLE, EngineFault.REORDER, EngineFault.NOTIFY, EngineFault.WRONG_LENGTH, EngineFault.ESCAPES}
"""Faults that do not affect any reading."""

OF_SOME = {
    EngineFault.PARTIAL,
    EngineFault.BLOBS,
    EngineFault.FROZEN,
    EngineFault.STALE,
    EngineFault.WIDE_IDS,
    EngineFault.SAME_NAME,
}
"""Faults that affect some readings. Each has its own test."""


def values_of(found: Round, index: int = 0) -> dict[str, object]:
    (sample,) = [one for one in found.samples if one.view is not None and one.view.index == index]
    return dict(sample.values)


def assert_true(samples: tuple[Sample, ...]) -> None:
    """Check that every reading has its type, is in its range, and has no control characters."""
    for sample in samples:
        for metric, value in (*sample.values.items(), *((dim.metric, dim.value) for dim in sample.dims)):
            row = CATALOGUE[metric]
            if isinstance(value, Absent):
                continue
            if isinstance(value, str):
                assert value == clean(value), metric
                assert not row.states or value in row.states
            else:
                assert row.low is None or value >= row.low, metric
                assert row.high is None or value <= row.high, metric


def test_every_fault_is_covered() -> None:
    assert set(EngineFault) == {*BROKEN, *HARMLESS, *OF_SOME}


@pytest.mark.parametrize("fault", sorted(HARMLESS))
async def test_harmless_fault_does_not_affect_readings(fault: EngineFault, tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.faults.add(fault)
    async with reading(tmp_path, state) as (reader, _):
        static, fast = await reader.read(Lane.STATIC), await reader.read(Lane.FAST)
    assert values_of(fast, 1)["gpu_power_watts"] == 313.25
    assert values_of(fast, 1)["gpu_sm_activity_ratio"] == pytest.approx(0.71)
    assert_true((*static.samples, *fast.samples))


@pytest.mark.parametrize("fault", sorted(BROKEN))
async def test_broken_engine_fails_one_pass_only(fault: EngineFault, tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    async with reading(tmp_path, state, reply_seconds=0.3) as (reader, _):
        for _ in range(2):
            state.faults = {fault}
            with pytest.raises(ReaderError, match=BROKEN[fault] or None):
                await reader.read(Lane.STATIC)
            state.faults = set()
            assert values_of(await reader.read(Lane.FAST), 1)["gpu_power_watts"] == 313.25


@pytest.mark.parametrize("fault", EngineFault)
async def test_neighbour_of_a_faulty_engine_is_read(fault: EngineFault, tmp_path: Path) -> None:
    bad = EngineState.healthy(1)
    bad.faults.add(fault)
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    async with (
        reading(tmp_path / "bad", bad, reply_seconds=0.3) as (guest, _),
        reading(tmp_path / "good", EngineState.healthy(1)) as (neighbour, _),
    ):
        faulty = asyncio.create_task(_read_or_fail(guest))
        found = [await neighbour.read(Lane.FAST) for _ in range(3)]
        assert_true((await faulty).samples)
    assert all(values_of(one)["gpu_power_watts"] == 312.25 for one in found)


async def _read_or_fail(reader: object) -> Round:
    try:
        return await reader.read(Lane.FAST)  # type: ignore[attr-defined,no-any-return]
    except ReaderError:
        return Round()


async def test_missing_values_are_not_reported(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    async with reading(tmp_path, state) as (reader, _):
        whole = values_of(await reader.read(Lane.FAST))
        state.faults.add(EngineFault.PARTIAL)
        found = values_of(await reader.read(Lane.FAST))
    missing = {
        name for name, value in found.items() if isinstance(value, Absent) and value.reason is Reason.NOT_REPORTED
    }
    assert 5 < len(missing) < len(whole)
    assert all(found[name] == whole[name] for name in whole if name not in missing)


async def test_binary_values_identify_no_gpu(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.faults.add(EngineFault.BLOBS)
    async with reading(tmp_path, state) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert not [sample for sample in found.samples if sample.view is not None]
    assert len(found.errors) == 2


async def test_repeated_old_values_are_stale(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(EngineFault.FROZEN)
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.FAST)
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.FAST)
    assert caught.value.absence is Reason.STALE


async def test_old_numbers_beside_fresh_texts_are_stale(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(EngineFault.STALE)
    async with reading(tmp_path, state) as (reader, _):
        found = values_of(await reader.read(Lane.FAST))
    power = found["gpu_power_watts"]
    assert isinstance(power, Absent)
    assert power.reason is Reason.STALE


async def test_oversized_group_ids_affect_only_watched_fields(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(EngineFault.WIDE_IDS)
    async with reading(tmp_path, state) as (reader, _):
        found = values_of(await reader.read(Lane.FAST))
    assert found["gpu_power_watts"] == 312.25
    activity = found["gpu_sm_activity_ratio"]
    assert isinstance(activity, Absent)
    assert activity.reason is Reason.READER_FAILED


async def test_gpus_with_the_same_uuid_are_left_out(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.faults.add(EngineFault.SAME_NAME)
    async with reading(tmp_path, state) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert not [sample for sample in found.samples if sample.view is not None]
    assert "GPU 1 and GPU 0" in found.errors[0]
