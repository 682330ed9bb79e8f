"""GPM metrics: two samples at least 100 ms apart, one thread at a time, and a code for each metric."""

import math
import time
from collections.abc import Callable, Iterable

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Round, Value
from gpufleet.readers.nvml.calls.activity import MIN_SAMPLE_INTERVAL_NS, GpmComparison
from gpufleet.readers.nvml.context import NO_DATA, Context, DeviceCache
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.readers.nvml.watch import NvmlLimits
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.parts import add_mig, cut_into_mig
from tests.readers.nvml.rig import HASTY, Start, device
from tests.support.waiting import wait_until_async

PERCENT = {
    "gpu_graphics_activity_ratio": 1,
    "gpu_sm_activity_ratio": 2,
    "gpu_sm_occupancy_ratio": 3,
    "gpu_integer_activity_ratio": 4,
    "gpu_tensor_activity_ratio": 5,
    "gpu_tensor_fp64_activity_ratio": 6,
    "gpu_tensor_half_activity_ratio": 7,
    "gpu_tensor_integer_activity_ratio": 9,
    "gpu_dram_activity_ratio": 10,
    "gpu_fp64_activity_ratio": 11,
    "gpu_fp32_activity_ratio": 12,
    "gpu_fp16_activity_ratio": 13,
}
MEBIBYTES = {
    "gpu_pcie_transmit_bytes_per_second": 20,
    "gpu_pcie_receive_bytes_per_second": 21,
    "gpu_nvlink_transmit_bytes_per_second": 61,
    "gpu_nvlink_receive_bytes_per_second": 60,
}


async def second(reader: NvmlReader, gpus: Iterable[int] = range(8)) -> Round:
    """Read until two samples of each GPU were compared, with the pause between passes that an agent makes."""
    rounds: list[Round] = []
    pending = list(gpus)
    ended = time.monotonic()

    async def compared() -> bool:
        nonlocal ended
        if time.monotonic() - ended < 2 * MIN_SAMPLE_INTERVAL_NS / 1e9:
            return False
        rounds.append(await reader.read(Lane.FAST))
        ended = time.monotonic()
        return all(not early(rounds[-1], gpu) for gpu in pending)

    await wait_until_async(compared, what="the second sample")
    return rounds[-1]


def early(round_: Round, gpu: int) -> bool:
    """Return whether no two samples could be compared."""
    values = set(activity(round_, gpu).values())
    return all(isinstance(value, Absent) and value.reason is Reason.NO_DATA for value in values)


def activity(round_: Round, gpu: int) -> dict[str, Value | Absent]:
    values = device(round_, gpu).values
    return {name: values[name] for name in (*PERCENT, *MEBIBYTES)}


