"""A dear answer is made once for all who ask for it meanwhile and shortly after."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from gpufleet.ports import Clock

DEAR_SECONDS = 0.1
"""What takes no longer is made for each who asks: it is then as new as can be."""

TIMES_AS_LONG = 9
"""An answer is given for so many times as long as it took: making it takes a tenth of the time, however many ask."""

LONGEST_SECONDS = 15.0
"""No answer is older, but for what making it takes."""

T = TypeVar("T")


class Shared(Generic[T]):
    """One question. Lives on the event loop."""

    def __init__(self, make: Callable[[], Awaitable[T]], clock: Clock) -> None:
        """Take what makes an answer."""
        self._make = make
        self._clock = clock
        self._took = 0.0
        self._making: asyncio.Task[T] | None = None
        self._kept: tuple[T, float] | None = None  # with the second from which on it is too old

    async def get(self) -> T:
        """Return an answer; raises what making it raises."""
        if self._kept is not None and self._clock.monotonic() < self._kept[1]:
            return self._kept[0]
        if self._took <= DEAR_SECONDS:
            return await self._made()
        if self._making is None:
            self._making = asyncio.create_task(self._made())
            self._making.add_done_callback(self._forget)
        return await asyncio.shield(self._making)  # who goes away does not take it from the others

    async def _made(self) -> T:
        began = self._clock.monotonic()
        made = await self._make()
        ended = self._clock.monotonic()
        self._took = ended - began
        dear = self._took > DEAR_SECONDS
        self._kept = (made, ended + min(TIMES_AS_LONG * self._took, LONGEST_SECONDS)) if dear else None
        return made

    def _forget(self, made: "asyncio.Task[T]") -> None:
        self._making = None
        if not made.cancelled():
            made.exception()  # where all who asked went away nobody is left to be told
