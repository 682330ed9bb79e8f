"""Database handles for an embedded folder or a server, with settings, timeouts and error messages."""

import contextlib
import importlib
import logging
import os
import platform
import re
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse.connection.dsn import DEFAULT_PORTS, Dsn
from gpufleet.stores.clickhouse.connection.embedded import EmbeddedHandle

MAX_MESSAGE_CHARS = 1000
"""Maximum length of an error message."""

_WRAPPED = re.compile(
    r"^Received ClickHouse exception, code: \d+, server response: |\(version [\d.]+(?: \([^)]*\))?\)|\(for url [^)]*\)$"
)
_POOL = re.compile(r"^[\w.]+(?:Pool)?\(host=[^)]*\): (?:Max retries exceeded with url: .*\(Caused by )?")
_SETTING = re.compile(r"^Setting \w+ is readonly")

_HINTS: Mapping[str, str] = {
    "(AUTHENTICATION_FAILED)": "check user and password of the DSN; write characters other than letters and digits as "
    "%XX",
    "(UNKNOWN_DATABASE)": "create it first: CREATE DATABASE",
    "(READONLY)": "the hub's user needs write access: its grants are in docs/operations/databases.md",
    "(ACCESS_DENIED)": "the grants of the hub's user are in docs/operations/databases.md",
}
"""ClickHouse error name to advice."""


def error_text(error: BaseException) -> str:
    """Return the message of a client library error in one line, equal for equal errors.

    For a server that does not respond, the library's message has the URL of the request, with a unique id and every
    parameter. These are removed.
    """
    cause = error.__cause__
    reason = getattr(cause, "reason", None) or cause
    if type(error).__name__ == "OperationalError" and reason is not None:
        return f"the server does not respond: {_POOL.sub('', _line(reason))}"[:MAX_MESSAGE_CHARS]
    text = " ".join(_WRAPPED.sub("", _line(error)).split()) or type(error).__name__
    hint = next((hint for name, hint in _HINTS.items() if name in text), "")
    if _SETTING.match(text):
        hint = _HINTS["(READONLY)"]
    return f"{text[:MAX_MESSAGE_CHARS]}; {hint}" if hint else text[:MAX_MESSAGE_CHARS]


