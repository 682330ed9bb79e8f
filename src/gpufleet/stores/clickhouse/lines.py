"""Connections to a server that another thread can cut: whoever waits for an answer on one then has an error."""

import contextlib
import importlib
import socket
import threading
import weakref
from typing import Any


class Lines:
    """All connections to one server, from which clients of clickhouse-connect take theirs.

    Attributes:
        pool: what a client is given.
    """

    def __init__(self, scheme: str, host: str, port: int, ca: str | None) -> None:
        """Take `http` or `https` and where; proxies are those of the environment, as the library has them."""
        util = importlib.import_module("clickhouse_connect.driver.httputil")
        self.pool: Any = util.get_pool_manager(
            ca_cert=ca, **{f"{scheme}_proxy": util.check_env_proxy(scheme, host, port)}
        )
        self.pool.pool_classes_by_scheme = _classes(self._add)
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._are_cut = False

    def cut(self) -> None:
        """Cut those that there are, and every new one. From any thread."""
        with self._lock:
            self._are_cut = True
            for line in list(self._sockets):
                _cut(line)

    def close(self) -> None:
        """Cut them, and let go of them."""
        self.cut()
        self.pool.clear()

    def _add(self, line: socket.socket) -> None:
        with self._lock:
            self._sockets.add(line)
            if self._are_cut:
                _cut(line)


def _classes(add: Any) -> dict[str, Any]:
    """Return the library's pools by scheme, with connections that `add` is told of."""
    connections, pools = (importlib.import_module(f"urllib3.{name}") for name in ("connection", "connectionpool"))

    def of(kind: str) -> Any:
        library: Any = getattr(connections, f"{kind}Connection")

        class Told(library):  # type: ignore[misc]
            def connect(self) -> None:
                super().connect()
                add(self.sock)

        pool: Any = getattr(pools, f"{kind}ConnectionPool")
        return type(pool.__name__, (pool,), {"ConnectionCls": Told})

    return {"http": of("HTTP"), "https": of("HTTPS")}


def _cut(line: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        socket.socket.shutdown(line, socket.SHUT_RDWR)  # of the socket itself: TLS would wait for the other side