async def test_gpm_values_need_a_second_pass(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    first = await reader.read(Lane.FAST)
    assert set(activity(first, 3).values()) == {Absent(Reason.NO_DATA, "nvmlGpmSampleGet")}
    round_ = await second(reader)
    for index, fake_device in enumerate(fake.scenario.devices):
        expected = {name: fake_device.gpm[id_] / 100 for name, id_ in PERCENT.items()}
        expected |= {name: fake_device.gpm[id_] * 1024 * 1024 for name, id_ in MEBIBYTES.items()}
        assert activity(round_, index) == expected
    assert set(activity(round_, 0).values()) == {0}  # idle: measured zeros


async def test_immediate_passes_take_no_gpm_sample(fake: FakeNvml, start: Start) -> None:
    """The fake driver aborts when it compares samples less than 100 ms apart."""
    reader = start(fake)
    await second(reader)
    for _ in range(20):
        assert not (await reader.read(Lane.FAST)).errors


async def test_each_gpm_metric_has_its_own_code_and_must_be_finite(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].gpm |= {5: 3, 10: math.nan, 11: math.inf, 12: 4, 13: 250.0, 2: 21}
    fake.apply()
    reader = start(fake)
    found = activity(await second(reader, (1,)), 1)
    assert found["gpu_tensor_activity_ratio"] == Absent(Reason.NOT_SUPPORTED, "GPM 5")
    assert found["gpu_dram_activity_ratio"] == Absent(Reason.INVALID_VALUE, "GPM 10")
    assert found["gpu_fp64_activity_ratio"] == Absent(Reason.INVALID_VALUE, "GPM 11")
    assert found["gpu_fp32_activity_ratio"] == Absent(Reason.NOT_PERMITTED, "GPM 12")
    assert found["gpu_fp16_activity_ratio"] == Absent(Reason.INVALID_VALUE, "GPM 13")
    assert found["gpu_sm_activity_ratio"] == Absent(Reason.NO_DATA, "GPM 2")
    assert found["gpu_sm_occupancy_ratio"] == fake.scenario.devices[1].gpm[3] / 100


async def test_gpu_without_gpm_is_queried_once(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[1].numbers["nvmlGpmQueryDeviceSupport"] = 0
    fake.scenario.devices[2].numbers["nvmlGpmQueryDeviceSupport"] = None
    fake.apply()
    reader = start(fake)
    for _ in range(3):
        round_ = await reader.read(Lane.FAST)
        for gpu in (1, 2):
            assert set(activity(round_, gpu).values()) == {Absent(Reason.NOT_SUPPORTED, "nvmlGpmQueryDeviceSupport")}
    for gpu in (1, 2):
        assert fake.calls()["nvmlGpmQueryDeviceSupport", gpu] == 1
        assert ("nvmlGpmSampleGet", gpu) not in fake.calls()


async def test_refused_gpm_sample_affects_only_activity_metrics(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await second(reader)
    fake.scenario.fault("nvmlGpmSampleGet", gpu=1, code=4)
    fake.apply()

    async def refused() -> bool:
        round_ = await reader.read(Lane.FAST)
        assert device(round_, 1).values["gpu_state"] == "ok"
        return set(activity(round_, 1).values()) == {Absent(Reason.NOT_PERMITTED, "nvmlGpmSampleGet")}

    await wait_until_async(refused, what="the refused sample")
    fake.scenario.faults.clear()
    fake.apply()
    assert activity(await second(reader), 1)["gpu_sm_activity_ratio"] == fake.scenario.devices[1].gpm[2] / 100


async def test_gpm_samples_are_dropped_on_mig_mode_change(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await second(reader)
    taken = fake.calls()["nvmlGpmSampleFree", -1]
    fake.scenario.devices[1].numbers["nvmlDeviceGetMigMode_current"] = 1
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    assert early(round_, 1)
    assert fake.calls()["nvmlGpmSampleFree", -1] == taken + 2  # samples of the old mode are freed


async def test_gpu_hung_in_a_gpm_sample_does_not_block_others(fake: FakeNvml, start: Start) -> None:
    # Every other GPU waits 0.5 s for its turn, so `call` must be longer.
    reader = start(fake, limits=NvmlLimits(call=2.5, init=HASTY.init, hang=3600, grace=10, retry=0))
    await second(reader)
    fake.scenario.hang("nvmlGpmSampleGet", gpu=1)
    fake.apply()
    hung: list[Round] = []

    async def noticed() -> bool:
        hung.append(await reader.read(Lane.FAST))
        return device(hung[-1], 1).values["gpu_state"] == "hung"

    await wait_until_async(noticed, what="the hang")
    assert device(hung[-1], 1).values["gpu_sm_activity_ratio"] == Absent(Reason.TIMEOUT, "nvmlGpmSampleGet")
    for gpu in (0, 2, 3, 4, 5, 6, 7):
        values = device(hung[-1], gpu).values
        assert values["gpu_power_watts"] == fake.scenario.devices[gpu].numbers["nvmlDeviceGetPowerUsage"] / 1000  # type: ignore[operator]
        assert values["gpu_state"] == "ok"
    fake.scenario.faults.clear()
    fake.apply()


async def test_gpm_samples_are_freed_before_nvml_shutdown(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await second(reader)
    await reader.close()
    assert fake.calls()["nvmlGpmSampleFree", -1] == fake.calls()["nvmlGpmSampleAlloc", -1] == 16


async def test_each_mig_device_has_its_own_gpm_values(fake: FakeNvml, start: Start) -> None:
    cut = cut_into_mig(fake.scenario, 1, (0, 3, 6))
    fake.apply()
    reader = start(fake)
    round_ = await second(reader)
    for slot, fake_device in cut.items():
        (sample,) = [s for s in round_.samples if s.view is not None and s.view.uuid == fake_device.uuid]
        gpm = fake.scenario.devices[1].parts[f"1/gi{7 + slot}"].gpm
        assert {name: sample.values[name] for name in PERCENT} == {
            name: gpm[id_] / 100 for name, id_ in PERCENT.items()
        }
    recreated = add_mig(fake.scenario, 1, 3, life=1)  # same ids as the removed device
    fake.apply()
    fresh = await reader.read(Lane.FAST)
    (sample,) = [s for s in fresh.samples if s.view is not None and s.view.uuid == recreated.uuid]
    assert sample.values["gpu_sm_activity_ratio"] == Absent(Reason.NO_DATA, "nvmlGpmMigSampleGet")


class Library:
    """Driver library whose every function succeeds."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    def __init__(self) -> None:
        self.nvmlLib = self

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 0


SECOND, HOUR = 1_000_000_000, 3_600_000_000_000


@pytest.mark.parametrize(
    ("intervals", "compared"),
    [
        ([10 * SECOND, 10 * SECOND], [True, True]),
        ([10 * SECOND, HOUR, 10 * SECOND], [True, False, True]),
        ([300 * SECOND, 300 * SECOND, 310 * SECOND], [False, True, True]),  # a slow fast lane
    ],
)
def test_mean_over_a_pause_is_not_current(intervals: list[int], compared: list[bool]) -> None:
    now = [HOUR]
    context = Context(Library(), None, (), lambda _: None, DeviceCache())
    comparison = GpmComparison(context, (2,), clock=lambda: now[0])
    codes = []
    for interval in (0, *intervals):
        now[0] += interval
        try:
            comparison.query(context)
            codes.append(0)
        except Library.NVMLError as error:
            codes.append(error.value)
    assert codes == [NO_DATA, *(0 if one else NO_DATA for one in compared)]
