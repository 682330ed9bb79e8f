"""The connections of a server: a bounded number, of which those that ask nothing make room for those that come."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

log = logging.getLogger(__name__)

HANDSHAKE_SHARE = 4
"""A TLS handshake takes 50 KB until it ends: this part of all connections may be in one."""

ACCEPT_PAUSE_SECONDS = 0.1
"""Pause after the system refused to accept: it has no descriptor or no memory to give."""


class Place:
    """One connection's place among them."""

    def __init__(self, connections: "Connections", address: str) -> None:
        self._connections = connections
        self.address = address
        self.leave: Callable[[], object] = lambda: None
        """Ends the connection, or the handshake before it, at once."""

    def greeted(self, leave: Callable[[], object]) -> None:
        """There is a connection, that was not asked anything yet."""
        self.leave = leave
        self._connections.greeted(self)

    def busy(self) -> None:
        """A request is being answered: it is not disturbed."""
        self._connections.busy(self)

    def idle(self) -> None:
        """Everything that was asked is answered."""
        self._connections.idle(self)

    def gone(self) -> None:
        """The connection is no more."""
        self._connections.gone(self)


class Waiting:
    """Connections that may be sent away, by age and by address."""

    def __init__(self) -> None:
        # The order of insertion is that of age.
        self._all: dict[Place, None] = {}
        self._by_address: dict[str, dict[Place, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, place: Place) -> None:
        """Add one, as the youngest."""
        self._all[place] = None
        self._by_address.setdefault(place.address, {})[place] = None

    def discard(self, place: Place) -> None:
        """Take one out, if it is there."""
        if place in self._all:
            del self._all[place]
            of_address = self._by_address[place.address]
            del of_address[place]
            if not of_address:
                del self._by_address[place.address]

    def oldest_for(self, address: str) -> Place:
        """Return who makes room for one of an address: its own oldest if it has more than its share."""
        own = self._by_address.get(address, {})
        has_more = len(own) * len(self._by_address) > len(self._all)
        return next(iter(own if has_more else self._all))


class Connections:
    """Accepts them.

    Beyond `limit` one is closed that has not sent a whole head since it came, or else one that is idle: the oldest of
    the address that the new one comes from if that has more than its share, or else the oldest of all. While all are
    being answered, who comes waits in the system's queue. So thousands that connect and say nothing keep nobody out
    who asks promptly, and use up neither memory nor descriptors.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: set[Place] = set()
        self._greeting = Waiting()
        self._new = Waiting()  # those in a handshake too
        self._idle = Waiting()
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(
        self,
        listener: socket.socket,
        protocol: Callable[[Place], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
        close_seconds: float,
    ) -> None:
        """Accept until cancelled; `protocol` makes what serves one connection."""
        loop = asyncio.get_running_loop()
        seconds = {"ssl_handshake_timeout": handshake_seconds, "ssl_shutdown_timeout": close_seconds} if tls else {}

        async def greet(sock: socket.socket, place: Place) -> None:
            try:
                await loop.connect_accepted_socket(lambda: protocol(place), sock, ssl=tls, **seconds)
            except (OSError, asyncio.CancelledError):  # who came speaks no TLS, or left, or was sent away
                self.gone(place)

        try:
            while True:
                try:
                    sock, address = await loop.sock_accept(listener)
                except OSError as error:
                    log.debug("a connection was not accepted: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                place = Place(self, address[0])
                await self._make_room(place.address)
                self._all.add(place)
                self._greeting.add(place)
                self._new.add(place)
                task = asyncio.create_task(greet(sock, place))
                place.leave = task.cancel
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _make_room(self, address: str) -> None:
        """Make room for one more, or wait until there is."""
        if len(self._greeting) >= max(1, self._limit // HANDSHAKE_SHARE):
            self._send_away(self._greeting, address)
        while len(self._all) >= self._limit:
            waiting = self._new or self._idle
            if waiting:
                self._send_away(waiting, address)
                continue
            self._left.clear()
            await self._left.wait()

    def _send_away(self, waiting: Waiting, address: str) -> None:
        place = waiting.oldest_for(address)
        self.gone(place)
        place.leave()

    def greeted(self, place: Place) -> None:
        """Note that a handshake is over."""
        self._greeting.discard(place)

    def busy(self, place: Place) -> None:
        """Note that a connection is not to be disturbed."""
        self._new.discard(place)
        self._idle.discard(place)

    def idle(self, place: Place) -> None:
        """Note that a connection may go."""
        if place in self._all:  # and was not sent away meanwhile
            self._idle.add(place)

    def gone(self, place: Place) -> None:
        """Note that a connection is no more."""
        for waiting in (self._greeting, self._new, self._idle):
            waiting.discard(place)
        self._all.discard(place)
        self._left.set()
