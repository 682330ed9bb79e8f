"""Guest sources: guests of several sources, a failing source, and the guest limit."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from gpufleet.agent.guests.guest import GuestAccess
from gpufleet.agent.guests.guests import GuestSupervisor
from gpufleet.agent.guests.sources import ConfiguredGuests
from gpufleet.config.guests import MAX_GUESTS, GuestConfig
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.snapshot import Guest
from gpufleet.ports.guests import GuestDetails, GuestListing, GuestSource
from gpufleet.runtime import SystemClock
from tests.support.waiting import wait_until_async


def guest(number: int, name: str = "vm") -> GuestConfig:
    return GuestConfig(name=name, vm_uuid=f"00000000-0000-4000-8000-{number:012x}", channels=())


class FakeSource:
    """Source that returns a given listing or fails."""

    every_seconds = 0.01

    def __init__(self, name: str, *guests: GuestConfig, adds: bool = False) -> None:
        self.name, self.adds = name, adds
        self.fails = False
        self.listing = GuestListing({f"{name}-{one.uid[-4:]}": one for one in guests}, {})

    async def list_guests(self) -> GuestListing:
        if self.fails:
            raise RuntimeError("a defect")
        return self.listing


async def wait_for(condition: Callable[[], bool], *, what: str) -> None:
    async def check() -> bool:
        return condition()

    await wait_until_async(check, what=what)


@contextlib.asynccontextmanager
async def supervised(
    *sources: GuestSource, interval: float = 10.0, collects: bool = False
) -> AsyncIterator[tuple[GuestSupervisor, Callable[[], dict[str, Guest]]]]:
    guests = GuestSupervisor(
        sources,
        lambda _: GuestAccess(links=(), gpus=(), host=()),
        intervals=dict.fromkeys(Lane, interval),
        clock=SystemClock(),
        collects=collects,
    )

    def shown() -> dict[str, Guest]:
        steps = guests.documents("node")
        try:
            while True:
                next(steps)
        except StopIteration as end:
            return {one.vm_uuid[-4:]: one for one in end.value}

    task = asyncio.create_task(guests.run(lambda: None))
    try:
        yield guests, shown
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_first_source_of_a_guest_takes_precedence() -> None:
    configured = ConfiguredGuests([guest(1, "first")])
    folder, found = (
        FakeSource("folder", guest(1, "second"), guest(2)),
        FakeSource("libvirt", guest(2, "third"), guest(3), adds=True),
    )
    async with supervised(configured, folder, found) as (guests, shown):
        await wait_for(lambda: len(shown()) == 3, what="every virtual machine")
        assert {uid: (one.name, one.found_by) for uid, one in shown().items()} == {
            "0001": ("first", "configuration: first"),
            "0002": ("vm", "folder: folder-0002"),
            "0003": ("vm", "libvirt: libvirt-0003"),
        }
        assert "folder-0001" in guests.capability  # a duplicate of libvirt is not an error
        assert "more)" not in guests.capability
        folder.listing = GuestListing({}, {})
        await wait_for(lambda: shown()["0002"].found_by == "libvirt: libvirt-0002", what="the guest of libvirt")
        assert guests.capability == "available"


async def test_failing_source_affects_only_itself() -> None:
    good, bad = FakeSource("folder", guest(1)), FakeSource("libvirt", guest(2), adds=True)
    async with supervised(good, bad) as (guests, shown):
        await wait_for(lambda: len(shown()) == 2, what="both guests")
        bad.fails = True
        good.listing = GuestListing({"a": guest(3)}, {})
        await wait_for(lambda: guests.capability.startswith("failing: libvirt"), what="the defect to be reported")
        await wait_for(lambda: sorted(shown()) == ["0002", "0003"], what="the other source to continue")
        bad.fails = False
        await wait_for(lambda: guests.capability == "available", what="the capability to recover")


async def test_number_of_guests_is_limited() -> None:
    many = FakeSource("folder", *(guest(number) for number in range(MAX_GUESTS + 1)))
    async with supervised(many) as (guests, shown):
        await wait_for(lambda: len(shown()) == MAX_GUESTS, what="the limit of guests")
        assert str(MAX_GUESTS) in guests.capability


async def test_guest_without_access_path_is_not_enabled() -> None:
    async with supervised(ConfiguredGuests([guest(1)])) as (_, shown):
        await wait_for(lambda: len(shown()) == 1, what="the guest")
        assert (shown()["0001"].state, shown()["0001"].access_paths) == ("not_enabled", ())


async def test_guest_without_access_path_is_reported_again() -> None:
    """A hub takes a machine without reports for lost."""
    async with supervised(ConfiguredGuests([guest(1)]), interval=0.05, collects=True) as (guests, shown):
        await wait_for(lambda: len(shown()) == 1, what="the guest")
        for _ in range(3):
            await wait_for(lambda: len(guests.take("node")) == 1, what="another report")


async def test_excluded_guest_has_the_reason_of_its_source() -> None:
    source = FakeSource("kubevirt", guest(1))
    unread = Absent(Reason.NO_SUPPORTED_GPU, "not NVIDIA's")
    details = GuestDetails(labels={"team": "blue"}, unread=unread)
    source.listing = GuestListing(source.listing.guests, {}, {"kubevirt-0001": details})
    async with supervised(source) as (_, shown):
        await wait_for(lambda: len(shown()) == 1, what="the guest")
        one = shown()["0001"]
    assert (one.state, one.detail, one.excluded) == (Reason.NO_SUPPORTED_GPU, "not NVIDIA's", True)
    assert one.labels == {"team": "blue"}
