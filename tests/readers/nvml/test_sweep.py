"""Fault sweep: each call of a pass fails once, and only its own readings are affected."""

from collections.abc import Iterable, Iterator
from itertools import cycle, zip_longest
from pathlib import Path

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.events import DRIVER_EVENTS
from gpufleet.model.reading import Round, Value
from gpufleet.readers.nvml.context import PERMANENT_CODES
from gpufleet.readers.nvml.parse import CODE_NAMES, REASONS
from gpufleet.readers.nvml.reader import NvmlReader
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import cut_into_mig, share_as_vgpus
from tests.fakes.nvml.scenario import Scenario
from tests.readers.nvml.rig import Start
from tests.support.profiles import examples

LANES = (Lane.STATIC, Lane.FAST, Lane.SLOW)
MIG, VGPU, SUPERCHIP = 0, 1, 2

ENDS = {1, 9, 15, 16, 18, 28}
"""Codes that concern the whole device or driver. Other tests cover them."""

CODES = (*(code for code in CODE_NAMES if code not in ENDS), 77, 1001)
"""Codes of nvml.h, and two unknown ones."""

NOT_READINGS = {
    "nvmlDeviceGetCount_v2",  # without it there is no pass
    "nvmlDeviceGetHandleByIndex_v2",  # fails the whole device
    "nvmlInitWithFlags",
    "nvmlShutdown",
}
GONE = {2, 6}
"""Codes for an instance that has ended. Such an instance is left out."""

CAN_END_AN_INSTANCE = ("nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetUUID", "nvmlVgpuInstanceGetUUID")
NOT_FOUND_IS_AN_ANSWER = ("nvmlVgpuInstanceGetAccountingStats",)
"""Calls for which "not found" is a result: the record of a process was overwritten, so it is not counted."""

MIG_MODE = "nvmlDeviceGetMigMode"

INSTEAD = {
    "nvmlDeviceGetVgpuInstancesUtilizationInfo": Reason.NOT_REPORTED,  # an older call returns only a part of the values
    "nvmlDeviceGetDisplayActive": Reason.NO_DATA,  # without it, an attached display is not proven
}
"""Calls whose failure makes readings of other calls absent, with this reason."""

Key = tuple[str, str, tuple[str, ...]]


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    scenario = Scenario.healthy(3)
    cut_into_mig(scenario, MIG, (3,))
    share_as_vgpus(scenario, VGPU, 1)
    scenario.devices[SUPERCHIP].become_superchip(SUPERCHIP)
    return FakeNvml(tmp_path, scenario, log=True)


def readings(rounds: list[Round]) -> dict[Key, Value | Absent]:
    """Return all readings, except of the registration for events: it changes on a thread of its own, at any pass."""
    found: dict[Key, Value | Absent] = {}
    for sample in (sample for round_ in rounds for sample in round_.samples):
        key = sample.view.key if sample.view is not None else "machine"
        found |= {(key, metric, ()): value for metric, value in sample.values.items()}
        found |= {(key, one.metric, one.labels): one.value for one in sample.dims}
    return {key: value for key, value in found.items() if key[1] != DRIVER_EVENTS}


async def passes(reader: NvmlReader) -> list[Round]:
    return [await reader.read(lane) for lane in LANES]


def owners(rounds: list[Round], fake: FakeNvml) -> dict[str, int]:
    """Return the index of the GPU of each view, by view key."""
    gpus = {f"gpu/{fake_gpu.uuid}": index for index, fake_gpu in enumerate(fake.scenario.devices)}
    views = {sample.view for round_ in rounds for sample in round_.samples if sample.view is not None}
    return {view.key: gpus[view.parent or view.key] for view in views}


def device_of(gpu: int) -> int:
    """Return the GPU of a subject; -1 is the machine."""
    return VGPU if gpu > SUPERCHIP else gpu


def faults_in_turn(calls_made: Iterable[tuple[str, int]]) -> Iterator[dict[int, tuple[str, int]]]:
    """Yield the failing call of each GPU: one call per GPU at a time, and the machine's calls alone."""
    calls: dict[int, list[tuple[str, int]]] = {}
    for function, gpu in sorted(calls_made):
        calls.setdefault(device_of(gpu), []).append((function, gpu))
    for call in calls.pop(-1, []):
        yield {-1: call}
    for row in zip_longest(*calls.values()):
        yield {device: call for device, call in zip(calls, row, strict=True) if call is not None}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", [0, 13][: examples(1, 2)])
async def test_failing_call_affects_only_its_own_readings(fake: FakeNvml, start: Start, first: int) -> None:
    reader = start(fake)
    for _ in range(2):
        before = await passes(reader)  # since the second pass, every comparison has two samples
    baseline, owner = readings(before), owners(before, fake)
    codes = cycle((*CODES[first:], *CODES[:first]))
    called = {(function, gpu) for function, gpu in fake.calls() if function not in NOT_READINGS}
    assert len(called) > 250
    for failing in faults_in_turn(called):
        faults = {device: (function, gpu, next(codes)) for device, (function, gpu) in failing.items()}
        fake.scenario.faults.clear()
        for function, gpu, code in faults.values():
            fake.scenario.fault(function, gpu=gpu, code=code)
        fake.apply()
        now = readings(await passes(reader))
        changed = {key for key in baseline if key in now and now[key] != baseline[key]}
        if -1 not in faults:
            assert {owner.get(view) for view, _, _ in changed} <= set(faults), faults
        for device, (function, gpu, code) in faults.items():
            where = f"{function} of {gpu} returns {code}"
            if code in GONE and function in CAN_END_AN_INSTANCE + NOT_FOUND_IS_AN_ANSWER:
                continue
            if code in PERMANENT_CODES and function == MIG_MODE:
                continue  # a driver without a MIG mode has no MIG devices
            own = {view for view, _, _ in baseline if device in (-1, owner.get(view))}
            assert own <= {view for view, _, _ in now}, where
            reason = REASONS.get(code, Reason.DRIVER_ERROR)
            for key in changed:
                if device not in (-1, owner.get(key[0])):
                    continue
                value = now[key]
                if key[1] == "gpu_state" and value == "error":
                    continue  # the call belongs to a core reading
                assert isinstance(value, Absent), f"{where}: {key} was {baseline[key]} and is {value}"
                assert value.reason in (reason, INSTEAD.get(function)), f"{where}: {key} is {value}"
        assert {view for view, _, _ in now} <= {view for view, _, _ in baseline}, faults
