"""Reading the body of a request that brings data, within bounds."""

import asyncio

from gpufleet.hub.pressure import Pressure
from gpufleet.model.answer import ErrorAnswer
from gpufleet.web.hub.respond import Receive, Scope, header


class RefusedError(Exception):
    """The request is answered with an error; raised and caught by an endpoint alone."""

    def __init__(self, status: int, error: str, detail: str, field: str = "") -> None:
        self.status = status
        self.answer = ErrorAnswer(error=error, detail=detail, field=field)
        super().__init__(detail)


class GoneError(Exception):
    """The client went away before its body was complete; nobody is there to answer."""


class Body:
    """Reads one body, holding its bytes against the bound of all bodies."""

    def __init__(self, pressure: Pressure, limit: int) -> None:
        self._pressure = pressure
        self._limit = limit
        self._held = 0

    def expect(self, content_length: str) -> None:
        """Refuse early what says that it will be too large."""
        if content_length.isascii() and content_length.isdigit() and int(content_length[:19]) > self._limit:
            raise self._too_large()

    async def read_whole(self, scope: Scope, receive: Receive, seconds: float) -> bytes:
        """Return the whole body of a request, if it comes in time.

        Raises:
            RefusedError: if it is too large, too slow, or too much is on its way.
            GoneError: if the client went away.
        """
        self.expect(next(iter(header(scope, b"content-length")), ""))
        try:
            async with asyncio.timeout(seconds):
                return await self.read(receive)
        except TimeoutError as error:
            raise RefusedError(408, "slow_body", f"the body did not arrive within {seconds:g} s") from error

    async def read(self, receive: Receive) -> bytes:
        """Return the whole body."""
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            chunk: bytes = message.get("body", b"")
            if self._held + len(chunk) > self._limit:
                raise self._too_large()
            if not self._pressure.take(len(chunk)):
                raise RefusedError(503, "overloaded", "too much is on its way to the disk: send it again later")
            self._held += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def close(self) -> None:
        """Let go of what was held."""
        self._pressure.give_back(self._held)
        self._held = 0

    def _too_large(self) -> RefusedError:
        return RefusedError(413, "too_large", f"a body may have {self._limit} bytes: send smaller batches")
