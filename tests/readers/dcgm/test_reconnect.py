"""A connection is kept; one that fails is dialled again, less and less often."""

import pytest

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.errors import ChannelError, ChannelProblem, ReaderError
from gpufleet.ports.channel import Stream
from gpufleet.readers.dcgm.reader import DcgmReader


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now_ns(self) -> int:
        return round(self.at * 1e9)

    def monotonic(self) -> float:
        return self.at


class NoListener:
    """A dialer that counts in vain."""

    def __init__(self, clock: Hands) -> None:
        self._clock = clock
        self.dialled: list[float] = []

    async def dial(self) -> Stream:
        self.dialled.append(self._clock.at - 1000)
        raise ChannelError("vsock://42:5555: nobody listens", ChannelProblem.NO_LISTENER)


async def test_missing_engine_is_dialled_with_backoff() -> None:
    clock = Hands()
    dialer = NoListener(clock)
    reader = DcgmReader(dialer, clock)
    words = set()
    for _ in range(300):
        with pytest.raises(ReaderError) as caught:
            await reader.read(Lane.EVENT)
        words.add((caught.value.absence, str(caught.value)))
        clock.at += 1
    assert dialer.dialled == [0, 1, 2, 4, 8, 16, 32, 64, 124, 184, 244]
    assert words == {(Reason.READER_FAILED, "vsock://42:5555: nobody listens")}


async def test_a_guest_that_boots_is_dialled_as_often_as_it_is_asked() -> None:
    clock = Hands()
    dialer = NoListener(clock)
    reader = DcgmReader(dialer, clock, max_backoff_seconds=1.0)
    for _ in range(50):
        with pytest.raises(ReaderError):
            await reader.read(Lane.FAST)
        clock.at += 0.5
    assert dialer.dialled == [0, *(0.5 + step for step in range(25))]
