"""XIDs kept by the engine: one event each, in agent time, for the right instance."""

import time
from pathlib import Path

import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event, EventKind
from gpufleet.simulate.dcgm.state import COMPUTE_INSTANCE, GPU, EngineState
from tests.readers.dcgm.engines import reading
from tests.readers.dcgm.test_faults import values_of

SECOND = 1_000_000


def now() -> int:
    return time.time_ns() // 1000


def codes_and_uuids(events: tuple[Event, ...]) -> list[tuple[int, str | None]]:
    return [(event.code, event.view.uuid if event.view else None) for event in events]


async def test_each_xid_is_reported_once_and_old_ones_are_not(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.xids = {(GPU, 0): [(now() - 60 * SECOND, 31)]}
    async with reading(tmp_path, state) as (reader, engine):
        assert (await reader.read(Lane.EVENT)).events == ()
        state.xids = {(GPU, 0): [*state.xids[GPU, 0], (now(), 79), (now() + 1, 79)], (GPU, 1): [(now(), 94)]}
        uuid = "GPU-5b4e07f6-3a86-4340-039d-00000000000"
        events = (await reader.read(Lane.EVENT)).events
        assert sorted(codes_and_uuids(events)) == [(79, f"{uuid}0"), (79, f"{uuid}0"), (94, f"{uuid}1")]
        assert {event.kind for event in events} == {EventKind.XID}
        assert {event.attributes["sources"] for event in events} == {"dcgm"}
        assert (await reader.read(Lane.EVENT)).events == ()
        await reader.read(Lane.STATIC)
        await reader.close()
        state.xids[GPU, 1].append((now(), 48))  # while disconnected; kept by another client's watch
        assert codes_and_uuids((await reader.read(Lane.EVENT)).events) == [(48, f"{uuid}1")]
        assert engine.connections == 2


async def test_xid_of_a_restarted_engine_has_the_gpu_of_its_new_id(tmp_path: Path) -> None:
    state = EngineState.healthy(2)
    state.xids = {(GPU, 0): [(now() - 60 * SECOND, 31)]}
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.EVENT)
        await reader.close()
        state.gpus = {0: state.gpus[1], 1: state.gpus[0]}
        state.xids[GPU, 0].append((now(), 79))
        events = (await reader.read(Lane.EVENT)).events
    assert codes_and_uuids(events) == [(79, "GPU-5b4e07f6-3a86-4340-039d-000000000001")]


@pytest.mark.parametrize("ahead", [-3600 * SECOND, 3600 * SECOND])
async def test_xid_has_the_time_of_the_agent(ahead: int, tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.clock_ahead = ahead
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.EVENT)
        happened = now()
        state.xids = {(GPU, 0): [(happened + ahead, 79)]}
        (event,) = (await reader.read(Lane.EVENT)).events
    assert event.at / 1000 == pytest.approx(happened, abs=5 * SECOND)


async def test_engine_clock_set_back_loses_no_xid(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.clock_ahead = 3600 * SECOND
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.FAST)
        await reader.read(Lane.EVENT)
        state.xids = {(GPU, 0): [(now() + state.clock_ahead, 31)]}
        assert [event.code for event in (await reader.read(Lane.EVENT)).events] == [31]
        state.clock_ahead = 0
        await reader.read(Lane.FAST)
        await reader.read(Lane.EVENT)
        state.xids[GPU, 0].append((now(), 79))
        assert [event.code for event in (await reader.read(Lane.EVENT)).events] == [79]


async def test_xid_of_a_mig_device_identifies_it(tmp_path: Path) -> None:
    state = EngineState.with_mig(1)
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.EVENT)
        state.xids = {(COMPUTE_INSTANCE, 2): [(now(), 43)]}
        (event,) = (await reader.read(Lane.EVENT)).events
    assert event.view is not None
    assert event.view.pci_address == "0000:05:00.0"
    assert event.attributes == {"sources": "dcgm", "gpu_instance": "2", "compute_instance": "1"}


@pytest.mark.parametrize("wild", [0, -1, 0x7FFF_FFF0, 2**40, 0x7FFF_FFFF_FFFF_FFF2])
async def test_invalid_xid_is_no_event(wild: int, tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.EVENT)
        state.xids = {(GPU, 0): [(now(), wild)]}
        assert (await reader.read(Lane.EVENT)).events == ()


async def test_xid_sample_of_the_future_is_no_event(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.EVENT)
        state.xids = {(GPU, 0): [(2**63 - 1, 79)]}
        assert (await reader.read(Lane.EVENT)).events == ()
        state.xids = {(GPU, 0): [(now(), 79)]}
        assert [event.code for event in (await reader.read(Lane.EVENT)).events] == [79]


async def test_xid_storm_is_reported_in_several_passes(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    async with reading(tmp_path, state) as (reader, _):
        await reader.read(Lane.EVENT)
        start = now()
        state.xids = {(GPU, 0): [(start + at, 94) for at in range(100)]}
        counts = [len((await reader.read(Lane.EVENT)).events) for _ in range(3)]
    assert counts == [64, 36, 0]


async def test_refused_watch_reports_events_as_not_watched(tmp_path: Path) -> None:
    state = EngineState.healthy(1)
    state.unwatchable = {230: -6}
    async with reading(tmp_path, state) as (reader, _):
        assert (await reader.read(Lane.EVENT)).events == ()
        assert values_of(await reader.read(Lane.SLOW))["gpu_driver_events_watched"] == 0
