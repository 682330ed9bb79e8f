"""Bounded set of a server's connections. When it is full, connections without a request make room for new ones."""

import asyncio
import functools
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

HANDSHAKE_SHARE = 4
"""At most 1/`HANDSHAKE_SHARE` of all connections may be in a TLS handshake, which takes 50 KB until it ends."""

ACCEPT_PAUSE_SECONDS = 0.1
"""Pause after `accept` failed because the system is out of descriptors or memory."""


class ConnectionSlot:
    """State of a connection in its `Connections`."""

    def __init__(self, connections: "Connections", address: str) -> None:
        self._connections = connections
        self.address = address
        self.abort: Callable[[], object] = lambda: None
        """Abort the connection, or the handshake before it."""

    def handshake_done(self, abort: Callable[[], object]) -> None:
        """Record the end of the handshake."""
        self.abort = abort
        self._connections.handshake_done(self)

    def busy(self) -> None:
        """Record that a request is being answered: the connection is not evicted."""
        self._connections.busy(self)

    def idle(self) -> None:
        """Record that all requests are answered."""
        self._connections.idle(self)

    def closed(self) -> None:
        """Record that the connection is closed."""
        self._connections.closed(self)


class EvictionQueue:
    """Connections that may be evicted, by age and by address."""

    def __init__(self) -> None:
        # Insertion order is age.
        self._all: dict[ConnectionSlot, None] = {}
        self._by_address: dict[str, dict[ConnectionSlot, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, slot: ConnectionSlot) -> None:
        """Add a connection as the youngest."""
        self._all[slot] = None
        self._by_address.setdefault(slot.address, {})[slot] = None

    def discard(self, slot: ConnectionSlot) -> None:
        """Remove a connection if present."""
        if slot in self._all:
            del self._all[slot]
            of_address = self._by_address[slot.address]
            del of_address[slot]
            if not of_address:
                del self._by_address[slot.address]

    def oldest_for(self, address: str) -> ConnectionSlot:
        """Return the connection to evict for a new one from an address.

        It is the oldest of that address if the address has more than its share, otherwise the oldest of all.
        """
        own = self._by_address.get(address, {})
        has_more = len(own) * len(self._by_address) > len(self._all)
        return next(iter(own if has_more else self._all))


class Connections:
    """Accept connections up to a limit.

    At the limit, a new connection evicts one that has not sent a complete request head yet, or else an idle one: the
    oldest of the new connection's address if that address has more than its share, otherwise the oldest of all. While
    all connections are being answered, new ones wait in the listen queue. Thousands of connections without a request
    thus use up neither memory nor descriptors, and do not block prompt clients.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: set[ConnectionSlot] = set()
        self._handshaking = EvictionQueue()
        self._new = EvictionQueue()  # includes connections in a handshake
        self._idle = EvictionQueue()
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(
        self,
        listener: socket.socket,
        protocol: Callable[[ConnectionSlot], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
        close_seconds: float,
    ) -> None:
        """Accept until cancelled; `protocol` returns the protocol of one connection."""
        loop = asyncio.get_running_loop()
        seconds = {"ssl_handshake_timeout": handshake_seconds, "ssl_shutdown_timeout": close_seconds} if tls else {}

        async def handshake(sock: socket.socket, slot: ConnectionSlot) -> None:
            try:
                await loop.connect_accepted_socket(lambda: protocol(slot), sock, ssl=tls, **seconds)
            except (OSError, asyncio.CancelledError):  # no TLS, disconnected, or evicted
                self.closed(slot)

        try:
            while True:
                try:
                    sock, address = await _accept(listener)
                except OSError as error:
                    log.debug("cannot accept a connection: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                    continue
                slot = ConnectionSlot(self, address[0])
                try:
                    await self._make_room(slot.address)
                except asyncio.CancelledError:
                    sock.close()
                    raise
                self._all.add(slot)
                self._handshaking.add(slot)
                self._new.add(slot)
                task = asyncio.create_task(handshake(sock, slot))
                slot.abort = task.cancel
                self._tasks.add(task)
                task.add_done_callback(functools.partial(self._handshake_ended, sock))
        finally:
            for task in self._tasks:
                task.cancel()

    def _handshake_ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # before its first step: nothing else has the socket
            sock.close()

    async def _make_room(self, address: str) -> None:
        """Evict a connection if the limit is reached, or wait until one closes."""
        if len(self._handshaking) >= max(1, self._limit // HANDSHAKE_SHARE):
            self._evict(self._handshaking, address)
        while len(self._all) >= self._limit:
            queue = self._new or self._idle
            if queue:
                self._evict(queue, address)
                continue
            self._left.clear()
            await self._left.wait()

    def _evict(self, queue: EvictionQueue, address: str) -> None:
        slot = queue.oldest_for(address)
        self.closed(slot)
        slot.abort()

    def handshake_done(self, slot: ConnectionSlot) -> None:
        """Record the end of a handshake."""
        self._handshaking.discard(slot)

    def busy(self, slot: ConnectionSlot) -> None:
        """Record that a connection is being answered."""
        self._new.discard(slot)
        self._idle.discard(slot)

    def idle(self, slot: ConnectionSlot) -> None:
        """Record that a connection may be evicted."""
        if slot in self._all:  # not evicted meanwhile
            self._idle.add(slot)

    def closed(self, slot: ConnectionSlot) -> None:
        """Remove a closed connection."""
        for queue in (self._handshaking, self._new, self._idle):
            queue.discard(slot)
        self._all.discard(slot)
        self._left.set()


async def _accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """Wait for a connection and return its socket and address.

    The method of the event loop loses a connection that it accepted just before it is cancelled.
    """
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(0)  # during a flood of connections, one is accepted per turn of the loop
        try:
            sock, address = listener.accept()
        except BlockingIOError:
            readable = asyncio.Event()
            loop.add_reader(listener, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(listener)
        else:
            sock.setblocking(False)
            return sock, address
