"""NVML driver events, such as XIDs and MIG changes, over the fake driver and the real binding."""

import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.event import Event
from gpufleet.readers.nvml.listeners import EventListener
from gpufleet.readers.nvml.reader import NvmlReader
from tests.fakes.nvml.driver import FakeNvml
from tests.readers.nvml.rig import HASTY, Start, device
from tests.support.waiting import wait_until_async

XID, MIG_CHANGE = 0x8, 0x100
UNKNOWN, LOST = 999, 15


async def started(reader: NvmlReader, index: int = 0) -> None:
    """Read until the registration for events of a GPU has succeeded or failed."""

    async def known() -> bool:
        round_ = await reader.read(Lane.SLOW)
        return not isinstance(device(round_, index).values["gpu_driver_events_watched"], Absent)

    await wait_until_async(known, what="the registration for events")


async def read_events(reader: NvmlReader, count: int) -> list[Event]:
    found: list[Event] = []

    async def enough() -> bool:
        found.extend((await reader.read(Lane.EVENT)).events)
        return len(found) >= count

    await wait_until_async(enough, what=f"{count} events")
    return found


async def test_xid_identifies_its_gpu_and_is_reported_once(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await started(reader)
    fake.scenario.devices[3].add_event(XID, 79)
    fake.scenario.devices[5].add_event(XID, 94, 2, 1)
    fake.apply()
    events = sorted(await read_events(reader, 2), key=lambda event: event.code)
    assert [(event.kind, event.code) for event in events] == [("xid", 79), ("xid", 94)]
    assert [event.view.uuid if event.view else None for event in events] == [
        fake.scenario.devices[3].uuid,
        fake.scenario.devices[5].uuid,
    ]
    assert events[0].attributes == {"sources": "nvml"}
    assert events[1].attributes == {"sources": "nvml", "gpu_instance": "2", "compute_instance": "1"}
    fake.scenario.devices[0].add_event(XID, 31)
    fake.apply()
    assert [event.code for event in await read_events(reader, 1)] == [31]


async def test_xid_is_reported_while_nvml_hangs(fake: FakeNvml, start: Start) -> None:
    reader = start(fake, limits=HASTY)
    await started(reader)
    fake.scenario.hang("nvmlDeviceGetCount_v2")
    fake.apply()
    with pytest.raises(ReaderError, match="nvmlDeviceGetCount_v2"):
        await reader.read(Lane.FAST)
    fake.scenario.devices[3].add_event(XID, 79)
    fake.apply()
    assert [event.code for event in await read_events(reader, 1)] == [79]


async def test_mig_change_is_reported(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await started(reader)
    fake.scenario.devices[1].add_event(MIG_CHANGE, 0)
    fake.apply()
    (event,) = await read_events(reader, 1)
    assert (event.kind, event.code, event.attributes) == ("mig_changed", 0, {"sources": "nvml"})


async def test_every_type_that_the_device_supports_has_its_kind(fake: FakeNvml, start: Start) -> None:
    types = {
        0x200: "ecc_storm",
        0x400: "memory_retired",
        0x800: "memory_not_retired",
        0x1000: "poison",
        0x2000: "fatal_poison",
        0x4000: "gpu_unavailable",
    }
    fake.scenario.devices[2].numbers["nvmlDeviceGetSupportedEventTypes"] = 0xFF9F
    fake.apply()
    reader = start(fake)
    await started(reader)
    for number in (0x1, 0x4, 0x10, 0x8000, *types):  # the first four are covered by readings
        fake.scenario.devices[2].add_event(number, 5)
        fake.scenario.devices[3].add_event(number, 5)  # does not support them
    fake.scenario.devices[2].add_event(XID, 13)
    fake.apply()
    events = await read_events(reader, len(types) + 1)
    assert {event.kind for event in events} == {*types.values(), "xid"}
    assert len(events) == len(types) + 1
    assert {event.view.uuid for event in events if event.view} == {fake.scenario.devices[2].uuid}


async def test_events_before_the_registration_are_not_reported(fake: FakeNvml, start: Start) -> None:
    fake.scenario.devices[0].add_event(XID, 13)
    fake.apply()
    reader = start(fake)
    await started(reader)
    fake.scenario.devices[0].add_event(XID, 31)
    fake.apply()
    assert [event.code for event in await read_events(reader, 1)] == [31]


async def test_xid_of_a_lost_gpu_identifies_it(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await started(reader)
    fake.scenario.devices[2].add_event(XID, 79)
    fake.scenario.fault("*", gpu=2, code=LOST)
    fake.apply()
    (event,) = await read_events(reader, 1)
    assert event.view is not None
    assert event.view.uuid == fake.scenario.devices[2].uuid


async def test_events_are_reported_while_a_gpu_hangs(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await started(reader)
    fake.scenario.devices[4].add_event(XID, 119)
    fake.scenario.hang("nvmlDeviceGetPowerUsage", gpu=4)
    fake.apply()
    assert [event.code for event in await read_events(reader, 1)] == [119]
    fake.scenario.faults.clear()
    fake.apply()


async def test_gpu_that_breaks_the_event_set_is_left_out(fake: FakeNvml, start: Start) -> None:
    fake.scenario.fault("nvmlDeviceRegisterEvents", gpu=1, code=UNKNOWN)
    fake.apply()
    reader = start(fake)
    await started(reader)
    round_ = await reader.read(Lane.SLOW)
    watched = [device(round_, index).values["gpu_driver_events_watched"] for index in range(8)]
    assert watched == [1, 0, 1, 1, 1, 1, 1, 1]
    calls: Counter[str] = Counter()
    for (function, _), count in fake.calls().items():
        calls[function] += count
    assert calls["nvmlEventSetCreate"] == 2
    assert calls["nvmlEventSetFree"] == 1  # the broken set
    fake.scenario.devices[7].add_event(XID, 48)
    fake.apply()
    assert [event.code for event in await read_events(reader, 1)] == [48]
    fake.scenario.faults.clear()
    fake.apply()
    await reader.read(Lane.STATIC)  # retries the failed registration

    async def fixed() -> bool:
        return device(await reader.read(Lane.SLOW), 1).values["gpu_driver_events_watched"] == 1

    await wait_until_async(fixed, what="the GPU to be watched")


async def test_driver_without_events_affects_nothing_else(fake: FakeNvml, start: Start) -> None:
    for one in fake.scenario.devices:
        one.numbers["nvmlDeviceGetSupportedEventTypes"] = None
    fake.apply()
    reader = start(fake)
    await started(reader)
    round_ = await reader.read(Lane.SLOW)
    assert {device(round_, index).values["gpu_driver_events_watched"] for index in range(8)} == {0}
    assert (await reader.read(Lane.FAST)).errors == ()


async def test_failed_event_wait_is_retried_with_a_pause(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await started(reader)
    fake.scenario.fault("nvmlEventSetWait_v2", code=LOST)
    fake.apply()

    async def failed() -> bool:
        return fake.calls()["nvmlEventSetFree", -1] >= 1

    await wait_until_async(failed, what="the event set to be freed")
    waits = fake.calls()["nvmlEventSetWait_v2", -1]
    fake.scenario.faults.clear()
    fake.apply()

    async def again() -> bool:
        calls = fake.calls()
        return calls["nvmlEventSetCreate", -1] >= 2 and calls["nvmlEventSetWait_v2", -1] > waits + 3

    await wait_until_async(again, what="a new event set to be in use")
    fake.scenario.devices[0].add_event(XID, 48)
    fake.apply()
    assert [event.code for event in await read_events(reader, 1)] == [48]
    assert fake.calls()["nvmlEventSetCreate", -1] < 10


async def test_closing_frees_the_set_before_nvml_is_shut_down(fake: FakeNvml, start: Start) -> None:
    reader = start(fake)
    await started(reader)
    await reader.close()
    assert fake.calls()["nvmlEventSetFree", -1] == 1
    assert fake.calls()["nvmlShutdown", -1] == 1


def test_listener_stopped_during_its_start_stops() -> None:
    """The stop request arrives between two steps of a thread that is just starting."""

    class Failed(Exception):  # noqa: N818 - the binding's name
        value = 10

    def wait(*_: object) -> None:
        raise Failed

    nvml = SimpleNamespace(
        NVMLError=Failed,
        nvmlEventSetCreate=object,
        nvmlEventSetFree=lambda _: None,
        nvmlEventSetWait_v2=wait,
        nvmlDeviceGetHandleByIndex=lambda _: 1,
        nvmlDeviceGetSupportedEventTypes=lambda _: XID,
        nvmlDeviceRegisterEvents=lambda *_: None,
    )
    listener = EventListener(lambda _: None)
    stopped: list[bool] = []

    class Changed(threading.Event):
        def clear(self) -> None:
            if not stopped:
                stopped.append(True)
                listener._stopping.set()
                self.set()
            super().clear()

    listener._changed = Changed()
    listener.watch(nvml, 1, retry_failed=False)
    assert listener._thread is not None
    listener._thread.join(2)
    try:
        assert not listener._thread.is_alive()
    finally:
        listener.stop()
