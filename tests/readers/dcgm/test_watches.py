"""Watched fields: own groups only, created once, destroyed afterwards, absent with a reason if refused."""

from pathlib import Path

import pytest

from gpufleet.codecs.dcgm_wire.commands import READ_ONLY
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.simulate.dcgm.engine import SimulatedEngine
from gpufleet.simulate.dcgm.state import EngineState
from gpufleet.simulate.dcgm.values import PROFILING
from tests.readers.dcgm.engines import reading
from tests.readers.dcgm.test_faults import values_of
from tests.support.waiting import wait_until_async

WATCH, UNWATCH, FIELDS_CREATE, FIELDS_DESTROY, GROUP_CREATE, GROUP_DESTROY = 29, 30, 38, 39, 11, 13


def watched_by(engine: SimulatedEngine) -> set[int]:
    (connection,) = engine.held
    return {field for pairs in connection.watched.values() for _, _, field in pairs}


async def test_fields_are_watched_once_per_connection(tmp_path: Path) -> None:
    async with reading(tmp_path, EngineState.healthy(2)) as (reader, engine):
        for _ in range(3):
            await reader.read(Lane.FAST)
            await reader.read(Lane.EVENT)
        assert engine.commands.count(WATCH) == 2  # one for profiling, one for XIDs
        assert watched_by(engine) == {*range(1001, 1017), 230}
        assert set(engine.commands) <= READ_ONLY
        await reader.close()

        async def ended() -> bool:
            return not engine.held

        await wait_until_async(ended, what="the connection to end")
        await reader.read(Lane.FAST)
        assert engine.commands.count(WATCH) == 3


@pytest.mark.parametrize(
    ("code", "reason"),
    [(-36, Reason.NOT_SUPPORTED), (-17, Reason.NOT_PERMITTED), (-33, Reason.NOT_SUPPORTED), (-54, Reason.DRIVER_ERROR)],
)
async def test_refused_profiling_has_its_reason_and_is_retried(code: int, reason: Reason, tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.unwatchable = dict.fromkeys(PROFILING, code)
    async with reading(tmp_path, state) as (reader, engine):
        found = values_of(await reader.read(Lane.FAST))
        activity = found["gpu_sm_activity_ratio"]
        assert isinstance(activity, Absent)
        assert activity.reason is reason
        assert found["gpu_power_watts"] == 312.25
        created = engine.commands.count(FIELDS_CREATE)
        assert created == engine.commands.count(FIELDS_DESTROY) == 8  # halves, then three alone; all are destroyed
        await reader.read(Lane.FAST)
        assert engine.commands.count(FIELDS_CREATE) == created
        state.unwatchable.clear()
        await reader.read(Lane.STATIC)  # retried by the static lane
        assert values_of(await reader.read(Lane.FAST))["gpu_sm_activity_ratio"] == pytest.approx(0.72)


@pytest.mark.parametrize("code", [-18, -19])
async def test_refused_watch_is_no_evidence_about_a_gpu(code: int, tmp_path: Path) -> None:
    """One GPU of the group can be lost: the refusal does not name it. A value of a GPU does."""
    state = EngineState.healthy(2)
    state.unwatchable = dict.fromkeys(PROFILING, code)
    async with reading(tmp_path, state) as (reader, _):
        before = await reader.read(Lane.FAST)
        state.gpus[1].statuses[150] = code
        after = await reader.read(Lane.FAST)
    of_gpus = [one.values for one in before.samples if one.view is not None]
    assert [values["gpu_state"] for values in of_gpus] == ["ok", "ok"]
    for values in of_gpus:
        activity = values["gpu_sm_activity_ratio"]
        assert isinstance(activity, Absent)
        assert activity.reason is Reason.DRIVER_ERROR
    assert not before.events
    states = [one.values["gpu_state"] for one in after.samples if one.view is not None]
    assert states == ["ok", {-18: "lost", -19: "reset_required"}[code]]


@pytest.mark.parametrize(
    "refused", [{1016: -36}, {1001: -6, 1011: -36, 1012: -36}, dict.fromkeys(range(1002, 1017), -6)]
)
async def test_fields_that_fail_their_watch_affect_no_other(refused: dict[int, int], tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.unwatchable = refused
    async with reading(tmp_path, state) as (reader, engine):
        found = values_of(await reader.read(Lane.FAST))
        assert watched_by(engine) == set(range(1001, 1017)) - set(refused)
        assert len(engine.held[0].fields) == len(engine.held[0].watched)
    by_field = {1001: "gpu_graphics_activity_ratio", 1011: "gpu_nvlink_transmit_bytes_per_second"}
    by_field |= {1016: "gpu_integer_activity_ratio", 1008: "gpu_fp16_activity_ratio"}
    assert {field for field, metric in by_field.items() if isinstance(found[metric], Absent)} == set(refused) & set(
        by_field
    )


async def test_unknown_watched_fields_affect_no_other(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.unknown = frozenset({1013, 1016})
    async with reading(tmp_path, state) as (reader, _):
        found = values_of(await reader.read(Lane.FAST))
    assert found["gpu_sm_activity_ratio"] == pytest.approx(0.72)
    assert isinstance(found["gpu_integer_activity_ratio"], Absent)


async def test_disabled_profiling_is_not_collected(tmp_path: Path) -> None:
    async with reading(tmp_path, EngineState.healthy(1), profiling=False) as (reader, engine):
        found = values_of(await reader.read(Lane.FAST))
        assert WATCH not in engine.commands
    activity = found["gpu_sm_activity_ratio"]
    assert isinstance(activity, Absent)
    assert activity.reason is Reason.NOT_COLLECTED


async def test_groups_are_destroyed_when_mig_devices_change(tmp_path: Path) -> None:
    state = EngineState.with_mig(1)
    async with reading(tmp_path, state) as (reader, engine):
        await reader.read(Lane.FAST)
        assert engine.commands.count(GROUP_CREATE) == 1
        await reader.read(Lane.FAST)
        assert engine.commands.count(GROUP_CREATE) == 1
        state.gpus[0].instances.pop()
        await reader.read(Lane.FAST)
        (connection,) = engine.held
        assert len(connection.groups) == len(connection.fields) == len(connection.watched) == 1
        assert engine.commands.count(GROUP_DESTROY) == engine.commands.count(UNWATCH) == 1


async def test_engine_without_groups_is_left_clean(tmp_path: Path) -> None:
    state = EngineState.with_mig(1)
    state.group_error = -3
    async with reading(tmp_path, state) as (reader, engine):
        for _ in range(3):
            found = values_of(await reader.read(Lane.FAST))
            assert found["gpu_power_watts"] == 312.25
            assert isinstance(found["gpu_sm_activity_ratio"], Absent)
            slow = values_of(await reader.read(Lane.SLOW))
            assert (slow["gpu_mig_mode"], slow["gpu_driver_events_watched"]) == ("enabled", 0)
        assert not engine.held[0].groups


async def test_groups_lost_by_the_engine_are_created_again(tmp_path: Path) -> None:
    state = EngineState.with_mig(1)
    async with reading(tmp_path, state) as (reader, engine):
        await reader.read(Lane.FAST)
        engine.held[0].groups.clear()
        engine.held[0].fields.clear()
        state.gpus[0].instances.pop()
        found = values_of(await reader.read(Lane.FAST))
    assert found["gpu_sm_activity_ratio"] == pytest.approx(0.72)
