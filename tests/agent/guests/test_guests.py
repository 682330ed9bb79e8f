"""The list of virtual machines while their descriptions change."""

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

import pytest

from gpufleet.agent.guests.access_paths import AccessPath
from gpufleet.agent.guests.guest import GuestAccess
from gpufleet.agent.guests.guests import GuestSupervisor
from gpufleet.config.guests import DcgmChannel, GuestConfig
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ReaderError
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.model.snapshot import Guest
from gpufleet.model.time import NANOS
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.guests import GuestDetails, GuestListing
from gpufleet.runtime import SystemClock
from tests.fakes.readers import ScriptedReader
from tests.support.waiting import wait_until_async

T = TypeVar("T")
GUEST = GuestConfig(
    name="train-0",
    namespace="ml",
    vm_uuid="6f1ed002-ab5b-4f4f-8f2c-0a2b3c4d5e6f",
    channels=(DcgmChannel(address="vsock://42:5555"),),
)
REFUSED = GuestDetails(unread=Absent(Reason.NOT_ENABLED, "no consent"))


class ScriptedSource:
    """Source with one virtual machine."""

    name, every_seconds, adds = "scripted", 0.01, False
    details, is_running = GuestDetails(), True

    async def list_guests(self) -> GuestListing:
        guests = {"train-0": GUEST} if self.is_running else {}
        return GuestListing(guests, {}, dict.fromkeys(guests, self.details))


class SlowLink:
    """Connection that is closed when the test permits it."""

    def __init__(self) -> None:
        self.is_closing, self.permitted = False, asyncio.Event()

    async def open(self) -> None:
        return

    async def close(self) -> None:
        self.is_closing = True
        await self.permitted.wait()


