"""Host engine in a real guest, read from the host through the hypervisor's vsock socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gpufleet.channels.stream.dialers import HybridVsockDialer
from gpufleet.doctor.dcgm import examine_engine
from gpufleet.doctor.facts import CheckVerdict
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.model.reading import Round
from gpufleet.model.view import Side
from gpufleet.readers.dcgm.reader import DcgmReader
from gpufleet.runtime import SystemClock
from tests.support.waiting import wait_until_async
from tests.vm.image import SAME_PYTHON
from tests.vm.machine import ENGINE_PORT, PAGE_PORT, VirtualMachine

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

LONG, SHORT = 60.0, 2.0
"""Timeouts in seconds: for an answer of an emulated processor, and for a missing answer."""


def uuids_of(vm: VirtualMachine) -> list[str]:
    return [f"GPU-5b4e07f6-3a86-4340-039d-00000000000{index}" for index in range(vm.gpus)]


def dialer_of(vm: VirtualMachine, port: int = ENGINE_PORT, seconds: float = LONG) -> HybridVsockDialer:
    return HybridVsockDialer(vm.vsock, port, timeout_seconds=seconds)


@asynccontextmanager
async def reading(vm: VirtualMachine, seconds: float = LONG) -> AsyncIterator[DcgmReader]:
    reader = DcgmReader(dialer_of(vm, seconds=seconds), SystemClock(), side=Side.GUEST, reply_seconds=seconds)
    try:
        yield reader
    finally:
        await reader.close()


def gpus_of(found: Round) -> list[str | None]:
    return [sample.view.uuid for sample in found.samples if sample.view is not None]


async def test_gpus_of_a_guest_are_read_from_the_host(vm: VirtualMachine) -> None:
    async with reading(vm) as reader:
        rounds = {lane: await reader.read(lane) for lane in reader.lanes}
    fast = rounds[Lane.FAST]
    assert gpus_of(fast) == uuids_of(vm)
    first = fast.samples[0]
    assert first.view is not None
    assert first.view.side is Side.GUEST
    assert first.values["gpu_power_watts"] == 312.25
    assert first.values["gpu_sm_activity_ratio"] == pytest.approx(0.72)
    assert not any(found.errors for found in rounds.values())


async def test_doctor_examines_the_engine(vm: VirtualMachine) -> None:
    address = f"hybrid-vsock://{vm.vsock}:{ENGINE_PORT}"
    checks = {check.name: check for check in await examine_engine(address, dialer_of(vm), SystemClock())}
    assert {check.verdict for check in checks.values()} <= {CheckVerdict.OK, CheckVerdict.WARNING}
    assert checks["exposure"].verdict is CheckVerdict.WARNING
    assert checks["GPUs"].found.startswith(f"{vm.gpus}: 0, 1")


async def test_sixteen_readers_at_once(vm: VirtualMachine) -> None:
    async with asyncio.TaskGroup() as tasks:
        found = [tasks.create_task(_once(vm)) for _ in range(16)]
    assert all(gpus_of(task.result()) == uuids_of(vm) for task in found)


async def _once(vm: VirtualMachine) -> Round:
    async with reading(vm) as reader:
        return await reader.read(Lane.FAST)


async def test_page_of_metrics_arrives_whole(vm: VirtualMachine) -> None:
    stream = await dialer_of(vm, PAGE_PORT).dial()
    await stream.send(b"GET /metrics HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n")
    answer = b""
    while chunk := await stream.receive(65536):
        answer += chunk
    await stream.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == vm.files["etc/page"][1]


async def test_port_without_a_listener_is_an_error(vm: VirtualMachine) -> None:
    with pytest.raises(ChannelError) as caught:
        await dialer_of(vm, 5999).dial()
    assert caught.value.problem is ChannelProblem.NO_LISTENER


@pytest.mark.skipif(
    not SAME_PYTHON, reason="the guest has Python 3.11: compiled modules of this Python do not run in it"
)
def test_vsock_works_inside_the_guest(vm: VirtualMachine) -> None:
    code, printed = vm.run("python3.11 /opt/loopback.py")
    assert code == 0, printed
    assert json.loads(printed) == {"gpus": uuids_of(vm), "errors": [], "unused_port": "no_listener"}


async def test_frozen_guest_times_out_and_answers_after_it(vm: VirtualMachine) -> None:
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
        assert gpus_of(await reader.read(Lane.FAST)) == uuids_of(vm)  # over the same connection


async def test_restarted_engine_is_read_again(vm: VirtualMachine) -> None:
    async with reading(vm) as reader:
        await reader.read(Lane.FAST)
        try:
            assert vm.run("/etc/services stop engine")[0] == 0

            async def is_refused() -> bool:
                """Read once; the guest's kernel closes the sockets of a killed process some time later."""
                with pytest.raises(ReaderError) as caught:
                    await reader.read(Lane.FAST)
                assert isinstance(caught.value.__cause__, ChannelError)
                return caught.value.__cause__.problem is ChannelProblem.NO_LISTENER

            await wait_until_async(is_refused, what="a connection to be refused")
        finally:
            assert vm.run("/etc/services start engine") == (0, "")
    assert gpus_of(await _once(vm)) == uuids_of(vm)
