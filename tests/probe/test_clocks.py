"""Clocks of a machine against that of the probing process, and the latency of the channel."""

import pytest

from gpufleet.model.absence import Reason
from gpufleet.model.errors import ChannelError
from gpufleet.model.time import NANOS
from gpufleet.ports.channel import FetchPlan, FetchResult
from gpufleet.probe.clocks import MOUNTINFO, NAMES, REQUESTS, STAT, UPTIME, probe_clocks
from gpufleet.probe.facts import FactList
from gpufleet.probe.measurements import MeasurementList
from tests.fakes.clock import FakeClock

PROC = "701 700 0:201 / /proc rw - proc proc rw\n"
LXCFS = PROC + "".join(
    f"{number} 701 0:60 {path} {path} rw,nosuid,nodev - fuse.lxcfs lxcfs rw,user_id=0\n"
    for number, path in enumerate((STAT, UPTIME), start=702)
)


class GuestClock:
    """Files of a guest that booted at an instant of the host's clock; each request takes one of the durations.

    The guest reads its uptime after a third of the request.
    """

    def __init__(self, clock: FakeClock, *durations: float, booted: float, ahead: float = 0.0, mounts: str) -> None:
        self.clock, self.durations, self.booted, self.ahead = clock, list(durations), booted, ahead
        self.mounts = mounts

    async def fetch(self, plan: FetchPlan) -> FetchResult:
        if plan.files == (MOUNTINFO,):
            return FetchResult(files={MOUNTINFO: self.mounts.encode()})
        seconds = self.durations.pop(0)
        if seconds < 0:
            raise ChannelError("the guest is gone")
        self.clock.advance(seconds / 3)
        uptime = self.clock.now_ns() / NANOS - self.booted
        self.clock.advance(seconds * 2 / 3)
        btime = int(self.booted + self.ahead)
        return FetchResult(files={UPTIME: f"{uptime:.2f} 1.00\n".encode(), STAT: f"cpu 1\nbtime {btime}\n".encode()})


async def probed(*durations: float, ahead: float = 0.0, mounts: str = PROC) -> tuple[float, FactList, MeasurementList]:
    clock, facts, measurements = FakeClock(), FactList(), MeasurementList()
    booted = clock.now_ns() / NANOS - 1000.3
    guest = GuestClock(clock, *durations, booted=booted, ahead=ahead, mounts=mounts)
    await probe_clocks(guest, clock, facts, measurements)
    return booted, facts, measurements


@pytest.mark.parametrize("durations", [(0.01, 0.01, 0.01), (6.0, 3.0, 9.0), (0.5, -1, 0.25)])
async def test_boot_lies_within_its_uncertainty(durations: tuple[float, ...]) -> None:
    booted, facts, _ = await probed(*durations)
    at, uncertainty = facts.value("clock_boot_seconds"), facts.value("clock_boot_uncertainty_seconds")
    assert isinstance(at, float)
    assert isinstance(uncertainty, float)
    assert abs(at - booted) <= uncertainty
    assert uncertainty == pytest.approx(min(one for one in durations if one > 0) / 2 + 0.01)


@pytest.mark.parametrize("ahead", [0.0, 90.0, -3600.0])
async def test_offset_of_the_wall_clock_lies_within_its_uncertainty(ahead: float) -> None:
    _, facts, _ = await probed(0.2, 0.1, 0.3, ahead=ahead)
    offset, uncertainty = facts.value("clock_offset_seconds"), facts.value("clock_offset_uncertainty_seconds")
    assert isinstance(offset, float)
    assert isinstance(uncertainty, float)
    assert abs(offset - ahead) <= uncertainty < 1


async def test_latency_of_the_channel_is_measured() -> None:
    _, _, measurements = await probed(0.5, 0.25, 1.0)
    (latency,) = measurements.measurements()
    assert latency.values == pytest.approx((0.5, 0.25, 1.0))


async def test_failed_channel_makes_the_clocks_absent() -> None:
    _, facts, measurements = await probed(*[-1.0] * REQUESTS)
    assert {fact.name: fact.absent for fact in facts.facts} == dict.fromkeys(NAMES, Reason.READER_FAILED)
    assert measurements.measurements()[0].failed == REQUESTS


async def test_container_whose_uptime_is_its_own_has_no_clocks() -> None:
    _, facts, measurements = await probed(0.2, 0.1, 0.3, ahead=-864_000.0, mounts=LXCFS)
    assert {fact.name: fact.absent for fact in facts.facts} == dict.fromkeys(NAMES, Reason.NOT_REPORTED)
    assert measurements.measurements()[0].failed == 0