def result_of(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


async def run_until(event: asyncio.Event, guests: GuestSupervisor) -> None:
    task = asyncio.create_task(guests.run(lambda: None))
    try:
        async with asyncio.timeout(30):
            await event.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def guests_with(*paths: AccessPath, source: ScriptedSource | None = None) -> GuestSupervisor:
    """Return the guests of a source, read over these access paths every 10 ms."""
    return GuestSupervisor(
        [source or ScriptedSource()],
        connect=lambda _: GuestAccess(gpus=paths, host=(), links=()),
        intervals={lane: 0.01 if lane is Lane.FAST else 3600.0 for lane in Lane},
        clock=SystemClock(),
        collects=True,
    )


def reader_of(name: str, passes: list[tuple[str, str | float]], exhausted: asyncio.Event) -> ScriptedReader:
    """Return a reader that answers in its turn.

    `passes` are readers and what they read of a GPU: its state, or its energy in joules.
    """

    async def script(lane: Lane) -> Round:
        if not passes:
            exhausted.set()
        if not passes or passes[0][0] != name:
            raise ReaderError(Reason.TIMEOUT, "no answer")
        _, value = passes.pop(0)
        metric = "gpu_state" if isinstance(value, str) else "gpu_energy_joules_total"
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:05:00.0")
        return Round(
            samples=(Sample(view=view, reader=name, lane=lane, measured_at=1, values={metric: value}),),
        )

    return ScriptedReader(name, script)


async def test_loss_and_recovery_of_a_guests_gpu_are_events() -> None:
    """The access path changes while the GPU is lost: that is no second loss."""
    passes: list[tuple[str, str | float]] = [
        *(("dcgm", "ok"), ("dcgm", "lost"), ("nvidia_smi", "lost"), ("nvidia_smi", "ok"))
    ]
    exhausted = asyncio.Event()
    paths = tuple(AccessPath(name=name, reader=reader_of(name, passes, exhausted)) for name in ("dcgm", "nvidia_smi"))
    guests = guests_with(*paths)
    await run_until(exhausted, guests)
    events = [event for report in guests.take("host") for event in report.events]
    assert [(event.kind, event.attributes) for event in events] == [
        ("gpu_lost", {"sources": "dcgm"}),
        ("gpu_recovered", {"sources": "nvidia_smi"}),
    ]
    assert {event.view for event in events} == {
        View(kind=ViewKind.GPU, side=Side.GUEST, uuid="GPU-1", pci_address="0000:05:00.0")
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [("lost", "ok", ["gpu_lost", "gpu_recovered"]), (500.0, 3.0, ["gpu_reset"]), (500.0, 501.0, [])],
)
@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped and started", "changed"])
async def test_repair_of_a_gpu_by_a_restart_of_its_guest_is_an_event(
    is_stopped: bool, before: str | float, after: str | float, expected: list[str]
) -> None:
    passes, exhausted, source = [("dcgm", before)], asyncio.Event(), ScriptedSource()
    path = AccessPath(name="dcgm", reader=reader_of("dcgm", passes, exhausted))
    guests = guests_with(path, source=source)

    async def is_restarted() -> bool:
        listed = result_of(guests.documents("host"))
        return not listed if is_stopped else [one.labels for one in listed] == [{"run": "2"}]

    task = asyncio.create_task(guests.run(lambda: None))
    try:
        async with asyncio.timeout(30):
            await exhausted.wait()
        source.is_running, source.details = not is_stopped, GuestDetails(labels={"run": "2"})
        await wait_until_async(is_restarted)
        exhausted.clear()
        passes.append(("dcgm", after))
        source.is_running = True
        async with asyncio.timeout(30):
            await exhausted.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    events = [event.kind for report in guests.take("host") for event in report.events]
    assert events == expected


async def test_reset_of_a_guests_gpu_was_after_the_last_failure_without_its_uuid() -> None:
    """The guest's driver was started again while the GPU failed, and gave its address only."""
    exhausted = asyncio.Event()
    history: list[tuple[str | None, int, float | Absent]] = [
        ("GPU-1", 100, 500.0),
        (None, 640, Absent(Reason.DRIVER_ERROR)),
        ("GPU-1", 700, 3.0),
    ]
    passes = iter(history)

    async def read_gpus(lane: Lane) -> Round:
        found = next(passes, None)
        if found is None:
            exhausted.set()
            raise ReaderError(Reason.TIMEOUT, "no answer")
        uuid, seconds, joules = found
        view = View(kind=ViewKind.GPU, side=Side.HOST, uuid=uuid, pci_address="0000:05:00.0")
        values: dict[str, Value | Absent] = {"gpu_energy_joules_total": joules}
        return Round(samples=(Sample(view=view, reader="dcgm", lane=lane, measured_at=seconds * NANOS, values=values),))

    gpus = AccessPath(name="gpus", reader=ScriptedReader("dcgm", read_gpus))
    guests = guests_with(gpus)
    await run_until(exhausted, guests)
    events = [(event.kind, event.code) for report in guests.take("host") for event in report.events]
    assert events == [("gpu_reset", 60)]


async def test_repeated_state_has_the_time_of_its_pass() -> None:
    """The host reports while the third pass over the GPUs hangs."""
    begins: list[int] = []
    view = View(kind=ViewKind.GPU, side=Side.HOST, uuid="GPU-1", pci_address="0000:05:00.0")

    async def read_gpus(lane: Lane) -> Round:
        begins.append(time.time_ns())
        if len(begins) == 2:
            raise ReaderError(Reason.DRIVER_ERROR, "text of the second pass")
        if len(begins) > 2:
            await asyncio.Event().wait()
        return Round(samples=(Sample(view=view, reader="nvidia_smi", lane=lane, measured_at=1, values={}),))

    gpus = AccessPath(name="gpus", reader=ScriptedReader("nvidia_smi", read_gpus))
    host = AccessPath(name="host", reader=ScriptedReader.always("host", Round()))
    guests = GuestSupervisor(
        [ScriptedSource()],
        connect=lambda _: GuestAccess(gpus=(gpus,), host=(host,), links=()),
        intervals={lane: 0.01 if lane is Lane.FAST else 3600.0 for lane in Lane},
        clock=SystemClock(),
        collects=True,
    )
    own: list[Sample] = []

    async def is_repeated() -> bool:
        own.extend(one for report in guests.take("host") for one in report.samples if one.reader == "guests")
        return len(begins) > 2 and own[-1].measured_at > begins[2]

    task = asyncio.create_task(guests.run(lambda: None))
    try:
        await wait_until_async(is_repeated)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    values = own[-1].values
    assert (values["guest_state"], values["guest_problem"]) == (Reason.DRIVER_ERROR, "gpus: text of the second pass")
    judged_at = values["guest_state_timestamp_seconds"]
    assert isinstance(judged_at, float)
    assert begins[0] / NANOS < judged_at <= begins[1] / NANOS


async def test_changed_guest_is_listed_while_its_connections_close() -> None:
    source, link = ScriptedSource(), SlowLink()
    guests = GuestSupervisor(
        [source],
        connect=lambda _: GuestAccess(gpus=(), host=(), links=(link,)),
        intervals=dict.fromkeys(Lane, 10.0),
        clock=SystemClock(),
        collects=False,
    )

    def listed() -> tuple[Guest, ...]:
        return result_of(guests.documents("host"))

    async def is_listed() -> bool:
        return len(listed()) == 1

    async def is_closing() -> bool:
        return link.is_closing

    async def is_excluded() -> bool:
        return [one.excluded for one in listed()] == [True]

    task = asyncio.create_task(guests.run(lambda: None))
    try:
        await wait_until_async(is_listed)
        source.details = REFUSED
        await wait_until_async(is_closing)
        assert len(listed()) == 1
        link.permitted.set()
        await wait_until_async(is_excluded)
    finally:
        link.permitted.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
