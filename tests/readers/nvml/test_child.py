"""NVML child process: crashes, orphaning and read-only calls."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.readers.nvml import calls
from gpufleet.readers.nvml.reader import NvmlReader
from gpufleet.readers.nvml.watch import NvmlLimits
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import CRASH
from tests.readers.nvml.rig import PATIENT, Start, device, own
from tests.support.process_memory import memory_kib
from tests.support.waiting import wait_until, wait_until_async


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_a_killed_child_is_replaced(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    before = reader.child_pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    try:
        round_ = await reader.read(Lane.FAST)
    except ReaderError:  # the request met the dying child
        round_ = await reader.read(Lane.FAST)
    assert device(round_, 7).values["gpu_state"] == "ok"
    assert reader.child_pid != before


async def test_child_killed_in_a_call_costs_one_round(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    fake.scenario.hang("nvmlDeviceGetCount_v2")
    fake.apply()
    reading = asyncio.create_task(reader.read(Lane.FAST))

    async def inside() -> bool:
        return fake.calls()[("nvmlDeviceGetCount_v2", -1)] == 2

    await wait_until_async(inside, what="the child to be inside the call")
    assert reader.child_pid is not None
    os.kill(reader.child_pid, signal.SIGKILL)
    with pytest.raises(ReaderError, match=r"SIGKILL.*nvmlDeviceGetCount_v2") as caught:
        await reading
    assert caught.value.absence is Reason.READER_FAILED
    fake.scenario.faults.clear()
    fake.apply()
    assert not (await reader.read(Lane.FAST)).errors


async def test_crash_in_the_library_ends_only_the_child(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    fake.scenario.fault("nvmlDeviceGetPowerUsage", gpu=3, code=CRASH)
    fake.apply()
    with pytest.raises(ReaderError, match="SIGSEGV") as caught:
        await reader.read(Lane.FAST)
    assert caught.value.absence is Reason.READER_FAILED
    assert caught.value.round is not None
    assert own(caught.value.round)["nvidia_driver_state"] == "error"
    fake.scenario.faults.clear()
    fake.apply()
    assert not (await reader.read(Lane.FAST)).errors


async def test_a_child_that_keeps_crashing_is_not_restarted_at_once(fake: FakeNvml, start: Start) -> None:
    fake.scenario.fault("nvmlDeviceGetPowerUsage", code=CRASH)
    fake.apply()
    reader = start(fake, limits=NvmlLimits(init=20, call=20, retry=3600, max_retry=3600))
    for _ in range(3):
        with pytest.raises(ReaderError, match="SIGSEGV"):
            await reader.read(Lane.FAST)
    assert fake.calls()[("nvmlInitWithFlags", -1)] == 1


PARENT = """
import asyncio, sys
from gpufleet.model.catalogue import Lane
from gpufleet.readers.nvml.reader import NvmlReader

async def main():
    reader = NvmlReader()
    await reader.read(Lane.FAST)
    print(reader.child_pid, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_child_ends_when_its_parent_is_killed(fake: FakeNvml) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=fake.environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert runs(child)
        parent.kill()
    wait_until(lambda: not runs(child), what="the child to end after its parent")


async def test_close_shuts_nvml_down_and_a_later_read_restarts_it(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await reader.read(Lane.FAST)
    await reader.close()
    assert reader.child_pid is None
    assert fake.calls()[("nvmlShutdown", -1)] == 1
    assert not (await reader.read(Lane.FAST)).errors


async def test_only_getters_are_called(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    for lane in (*reader.lanes, *reader.lanes):
        await reader.read(lane)
    await reader.close()
    names = {name for name, _ in fake.calls()}
    own_memory = {"nvmlGpmSampleAlloc", "nvmlGpmSampleFree"}  # buffers in this process only
    # Subscriptions of this process: they change no device. Their thread does not report calls in progress.
    listening = {"nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree", "nvmlDeviceRegisterEvents"}
    listening |= {"nvmlDeviceGetSupportedEventTypes"}
    listening |= {f"nvmlSystemEventSet{what}" for what in ("Create", "Wait", "Free")} | {"nvmlSystemRegisterEvents"}
    assert {name for name in names if "Get" not in name} - own_memory - listening == {
        "nvmlInitWithFlags",
        "nvmlShutdown",
        "nvmlGpmQueryDeviceSupport",
    }
    assert names - own_memory - listening <= {label.partition("(")[0] for label in calls.LABELS}


def test_a_call_that_writes_aborts_the_process(fake: FakeNvml) -> None:
    script = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceSetPersistenceMode(n.nvmlDeviceGetHandleByIndex(0), 1)"
    done = subprocess.run([sys.executable, "-c", script], env=fake.environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert b"nvmlDeviceSetPersistenceMode" in done.stderr


def test_modules_import_without_the_nvml_binding() -> None:
    script = (
        "import sys; sys.modules['pynvml'] = None; import gpufleet.readers.nvml.reader, gpufleet.readers.nvml.child"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


async def test_missing_binding_error_names_the_package(fake: FakeNvml, start: Start, tmp_path: Path) -> None:
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "pynvml.py").write_text("raise ImportError('blocked')\n")
    environment = {**fake.environment, "PYTHONPATH": str(tmp_path / "blocked")}
    reader = NvmlReader(limits=PATIENT, environment=environment)
    with pytest.raises(ReaderError, match="nvidia-ml-py") as caught:
        await reader.read(Lane.FAST)
    assert caught.value.absence is Reason.READER_FAILED
    await reader.close()


async def test_the_child_is_small(fake: FakeNvml, start: Start) -> None:
    """Bound that catches a heavy import. Measurements are in docs/performance.md."""
    reader = start(fake)
    await reader.read(Lane.FAST)
    assert reader.child_pid is not None
    assert memory_kib("VmRSS", reader.child_pid) < 60_000
