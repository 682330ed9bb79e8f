"""NVML sessions: failing starts, restarts after errors and driver reloads."""

from pathlib import Path

import pytest

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.readers.nvml.watch import NvmlLimits
from tests.fakes.nvml.driver import FakeNvml
from tests.readers.nvml.rig import PATIENT, Start, own


async def failure(reader: NvmlReader, lane: Lane = Lane.FAST) -> ReaderError:
    with pytest.raises(ReaderError) as caught:
        await reader.read(lane)
    return caught.value


@pytest.mark.parametrize(
    ("code", "reason", "state", "message"),
    [
        (9, Reason.NO_DRIVER, "no_driver", "Driver Not Loaded"),
        (18, Reason.DRIVER_MISMATCH, "mismatch", "Driver/library version mismatch"),
        (28, Reason.NO_SUPPORTED_GPU, "no_supported_gpu", "No supported GPUs were found"),
        (4, Reason.NOT_PERMITTED, "no_access", "Insufficient Permissions"),
        (17, Reason.DRIVER_ERROR, "error", "An error without a text"),
        (15, Reason.DRIVER_ERROR, "error", "GPU is lost"),
    ],
)
async def test_failed_start_has_its_reason_and_is_retried(
    fake: FakeNvml, start: Start, code: int, reason: Reason, state: str, message: str
) -> None:
    fake.scenario.fault("nvmlInitWithFlags", code=code)
    fake.apply()
    reader = start(fake)
    error = await failure(reader)
    assert (error.absence, str(error)) == (reason, message)
    assert error.round is not None
    assert own(error.round) == {"nvidia_devices": Absent(reason), "nvidia_driver_state": state}
    assert reader.child_pid is None

    fake.scenario.faults.clear()
    fake.apply()
    assert own(await reader.read(Lane.FAST))["nvidia_driver_state"] == "ok"


async def test_failed_start_reports_the_rows_of_its_lane(fake: FakeNvml, start: Start) -> None:
    fake.scenario.fault("nvmlInitWithFlags", code=9)
    fake.apply()
    reader = start(fake)
    static, slow = await failure(reader, Lane.STATIC), await failure(reader, Lane.SLOW)
    assert static.round is not None
    assert set(own(static.round).values()) == {Absent(Reason.NO_DRIVER)}
    assert slow.round is None


async def test_missing_library_is_no_library(tmp_path: Path) -> None:
    reader = NvmlReader(limits=PATIENT, environment={"PATH": "/usr/bin", "LD_LIBRARY_PATH": str(tmp_path)})
    error = await failure(reader)
    if error.absence is not Reason.NO_LIBRARY:
        pytest.skip("this machine has an NVIDIA driver")
    assert "libnvidia-ml.so.1: cannot open shared object file" in str(error)
    assert error.round is not None
    assert own(error.round)["nvidia_driver_state"] == "no_library"
    await reader.close()


@pytest.mark.parametrize("reachable", [True, False])
async def test_unknown_error_is_no_access_if_the_device_file_is_refused(
    fake: FakeNvml, start: Start, tmp_path: Path, reachable: bool
) -> None:
    if reachable:
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev" / "nvidiactl").touch()
    fake.scenario.fault("nvmlInitWithFlags", code=999)
    fake.apply()
    error = await failure(start(fake, root=tmp_path))
    assert error.round is not None
    if reachable:
        assert (error.absence, str(error)) == (Reason.DRIVER_ERROR, "Unknown Error")
        assert own(error.round)["nvidia_driver_state"] == "error"
    else:
        assert error.absence is Reason.NOT_PERMITTED
        assert str(error) == "Unknown Error (/dev/nvidiactl: No such file or directory)"
        assert own(error.round)["nvidia_driver_state"] == "no_access"


async def test_driver_without_gpus_is_no_supported_gpu(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices.clear()
    fake.apply()
    reader = start(fake)
    fast, static = await failure(reader), await failure(reader, Lane.STATIC)
    assert fast.absence is Reason.NO_SUPPORTED_GPU
    assert fast.round is not None
    assert own(fast.round) == {"nvidia_devices": 0, "nvidia_driver_state": "no_supported_gpu"}
    assert static.round is not None
    assert own(static.round)["nvidia_driver_version"] == "580.159.04"


@pytest.mark.parametrize("code", [1, 9, 18])
async def test_session_is_restarted_after_a_driver_level_error(fake: FakeNvml, start: Start, code: int) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    before = reader.child_pid
    fake.scenario.fault("nvmlDeviceGetCount_v2", code=code)
    fake.apply()
    await failure(reader)
    fake.scenario.faults.clear()
    fake.scenario.driver = "590.48.01"
    fake.apply()
    round_ = await reader.read(Lane.STATIC)
    assert own(round_)["nvidia_driver_version"] == "590.48.01"
    assert reader.child_pid not in (None, before)


async def test_session_is_restarted_after_a_device_reports_uninitialized(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    before = reader.child_pid
    fake.scenario.fault("nvmlDeviceGetPowerUsage", code=1)
    fake.apply()
    assert len((await reader.read(Lane.FAST)).errors) == 8
    fake.scenario.faults.clear()
    fake.apply()
    assert not (await reader.read(Lane.FAST)).errors
    assert reader.child_pid != before


async def test_driver_reload_is_another_driver_session(fake: FakeNvml, start: Start, tmp_path: Path) -> None:
    boot_id, module = tmp_path / "proc/sys/kernel/random/boot_id", tmp_path / "sys/module/nvidia"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("5f2a4c7e\n")
    module.mkdir(parents=True)
    reader = start(fake, root=tmp_path)

    async def session() -> int:
        (number,) = {sample.driver_session for sample in (await reader.read(Lane.FAST)).samples}
        return number

    first = await session()
    await reader.close()
    assert await session() == first  # another child, the same driver
    module.rename(tmp_path / "unloaded")
    module.mkdir()
    second = await session()
    await reader.close()
    boot_id.write_text("9d1b6a03\n")
    reader = start(fake, root=tmp_path)  # no process outlives its boot
    assert len({first, second, await session()}) == 3


async def test_failed_start_is_not_retried_early(fake: FakeNvml, start: Start) -> None:
    fake.scenario.fault("nvmlInitWithFlags", code=9)
    fake.apply()
    reader = start(fake, limits=NvmlLimits(init=20, call=20, retry=3600, max_retry=3600))
    first, second = await failure(reader), await failure(reader)
    assert fake.calls()[("nvmlInitWithFlags", -1)] == 1
    assert first.round is not None
    assert first.round == second.round  # including the time of the failure
    assert second.age_seconds > first.age_seconds
