"""Readers whose passes are scripted by a test."""

from collections.abc import Awaitable, Callable
from typing import Self

from gpufleet.model.catalogue import Lane
from gpufleet.model.reading import Round

Script = Callable[[Lane], Awaitable[Round]]


class ScriptedReader:
    """Reader that returns or raises the result of `script` for each pass."""

    def __init__(self, name: str, script: Script, *, lanes: tuple[Lane, ...] = (Lane.FAST,)) -> None:
        self._name = name
        self._lanes = lanes
        self._script = script
        self.passes: list[Lane] = []
        self.under_way = 0
        self.closed = 0

    @classmethod
    def always(cls, name: str, done: Round | Exception, *, lanes: tuple[Lane, ...] = (Lane.FAST,)) -> Self:
        """Return a reader that always returns the same round, or always raises the same exception."""

        async def script(_: Lane) -> Round:
            if isinstance(done, Exception):
                raise done
            return done

        return cls(name, script, lanes=lanes)

    @property
    def name(self) -> str:
        return self._name

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self._lanes

    async def read(self, lane: Lane) -> Round:
        assert not self.under_way, "concurrent passes of one reader"
        self.under_way += 1
        try:
            self.passes.append(lane)
            return await self._script(lane)
        finally:
            self.under_way -= 1

    async def close(self) -> None:
        self.closed += 1
