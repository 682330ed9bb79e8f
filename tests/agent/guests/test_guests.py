"""The list of virtual machines while their descriptions change."""

import asyncio
from collections.abc import Generator
from typing import TypeVar

from gpufleet.agent.guests.guest import GuestAccess
from gpufleet.agent.guests.guests import GuestSupervisor
from gpufleet.config.guests import DcgmChannel, GuestConfig
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.snapshot import Guest
from gpufleet.ports.guests import GuestDetails, GuestListing
from gpufleet.runtime import SystemClock
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
    details = GuestDetails()

    async def list_guests(self) -> GuestListing:
        return GuestListing({"train-0": GUEST}, {}, {"train-0": self.details})


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
