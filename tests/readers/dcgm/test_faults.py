"""An engine that goes wrong costs its own readings: what is told is true, or absent, and a neighbour is not held up."""

import asyncio
from pathlib import Path

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample
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
"""Faults that fail a pass, with the number or name that the error has to show."""

HARMLESS = {EngineFault.TRICKLE, EngineFault.REORDER, EngineFault.NOTIFY, EngineFault.WRONG_LENGTH, EngineFault.ESCAPES}
"""Everything is read."""

OF_SOME = {
    EngineFault.PARTIAL,
    EngineFault.BLOBS,
    EngineFault.FROZEN,
    EngineFault.STALE,
    EngineFault.WIDE_IDS,
    EngineFault.SAME_NAME,
}
"""Part of it is not; each has a test of its own."""


def values_of(found: Round, index: int = 0) -> dict[str, object]:
    (sample,) = [one for one in found.samples if one.view is not None and one.view.index == index]
    return dict(sample.values)


def assert_true(samples: tuple[Sample, ...]) -> None:
    """Whatever an engine says, a reading is of its type, in its range, and has no control characters."""
    for sample in samples:
        for metric, value in (*sample.values.items(), *((dim.metric, dim.value) for dim in sample.dims)):
            row = CATALOGUE[metric]
            if isinstance(value, Absent):
                continue
            if isinstance(value, str):
                assert value.isprintable(), metric
                assert not row.states or value in row.states
            else:
                assert row.low is None or value >= row.low, metric
                assert row.high is None or value <= row.high, metric


def test_every_fault_is_tried() -> None:
    assert set(EngineFault) == {*BROKEN, *HARMLESS, *OF_SOME}


@pytest.mark.parametrize("fault", sorted(HARMLESS))
async def test_an_odd_engine_is_read_all_the_same(fault: EngineFault, tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.faults.add(fault)
    async with reading(tmp_path, state) as (reader, _):
        static, fast = await reader.read(Lane.STATIC), await reader.read(Lane.FAST)
    assert values_of(fast, 1)["gpu_power_watts"] == 313.25
    assert values_of(fast, 1)["gpu_sm_activity_ratio"] == pytest.approx(0.71)
    assert_true((*static.samples, *fast.samples))


@pytest.mark.parametrize("fault", sorted(BROKEN))
async def test_a_broken_engine_costs_its_reader_a_pass_and_no_more(fault: EngineFault, tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    async with reading(tmp_path, state, reply_seconds=0.3) as (reader, _):
        for _ in range(2):
            state.faults = {fault}
            with pytest.raises(ReaderError, match=BROKEN[fault] or None):
                await reader.read(Lane.STATIC)
            state.faults = set()
            assert values_of(await reader.read(Lane.FAST), 1)["gpu_power_watts"] == 313.25


@pytest.mark.parametrize("fault", EngineFault)
async def test_a_neighbour_is_read_meanwhile(fault: EngineFault, tmp_path: Path) -> None:
    bad = EngineState.healthy(1)
    bad.faults.add(fault)
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    async with (
        reading(tmp_path / "bad", bad, reply_seconds=0.3) as (guest, _),
        reading(tmp_path / "good", EngineState.healthy(1)) as (neighbour, _),
    ):
        suffering = asyncio.create_task(_read_or_fail(guest))
        found = [await neighbour.read(Lane.FAST) for _ in range(3)]
        assert_true((await suffering).samples)
    assert all(values_of(one)["gpu_power_watts"] == 312.25 for one in found)


async def _read_or_fail(reader: object) -> Round:
    try:
        return await reader.read(Lane.FAST)  # type: ignore[attr-defined,no-any-return]
    except ReaderError:
        return Round()


async def test_what_is_missing_is_not_reported(tmp_path: Path) -> None:
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


async def test_values_that_are_bytes_name_and_tell_nothing(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.faults.add(EngineFault.BLOBS)
    async with reading(tmp_path, state) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert not [sample for sample in found.samples if sample.view is not None]
    assert len(found.errors) == 2


async def test_an_answer_of_before_is_no_answer(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(EngineFault.FROZEN)
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.FAST)
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.FAST)
    assert caught.value.absence is Reason.STALE


async def test_numbers_of_another_hour_than_the_texts_beside_them(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(EngineFault.STALE)
    async with reading(tmp_path, state) as (reader, _):
        found = values_of(await reader.read(Lane.FAST))
    power = found["gpu_power_watts"]
    assert isinstance(power, Absent)
    assert power.reason is Reason.STALE


async def test_group_ids_that_fit_nowhere_cost_what_is_watched(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.faults.add(EngineFault.WIDE_IDS)
    async with reading(tmp_path, state) as (reader, _):
        found = values_of(await reader.read(Lane.FAST))
    assert found["gpu_power_watts"] == 312.25
    activity = found["gpu_sm_activity_ratio"]
    assert isinstance(activity, Absent)
    assert activity.reason is Reason.READER_FAILED


async def test_gpus_with_one_name_are_none_of_them(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.faults.add(EngineFault.SAME_NAME)
    async with reading(tmp_path, state) as (reader, _):
        found = await reader.read(Lane.FAST)
    assert not [sample for sample in found.samples if sample.view is not None]
    assert "GPU 1 and GPU 0" in found.errors[0]
