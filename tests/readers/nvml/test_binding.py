"""GPUs that are bound or unbound while the agent runs: the child process exits and a new one finds them."""

import time
from pathlib import Path

import pytest

from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.readers.nvml.reader import NvmlReader
from tests.fakes.nvml.driver import FakeNvml
from tests.fakes.nvml.scenario import Scenario, healthy_h200
from tests.readers.nvml.rig import PATIENT, Start, own
from tests.support.waiting import wait_until, wait_until_async

UNBIND, BIND = 1, 2


def bind(fake: FakeNvml, number: int, kind: int) -> None:
    """Add one binding or unbinding event to the fake driver."""
    fake.scenario.devices[0].rows.setdefault("system_event", []).append((number, kind, 0x1B00))
    fake.apply()


async def listening(reader: NvmlReader, fake: FakeNvml) -> int:
    await reader.read(Lane.FAST)
    wait_until(lambda: fake.calls()["nvmlSystemEventSetWait", -1] > 0, what="the child to listen")
    assert reader.child_pid is not None
    return reader.child_pid


async def test_child_exits_while_a_gpu_is_unbound(fake: FakeNvml, start: Start) -> None:
    """The kernel waits until every process has closed the GPU. A child that restarts at once would reopen it."""
    reader = start(fake, limits=PATIENT)
    await listening(reader, fake)
    bind(fake, 1, UNBIND)

    async def released() -> bool:
        await reader.read(Lane.EVENT)
        return reader.child_pid is None

    await wait_until_async(released, what="the child to exit")
    begun = time.monotonic()
    with pytest.raises(ReaderError):
        await reader.read(Lane.FAST)
    assert reader.child_pid is None

    async def back() -> bool:
        try:
            return own(await reader.read(Lane.FAST))["nvidia_devices"] == 8
        except ReaderError:
            return False

    await wait_until_async(back, what="the GPUs to be read again")
    assert time.monotonic() - begun > 1  # the reader's own delay, not a performance bound
    calls = fake.calls()
    assert calls["nvmlSystemEventSetFree", -1] == calls["nvmlShutdown", -1] == 1


async def test_bound_gpu_is_discovered_by_a_new_child(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    before = await listening(reader, fake)
    bind(fake, 1, BIND)

    async def released() -> bool:
        await reader.read(Lane.EVENT)
        return reader.child_pid != before

    await wait_until_async(released, what="the child to be replaced")
    await reader.read(Lane.FAST)
    assert reader.child_pid not in (None, before)


@pytest.mark.parametrize("branch", [535, 570])
async def test_driver_without_system_events_works_normally(tmp_path: Path, start: Start, branch: int) -> None:
    fake = FakeNvml(tmp_path, Scenario.healthy(2), branch=branch, log=True)
    reader = start(fake)
    for lane in (Lane.STATIC, Lane.FAST, Lane.EVENT):
        await reader.read(lane)
    await reader.close()
    assert fake.calls()["nvmlShutdown", -1] == 1


@pytest.mark.parametrize("lane", [Lane.SLOW, Lane.STATIC])
async def test_bound_and_unbound_gpus_are_noticed_in_sysfs(tmp_path: Path, start: Start, lane: Lane) -> None:
    """NVML lists only the GPUs that existed when it was initialised."""
    root, fake = tmp_path / "machine", FakeNvml(tmp_path, Scenario.healthy(2))
    bound = root / "sys/bus/pci/drivers/nvidia"
    bound.mkdir(parents=True)
    for name in ("0000:18:00.0", "0000:2a:00.0", "module", "bind", "new_id"):
        (bound / name).touch()
    reader = start(fake, root=root)
    await reader.read(Lane.FAST)
    first = reader.child_pid
    (bound / "remove_id").touch()
    await reader.read(lane)
    assert reader.child_pid == first
    (bound / "0000:3c:00.0").touch()
    fake.scenario.devices.append(healthy_h200(2))
    fake.apply()
    await reader.read(lane)
    second = reader.child_pid
    assert second not in (None, first)
    assert own(await reader.read(Lane.FAST))["nvidia_devices"] == 3
    (bound / "0000:18:00.0").unlink()
    await reader.read(lane)
    assert reader.child_pid not in (first, second)