def limit_library_logging() -> None:
    """Suppress warnings of the client libraries about errors that are raised anyway."""
    for name in ("urllib3.connectionpool", "clickhouse_connect"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _line(error: object) -> str:
    return " ".join(str(error).split())


class ServerConnections:
    """Connections of all clickhouse-connect clients to one server. Any thread can shut them down.

    Attributes:
        pool: the urllib3 pool manager for clients.
    """

    def __init__(self, scheme: str, host: str, port: int, ca: str | None) -> None:
        """Create the pool. Proxies are read from the environment, as clickhouse-connect does."""
        util = importlib.import_module("clickhouse_connect.driver.httputil")
        self.pool: Any = util.get_pool_manager(
            ca_cert=ca, **{f"{scheme}_proxy": util.check_env_proxy(scheme, host, port)}
        )
        self.pool.pool_classes_by_scheme = _classes(self._add)
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_shut_down = False

    def shut_down(self) -> None:
        """Shut down all present and future connections, so that waiting requests fail. Callable from any thread."""
        with self._lock:
            self._is_shut_down = True
            for connection in list(self._sockets):
                _shut_down(connection)

    def close(self) -> None:
        """Shut down and release all connections."""
        self.shut_down()
        self.pool.clear()

    def _add(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.add(connection)
            if self._is_shut_down:
                _shut_down(connection)


def _classes(add: Any) -> dict[str, Any]:
    """Return urllib3's pool classes by scheme, with connections that call `add` with their socket."""
    connections, pools = (importlib.import_module(f"urllib3.{name}") for name in ("connection", "connectionpool"))

    def of(kind: str) -> Any:
        library: Any = getattr(connections, f"{kind}Connection")

        class TrackedConnection(library):  # type: ignore[misc]
            def connect(self) -> None:
                super().connect()
                add(self.sock)

        pool: Any = getattr(pools, f"{kind}ConnectionPool")
        return type(pool.__name__, (pool,), {"ConnectionCls": TrackedConnection})

    return {"http": of("HTTP"), "https": of("HTTPS")}


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # the plain socket: TLS would wait for the peer


Handle = Any
"""A clickhouse-connect client, which has no types, or an `EmbeddedHandle`."""

ZONE = "UTC"
"""Time zone of instants without a zone, independent of the host."""

SESSION_SETTINGS = {
    "async_insert": 0,  # an insert is on disk when it returns
    "optimize_on_insert": 0,  # duplicate keys collapse when parts are merged, not at insert
    "max_partitions_per_insert_block": 0,  # an old backlog of one sender must not block the others
    "max_execution_time": 60,
    "max_memory_usage": 2_000_000_000,
    "session_timezone": ZONE,
}

ENGINE_OPTIONS = {
    "max_server_memory_usage": 4_000_000_000,  # the engine's default is 90 % of the machine
    "mark_cache_size": 268_435_456,
}
"""Memory limits of an embedded engine, in bytes: a statement that exceeds them fails, and the process continues."""

CONNECT_SECONDS = 10
"""Timeout of a connection attempt."""

RESPONSE_SECONDS = 90
"""Timeout of a response; `max_execution_time` ends every statement earlier."""

LONG_STATEMENT_SECONDS = 3600
"""Timeout of a response for migrations and rollups, which a stop does not wait for."""

FINAL_STATEMENT_SECONDS = 3
"""Timeout of a response for the final statement, which a stop waits for."""

_CPUINFO = Path("/proc/cpuinfo")


class Handles:
    """Handles of a store: one for the writer, and one per reading thread.

    A handle runs one statement at a time, so threads do not share handles. Handles live until `close`: read from a
    thread pool, not from a new thread per query.
    """

    def __init__(self, dsn: Dsn, connect: "Connector") -> None:
        self.dsn = dsn
        self._connect = connect
        self._restricted: Handle | None = None
        self._long_running: Handle | None = None
        self._process = os.getpid()
        self._local = threading.local()
        self._all: list[Handle] = []
        self._lock = threading.Lock()
        self._closed = False
        self._is_aborted = False
        self.writer = self._open()

    @property
    def reader(self) -> Handle:
        """The calling thread's handle."""
        self.check()
        handle = getattr(self._local, "handle", None)
        if handle is None:
            handle = self._local.handle = self._open()
        return handle

    @property
    def long_running(self) -> Handle:
        """The single handle with a long timeout. The caller ensures exclusive use."""
        self.check()
        if self._long_running is None:
            self._long_running = self._open(seconds=LONG_STATEMENT_SECONDS)
        return self._long_running

    def restricted(self, settings: Mapping[str, Any]) -> Handle:
        """Return the single handle with restricted settings. The caller ensures exclusive use."""
        self.check()
        if self._restricted is None:
            self._restricted = self._open(settings)
        return self._restricted

    @contextlib.contextmanager
    def final(self) -> Iterator[Handle]:
        """Open a handle for a final statement. It works after `abort_requests`, with a timeout of 3 s."""
        connect = open_connector(self.dsn)
        with translate_errors(self.dsn.shown):
            handle = connect(SESSION_SETTINGS, FINAL_STATEMENT_SECONDS)
        try:
            yield handle
        finally:
            handle.close()
            connect.close()

    def check(self) -> None:
        """Raise StoreError if the store is closed, or the process was forked after it was opened."""
        if self._closed or self._is_aborted:
            raise StoreError(f"{self.dsn.shown}: the store is closed")
        if os.getpid() != self._process:
            raise StoreError(f"{self.dsn.shown}: opened by process {self._process}, does not work after a fork")

    def abort_requests(self) -> None:
        """Make waiting and later requests to a server fail. Callable from any thread."""
        self._is_aborted = True
        self._connect.abort_requests()

    def close(self) -> None:
        """Close every handle; a second close has no effect."""
        with self._lock:
            if self._closed or os.getpid() != self._process:
                return
            self._closed = True
            handles, self._all = self._all, []
        for handle in handles:
            handle.close()
        self._connect.close()

    def _open(self, settings: Mapping[str, Any] = SESSION_SETTINGS, seconds: int = RESPONSE_SECONDS) -> Handle:
        with translate_errors(self.dsn.shown):
            handle = self._connect(settings, seconds)
        with self._lock:
            self._all.append(handle)
        return handle


@contextlib.contextmanager
def translate_errors(operation: str) -> Iterator[None]:
    """Translate errors of the client library to StoreError, with the operation in the message."""
    errors = importlib.import_module("clickhouse_connect.driver.exceptions")
    try:
        yield
    except (errors.Error, OSError) as error:
        raise StoreError(f"{operation}: {error_text(error)}") from error


class Connector:
    """Factory of handles for one DSN."""

    def __init__(self, dsn: Dsn, library: Any) -> None:
        """Take a checked DSN and the module clickhouse_connect."""
        self._dsn, self._library = dsn, library
        self._scheme = "https" if dsn.secure else "http"
        self._connections = self._server_connections() if dsn.path is None else None

    def __call__(self, settings: Mapping[str, Any] = SESSION_SETTINGS, seconds: int = RESPONSE_SECONDS) -> Handle:
        """Open a handle; `seconds` is the response timeout of a server."""
        url, get_client = self._dsn.url, self._library.get_client
        if self._connections is None:
            return EmbeddedHandle(lambda: get_client(dsn=url, settings=dict(settings), chdb_options=ENGINE_OPTIONS))
        return get_client(
            dsn=url,
            settings=dict(settings),
            interface=self._scheme,
            pool_mgr=self._connections.pool,
            connect_timeout=min(CONNECT_SECONDS, seconds),
            send_receive_timeout=seconds,
        )

    def abort_requests(self) -> None:
        """Make waiting and later requests to a server fail. No effect on the embedded engine."""
        if self._connections is not None:
            self._connections.shut_down()

    def close(self) -> None:
        """Release the connections of every handle."""
        if self._connections is not None:
            self._connections.close()

    def _server_connections(self) -> ServerConnections:
        url = urlsplit(self._dsn.url)
        ca = str(self._dsn.ca) if self._dsn.ca else None
        return ServerConnections(self._scheme, url.hostname or "", url.port or DEFAULT_PORTS[self._scheme], ca)


def open_connector(dsn: Dsn) -> Connector:
    """Check the environment and return a factory of handles.

    Raises:
        StoreError: if a library is missing or cannot run on this machine.
    """
    if dsn.path is not None:
        _check_processor(dsn)
        _check_working_folder(dsn)
    needed = ["clickhouse_connect", "pyarrow", *(["chdb"] if dsn.path is not None else [])]
    for module in needed:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise StoreError(
                f"{dsn.shown} needs the Python package {module}, which cannot be imported ({error}): install "
                "gpufleet[hub]. The embedded store has no build for Alpine (musl): use glibc, or a clickhouse:// DSN"
            ) from error
        except RuntimeError as error:  # the engine creates a folder in /tmp on import
            text = " ".join(str(error).split())
            raise StoreError(f"{dsn.shown}: {module} does not start; is /tmp writable? {text[:300]}") from error
    library = importlib.import_module("clickhouse_connect")

    if dsn.ca is not None and not dsn.ca.is_file():
        raise StoreError(f"{dsn.shown}: the file {dsn.ca} of ca= does not exist")
    if dsn.path is None:
        limit_library_logging()
    return Connector(dsn, library)


def _check_working_folder(dsn: Dsn) -> None:
    """Reject a working folder with a `config.xml`, which the engine would load as its configuration."""
    found = Path.cwd() / "config.xml"
    if found.exists():
        raise StoreError(f"{dsn.shown}: the engine would load {found} as its configuration: start it in another folder")


def _check_processor(dsn: Dsn) -> None:
    """Reject a processor without AVX2: importing the engine would kill the process with an illegal instruction."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    try:
        flags = _CPUINFO.read_text(errors="replace")
    except OSError:
        return  # not available on this platform
    if " avx2" not in flags:
        raise StoreError(f"{dsn.shown}: the embedded store needs a processor with AVX2; use a clickhouse:// DSN")
