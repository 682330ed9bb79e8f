"""NVML calls that hang and child processes that do not end."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.readers.nvml.watch import NvmlLimits
from tests.fakes.nvml.driver import FakeNvml
from tests.readers.nvml.rig import HASTY, NO_START, Start, device, dim, own, reasons
from tests.support.waiting import wait_until, wait_until_async


def runs(pid: int | None) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def hung_error(reader: NvmlReader) -> ReaderError:
    with pytest.raises(ReaderError) as caught:
        await reader.read(Lane.FAST)
    assert caught.value.absence is Reason.TIMEOUT
    return caught.value


async def recovers(reader: NvmlReader) -> bool:
    try:
        return not (await reader.read(Lane.FAST)).errors
    except ReaderError:
        return False


async def test_hung_gpu_affects_only_itself_and_recovers(fake: FakeNvml, start: Start) -> None:
    reader = start(fake, limits=HASTY)
    known = device(await reader.read(Lane.FAST), 5).view
    fake.scenario.hang("nvmlDeviceGetPowerUsage", gpu=5)
    fake.apply()

    round_ = await reader.read(Lane.FAST)
    hung = device(round_, 5)
    assert hung.view == known
    assert hung.values.pop("gpu_state") == "hung"
    assert set(hung.values.values()) == {Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage")}
    assert set(dim(hung, "gpu_clock_event_active").values()) == {Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage")}
    assert [(event.kind, event.attributes) for event in round_.events] == [
        ("hang_started", {"call": "nvmlDeviceGetPowerUsage"})
    ]
    assert round_.errors == (f"{hung.view.key}: hung in nvmlDeviceGetPowerUsage",) if hung.view else False
    for index in (0, 1, 2, 3, 4, 6, 7):
        assert device(round_, index).values["gpu_state"] == "ok"
    assert own(round_)["nvidia_driver_state"] == "ok"

    again = await reader.read(Lane.FAST)
    assert device(again, 5).values["gpu_state"] == "hung"
    assert device(again, 4).measured_at > device(round_, 4).measured_at
    assert not again.events
    assert fake.calls()[("nvmlDeviceGetPowerUsage", 5)] == 2  # only the first pass after the hang waits for the GPU

    fake.scenario.faults.clear()
    fake.apply()
    kinds: list[str] = []

    async def answers_again() -> bool:
        latest = await reader.read(Lane.FAST)
        kinds.extend(event.kind for event in latest.events)
        return device(latest, 5).values["gpu_state"] == "ok"

    await wait_until_async(answers_again, what="GPU 5 to answer again")
    assert kinds == ["hang_ended"]


@pytest.mark.parametrize("lane", [Lane.SLOW, Lane.STATIC])
async def test_failed_gpu_that_answers_after_a_hang_has_not_recovered(fake: FakeNvml, start: Start, lane: Lane) -> None:
    """Only the fast lane has the readings that prove the state."""
    reader = start(fake, limits=HASTY)
    for name in ("Temperature", "TemperatureV", "PowerUsage"):
        fake.scenario.fault(f"nvmlDeviceGet{name}", gpu=5, code=999)
    failing = list(fake.scenario.faults)
    fake.apply()
    kinds = [event.kind for event in (await reader.read(Lane.FAST)).events]
    fake.scenario.faults.clear()
    fake.scenario.hang("nvmlDeviceGetPowerUsage", gpu=5)
    fake.apply()
    kinds += [event.kind for event in (await reader.read(Lane.FAST)).events]
    fake.scenario.faults[:] = failing
    fake.apply()

    async def answers() -> bool:
        kinds.extend(event.kind for event in (await reader.read(lane)).events)
        return kinds[-1] == "hang_ended"

    await wait_until_async(answers, what="GPU 5 to answer again")
    kinds += [event.kind for event in (await reader.read(Lane.FAST)).events]
    assert kinds == ["gpu_failed", "hang_started", "hang_ended"]


async def test_gpu_hung_from_the_start_is_named_once_identified(fake: FakeNvml, start: Start) -> None:
    fake.scenario.hang("nvmlDeviceGetName", gpu=2)
    fake.scenario.hang("nvmlDeviceGetHandleByIndex_v2", gpu=3)
    fake.apply()
    round_ = await start(fake, limits=HASTY).read(Lane.STATIC)
    assert reasons(device(round_, 2)) == {Reason.TIMEOUT}
    assert device(round_, 2).values["gpu_pci_address"] == "0000:3b:00.0"
    assert [sample.view.index for sample in round_.samples if sample.view] == [0, 1, 2, 4, 5, 6, 7]
    assert any("index 3" in error and "nvmlDeviceGetHandleByIndex_v2" in error for error in round_.errors)


async def test_hanging_start_is_reported_and_not_repeated(fake: FakeNvml, start: Start) -> None:
    fake.scenario.hang("nvmlInitWithFlags")
    fake.apply()
    reader = start(fake, limits=NO_START)
    errors: list[ReaderError] = []

    async def named() -> bool:
        errors.append(await hung_error(reader))
        return "nvmlInitWithFlags" in str(errors[-1])

    await wait_until_async(named, what="the child to be in nvmlInitWithFlags")
    error = errors[-1]
    assert error.round is not None
    assert own(error.round)["nvidia_driver_state"] == "hung"
    pid = reader.child_pid
    for _ in range(3):
        await hung_error(reader)
    assert reader.child_pid == pid
    assert fake.calls()[("nvmlInitWithFlags", -1)] == 1

    fake.scenario.faults.clear()
    fake.apply()
    await wait_until_async(lambda: recovers(reader), what="the driver to answer")
    assert reader.child_pid == pid  # the call returned, so nothing was restarted


async def test_process_that_hangs_too_long_is_replaced(fake: FakeNvml, start: Start) -> None:
    reader = start(fake, limits=NvmlLimits(call=0.5, init=20, hang=0.5, grace=0.5, retry=0))
    await reader.read(Lane.FAST)
    pid = reader.child_pid
    fake.scenario.hang("*")
    fake.apply()

    async def ended() -> bool:
        await hung_error(reader)
        return not runs(pid)

    await wait_until_async(ended, what="the hanging process to end")
    fake.scenario.faults.clear()
    fake.apply()
    await wait_until_async(lambda: recovers(reader), what="a fresh process to answer")
    assert reader.child_pid != pid


async def test_driver_is_hung_when_all_devices_hang(fake: FakeNvml, start: Start) -> None:
    reader = start(fake, limits=NvmlLimits(call=0.5, init=20, hang=0.5, grace=0.5, retry=3600, max_retry=3600))
    await reader.read(Lane.FAST)
    pid = reader.child_pid
    fake.scenario.hang("nvmlDeviceGetPowerUsage")
    fake.apply()
    round_ = await reader.read(Lane.FAST)
    assert own(round_)["nvidia_driver_state"] == "hung"
    assert {device(round_, index).values["gpu_state"] for index in range(8)} == {"hung"}

    async def ended() -> bool:
        with contextlib.suppress(ReaderError):
            await reader.read(Lane.FAST)
        return not runs(pid)

    await wait_until_async(ended, what="the hanging process to end")
    assert "nvmlDeviceGetPowerUsage" in str(await hung_error(reader))


async def hangs_stubbornly(fake: FakeNvml, reader: NvmlReader) -> int:
    """Make the child hang and ignore SIGTERM, like a process stuck in the kernel, and return its id."""
    await reader.read(Lane.FAST)
    pid = reader.child_pid
    assert pid is not None
    fake.scenario.hang("nvmlDeviceGetCount_v2", stubborn=True)
    fake.apply()
    await hung_error(reader)
    return pid


async def test_no_process_starts_while_another_does_not_end(fake: FakeNvml, start: Start) -> None:
    reader = start(fake, limits=NvmlLimits(call=0.5, init=20, hang=0.5, grace=3600, retry=0))
    pid = await hangs_stubbornly(fake, reader)
    for _ in range(5):
        await hung_error(reader)
    assert runs(pid)
    assert reader.child_pid == pid
    assert fake.calls()[("nvmlInitWithFlags", -1)] == 1
    fake.scenario.faults.clear()
    fake.apply()


async def test_sigkill_follows_an_ignored_sigterm(fake: FakeNvml, start: Start) -> None:
    reader = start(fake, limits=NvmlLimits(call=0.5, init=20, hang=0.5, grace=0.2, retry=3600, max_retry=3600))
    pid = await hangs_stubbornly(fake, reader)

    async def ended() -> bool:
        with contextlib.suppress(ReaderError):
            await reader.read(Lane.FAST)
        return not runs(pid)

    await wait_until_async(ended, what="the stubborn process to be killed")


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount_v2", "nvmlDeviceGetPowerUsage"])
async def test_cancelled_read_does_not_disturb_the_next(fake: FakeNvml, start: Start, function: str) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    pid = reader.child_pid
    fake.scenario.fault(function, delay_ms=400)
    fake.apply()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.read(Lane.FAST)
    round_ = await reader.read(Lane.SLOW)
    assert reader.child_pid == pid
    assert not round_.errors
    for index in range(8):
        assert device(round_, index).values["gpu_remapped_rows_correctable"] == 60 + index


async def test_closing_ends_a_hanging_process(fake: FakeNvml, start: Start) -> None:
    fake.scenario.hang("nvmlInitWithFlags")
    fake.apply()
    reader = start(fake, limits=NO_START)
    await hung_error(reader)
    pid = reader.child_pid
    await reader.close()
    assert not runs(pid)
    await reader.close()


async def test_slow_gpu_that_answers_in_time_is_ok(fake: FakeNvml, start: Start) -> None:
    fake.scenario.fault("nvmlDeviceGetPowerUsage", gpu=5, delay_ms=300)
    fake.apply()
    round_ = await start(fake).read(Lane.FAST)
    assert device(round_, 5).values["gpu_state"] == "ok"


async def test_process_ends_with_its_input_while_a_gpu_hangs(fake: FakeNvml, start: Start) -> None:
    reader = start(fake, limits=HASTY)
    fake.scenario.hang("nvmlDeviceGetPowerUsage", gpu=1)
    fake.apply()
    await reader.read(Lane.FAST)
    pid = reader.child_pid
    assert pid is not None
    await reader.close()
    wait_until(lambda: not runs(pid), what="the process to end")
