"""Who tells of virtual machines: what several tell of, one that breaks, more than are read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from gpufleet.agent.guests.guest import GuestAccess
from gpufleet.agent.guests.guests import GuestSupervisor
from gpufleet.agent.guests.sources import ConfiguredGuests, GuestListing, GuestSource
from gpufleet.config.guests import MAX_GUESTS, GuestConfig
from gpufleet.model.catalogue import Lane
from gpufleet.model.snapshot import Guest
from gpufleet.runtime import SystemClock
from tests.support.waiting import wait_until_async


def guest(number: int, name: str = "vm") -> GuestConfig:
    return GuestConfig(name=name, vm_uuid=f"00000000-0000-4000-8000-{number:012x}", channels=())


class Told:
    """A source that tells what it is told to, or breaks."""

    every_seconds = 0.01

    def __init__(self, name: str, *guests: GuestConfig, adds: bool = False) -> None:
        self.name, self.adds = name, adds
        self.breaks = False
        self.listing = GuestListing({f"{name}-{one.uid[-4:]}": one for one in guests}, {})

    async def look(self) -> GuestListing:
        if self.breaks:
            raise RuntimeError("a defect")
        return self.listing


async def wait_for(condition: Callable[[], bool], *, what: str) -> None:
    async def holds() -> bool:
        return condition()

    await wait_until_async(holds, what=what)


@contextlib.asynccontextmanager
async def following(*sources: GuestSource) -> AsyncIterator[tuple[GuestSupervisor, Callable[[], dict[str, Guest]]]]:
    guests = GuestSupervisor(
        sources,
        lambda _: GuestAccess(links=(), gpus=(), host=()),
        intervals=dict.fromkeys(Lane, 10.0),
        clock=SystemClock(),
        collects=False,
    )

    def shown() -> dict[str, Guest]:
        done = guests.documents("node")
        try:
            while True:
                next(done)
        except StopIteration as end:
            return {one.vm_uuid[-4:]: one for one in end.value}

    task = asyncio.create_task(guests.run(lambda: None))
    try:
        yield guests, shown
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_first_that_tells_of_one_is_believed() -> None:
    configured = ConfiguredGuests([guest(1, "first")])
    folder, found = (
        Told("folder", guest(1, "second"), guest(2)),
        Told("libvirt", guest(2, "third"), guest(3), adds=True),
    )
    async with following(configured, folder, found) as (guests, shown):
        await wait_for(lambda: len(shown()) == 3, what="every virtual machine")
        assert {uid: (one.name, one.found_by) for uid, one in shown().items()} == {
            "0001": ("first", "configuration: first"),
            "0002": ("vm", "folder: folder-0002"),
            "0003": ("vm", "libvirt: libvirt-0003"),
        }
        assert "folder-0001" in guests.capability  # libvirt's second word on 0002 is no mistake
        assert "more)" not in guests.capability
        folder.listing = GuestListing({}, {})
        await wait_for(lambda: shown()["0002"].found_by == "libvirt: libvirt-0002", what="libvirt's word")
        assert guests.capability == "available"


async def test_a_source_that_breaks_costs_itself() -> None:
    good, bad = Told("folder", guest(1)), Told("libvirt", guest(2), adds=True)
    async with following(good, bad) as (guests, shown):
        await wait_for(lambda: len(shown()) == 2, what="both")
        bad.breaks = True
        good.listing = GuestListing({"a": guest(3)}, {})
        await wait_for(lambda: guests.capability.startswith("failing: libvirt"), what="the defect to be told")
        await wait_for(lambda: sorted(shown()) == ["0002", "0003"], what="the others to go on")
        bad.breaks = False
        await wait_for(lambda: guests.capability == "available", what="it to be well again")


async def test_there_are_no_more_than_are_read() -> None:
    many = Told("folder", *(guest(number) for number in range(MAX_GUESTS + 1)))
    async with following(many) as (guests, shown):
        await wait_for(lambda: len(shown()) == MAX_GUESTS, what="as many as are read")
        assert str(MAX_GUESTS) in guests.capability


async def test_one_without_a_way_says_so() -> None:
    async with following(ConfiguredGuests([guest(1)])) as (_, shown):
        await wait_for(lambda: len(shown()) == 1, what="it")
        assert (shown()["0001"].state, shown()["0001"].access_paths) == ("not_enabled", ())
