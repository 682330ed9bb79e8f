"""DCGM connection: kept between passes and dialled again with backoff."""

import pytest

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.ports.channel import Stream
from gpufleet.readers.dcgm.reader import DcgmReader


class ManualClock:
    """Clock that the test sets."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now_ns(self) -> int:
        return round(self.at * 1e9)

    def monotonic(self) -> float:
        return self.at


class NoListener:
    """Dialer that counts its attempts and always fails."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.dialled: list[float] = []

    async def dial(self) -> Stream:
        self.dialled.append(self._clock.at - 1000)
        raise ChannelError("vsock://42:5555: no listener", ChannelProblem.NO_LISTENER)


async def test_missing_engine_is_dialled_with_backoff() -> None:
    clock = ManualClock()
    dialer = NoListener(clock)
    reader = DcgmReader(dialer, clock)
    errors = set()
    for _ in range(300):
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.EVENT)
        errors.add((caught.value.absence, str(caught.value)))
        assert clock.at - 1000 - caught.value.age_seconds == dialer.dialled[-1]
        clock.at += 1
    assert dialer.dialled == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184, 244]
    assert errors == {(Reason.READER_FAILED, "vsock://42:5555: no listener")}


async def test_maximum_backoff_limits_the_time_between_dials() -> None:
    clock = ManualClock()
    dialer = NoListener(clock)
    reader = DcgmReader(dialer, clock, max_backoff_seconds=1.0)
    for _ in range(50):
        with pytest.raises(ReaderError):
            await reader.read(Lane.FAST)
        clock.at += 0.5
    assert dialer.dialled == [0, *(0.5 + step for step in range(25))]
