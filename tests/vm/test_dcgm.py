"""A host engine inside a real guest, read from outside through the hypervisor's vsock socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpufleet.channels.stream.dialers import HybridVsockDialer
from gpufleet.doctor.dcgm import examine_engine
from gpufleet.doctor.facts import Verdict
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.reading import Round
from gpufleet.model.view import Side
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.runtime import SystemClock
from tests.vm.image import SAME_PYTHON
from tests.vm.machine import ENGINE_PORT, PAGE_PORT, VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PATIENT, SHORT = 60.0, 2.0
"""Seconds for an answer: an emulated processor beside other tests, and one that will not come."""

UUIDS = [f"GPU-5b4e07f6-3a86-4340-039d-00000000000{index}" for index in range(2)]


def dialer_of(vm: VirtualMachine, port: int = ENGINE_PORT, seconds: float = PATIENT) -> HybridVsockDialer:
    return HybridVsockDialer(vm.vsock, port, timeout_seconds=seconds)


@asynccontextmanager
async def reading(vm: VirtualMachine, seconds: float = PATIENT) -> AsyncIterator[DcgmReader]:
    reader = DcgmReader(dialer_of(vm, seconds=seconds), SystemClock(), side=Side.GUEST, reply_seconds=seconds)
    try:
        yield reader
    finally:
        await reader.close()


def gpus_of(found: Round) -> list[str | None]:
    return [sample.view.uuid for sample in found.samples if sample.view is not None]


async def test_a_guests_gpus_are_read_from_the_host(vm: VirtualMachine) -> None:
    async with reading(vm) as reader:
        rounds = {lane: await reader.read(lane) for lane in reader.lanes}
    fast = rounds[Lane.FAST]
    assert gpus_of(fast) == UUIDS
    first = fast.samples[0]
    assert first.view is not None
    assert first.view.side is Side.GUEST
    assert first.values["gpu_power_watts"] == 312.25
    assert first.values["gpu_sm_activity_ratio"] == pytest.approx(0.72)
    assert not any(found.errors for found in rounds.values())


async def test_the_doctor_sees_it_too(vm: VirtualMachine) -> None:
    address = f"hybrid-vsock://{vm.vsock}:{ENGINE_PORT}"
    checks = {check.name: check for check in await examine_engine(address, dialer_of(vm), SystemClock())}
    assert {check.verdict for check in checks.values()} <= {Verdict.OK, Verdict.WARNING}
    assert checks["who reaches it"].verdict is Verdict.WARNING
    assert checks["GPUs"].found == "2: 0, 1"


async def test_many_readers_at_once(vm: VirtualMachine) -> None:
    async with asyncio.TaskGroup() as tasks:
        found = [tasks.create_task(_once(vm)) for _ in range(16)]
    assert all(gpus_of(task.result()) == UUIDS for task in found)


async def _once(vm: VirtualMachine) -> Round:
    async with reading(vm) as reader:
        return await reader.read(Lane.FAST)


async def test_a_page_of_metrics_comes_whole(vm: VirtualMachine) -> None:
    stream = await dialer_of(vm, PAGE_PORT).dial()
    await stream.send(b"GET /metrics HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n")
    answer = b""
    while chunk := await stream.receive(65536):
        answer += chunk
    await stream.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == vm.files["etc/page"][1]


async def test_a_port_where_nobody_listens(vm: VirtualMachine) -> None:
    with pytest.raises(ChannelError) as caught:
        await dialer_of(vm, 5999).dial()
    assert caught.value.problem is ChannelProblem.NOBODY_LISTENS


@pytest.mark.skipif(
    not SAME_PYTHON, reason="the guest has Python 3.11: compiled modules of this Python do not run in it"
)
def test_vsock_from_inside(vm: VirtualMachine) -> None:
    code, printed = vm.run("python3.11 /opt/loopback.py")
    assert code == 0, printed
    assert json.loads(printed) == {"gpus": UUIDS, "errors": [], "nobody": "nobody_listens"}


async def test_a_frozen_guest_is_late_and_costs_no_neighbour(vm: VirtualMachine) -> None:
    async with reading(vm) as reader, reading(vm, SHORT) as hasty:
        await reader.read(Lane.FAST)
        await hasty.read(Lane.STATIC)
        vm.freeze()
        try:
            with pytest.raises(ReaderError) as caught:
                await hasty.read(Lane.FAST)
            assert caught.value.absence is Reason.TIMEOUT
            with pytest.raises(ChannelError) as dialled:
                await dialer_of(vm, seconds=SHORT).dial()
            assert dialled.value.problem is ChannelProblem.NOT_UP
        finally:
            vm.thaw()
        assert gpus_of(await reader.read(Lane.FAST)) == UUIDS  # the same connection, as if nothing had been


async def test_an_engine_that_is_killed_and_started_again(vm: VirtualMachine) -> None:
    async with reading(vm) as reader:
        await reader.read(Lane.FAST)
        try:
            assert vm.run("/etc/services stop engine")[0] == 0
            with pytest.raises(ReaderError):  # a pipe that broke, or an end, as it comes
                await reader.read(Lane.FAST)
            with pytest.raises(ReaderError, match="nobody listens"):
                await reader.read(Lane.FAST)
        finally:
            assert vm.run("/etc/services start engine") == (0, "")
    assert gpus_of(await _once(vm)) == UUIDS


async def test_a_machine_that_is_gone_and_another_in_its_place(parts: None) -> None:
    with VirtualMachine("first", gpus=1) as first:
        async with reading(first) as reader:
            assert gpus_of(await reader.read(Lane.FAST)) == UUIDS[:1]
            first.stop()
            with pytest.raises(ReaderError):
                await reader.read(Lane.FAST)
        with pytest.raises(ChannelError) as caught:
            await dialer_of(first).dial()
        assert caught.value.problem is ChannelProblem.NO_SUCH_VM
        with VirtualMachine("second", gpus=2, at=first) as second:
            async with reading(second) as reader:
                assert gpus_of(await reader.read(Lane.STATIC)) == UUIDS
