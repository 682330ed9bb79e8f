"""Handles to the database: an embedded folder or a server.

What is said where the database says no: its own words, without what the client library wraps them in.

Connections to a server that another thread can cut: whoever waits for an answer on one then has an error.
"""

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

MOST = 1000
"""Characters of the words."""

_WRAPPED = re.compile(
    r"^Received ClickHouse exception, code: \d+, server response: |\(version [\d.]+(?: \([^)]*\))?\)|\(for url [^)]*\)$"
)
_POOL = re.compile(r"^[\w.]+(?:Pool)?\(host=[^)]*\): (?:Max retries exceeded with url: .*\(Caused by )?")
_SETTING = re.compile(r"^Setting \w+ is readonly")

_HINTS: Mapping[str, str] = {
    "(AUTHENTICATION_FAILED)": "look at user and password of the DSN; what stands in them but letters and digits is "
    "written as %XX",
    "(UNKNOWN_DATABASE)": "make it first: CREATE DATABASE",
    "(READONLY)": "the hub's user has to write: docs/operations.md has its grants",
    "(ACCESS_DENIED)": "docs/operations.md has the grants that the hub's user needs",
}
"""What to do, by the name of the error."""


def words_of(error: BaseException) -> str:
    """Return the words of an error of the client library in one line, the same each time that the same happens.

    A server that does not answer is told of by the library with the address of the request: a number of its own each
    time, and every parameter.
    """
    cause = error.__cause__
    reason = getattr(cause, "reason", None) or cause
    if type(error).__name__ == "OperationalError" and reason is not None:
        return f"the server does not answer: {_POOL.sub('', _line(reason))}"[:MOST]
    words = " ".join(_WRAPPED.sub("", _line(error)).split()) or type(error).__name__
    hint = next((hint for name, hint in _HINTS.items() if name in words), "")
    if _SETTING.match(words):
        hint = _HINTS["(READONLY)"]
    return f"{words[:MOST]}; {hint}" if hint else words[:MOST]


def quieten() -> None:
    """Have the libraries under a server's handles keep to themselves what is raised, and told once, anyway."""
    for name in ("urllib3.connectionpool", "clickhouse_connect"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _line(error: object) -> str:
    return " ".join(str(error).split())


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


Handle = Any
"""A client of clickhouse-connect, which has no types, or an `EmbeddedHandle`."""

ZONE = "UTC"
"""What an instant without a zone is in, whatever zone the machine of the engine is in."""

SESSION_SETTINGS = {
    "async_insert": 0,  # an insert is on disk when it returns
    "optimize_on_insert": 0,  # rows of one key collapse when parts are merged, and not once more before
    "max_partitions_per_insert_block": 0,  # one sender with an old backlog must not stop the others
    "max_execution_time": 60,
    "max_memory_usage": 2_000_000_000,
    "session_timezone": ZONE,
}

ENGINE_OPTIONS = {
    "max_server_memory_usage": 4_000_000_000,  # the engine's own default is nine tenths of the machine
    "mark_cache_size": 268_435_456,
}
"""Bounds of an embedded engine, bytes: a statement that would pass them fails, the process stays."""

CONNECT_SECONDS = 10
"""A server that takes no connection for so long is away."""

ANSWER_SECONDS = 90
"""A server that is silent for so long is away: `max_execution_time` ends every statement earlier."""

PATIENT_SECONDS = 3600
"""The same for what may take long: bringing tables forward, and making hours, which a stop does not wait for."""

LAST_SECONDS = 3
"""The same for a last word to a server, which a stop waits for."""

_CPUINFO = Path("/proc/cpuinfo")


class Handles:
    """The handles of one store: one for the writer, one for each thread that reads.

    A handle of the library takes one statement at a time, so threads do not share any. Handles live until
    `close`: read from a pool of threads, not from a new thread a question.
    """

    def __init__(self, dsn: Dsn, connect: "Connector") -> None:
        self.dsn = dsn
        self._connect = connect
        self._guarded: Handle | None = None
        self._patient: Handle | None = None
        self._process = os.getpid()
        self._local = threading.local()
        self._all: list[Handle] = []
        self._lock = threading.Lock()
        self._closed = False
        self._hung_up = False
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
    def patient(self) -> Handle:
        """The one handle that waits for long; who uses it sees to it that nobody else does."""
        self.check()
        if self._patient is None:
            self._patient = self._open(seconds=PATIENT_SECONDS)
        return self._patient

    def guarded(self, settings: Mapping[str, Any]) -> Handle:
        """The one handle with other settings than the rest; who uses it sees to it that nobody else does."""
        self.check()
        if self._guarded is None:
            self._guarded = self._open(settings)
        return self._guarded

    @contextlib.contextmanager
    def last(self) -> Iterator[Handle]:
        """Give a handle for a last word: it works after `hang_up` too, and waits for `LAST_SECONDS` at most."""
        connect = connector(self.dsn)
        with translated(self.dsn.shown):
            handle = connect(SESSION_SETTINGS, LAST_SECONDS)
        try:
            yield handle
        finally:
            handle.close()
            connect.close()

    def check(self) -> None:
        """Raise StoreError if the store is closed, or this is a child forked from the process that opened it."""
        if self._closed or self._hung_up:
            raise StoreError(f"{self.dsn.shown}: the store is closed")
        if os.getpid() != self._process:
            raise StoreError(f"{self.dsn.shown}: opened by process {self._process}; it does not work after a fork")

    def hang_up(self) -> None:
        """Have what waits for a server's answer fail now, and whatever is asked later. From any thread."""
        self._hung_up = True
        self._connect.hang_up()

    def close(self) -> None:
        """Close every handle; a second close does nothing."""
        with self._lock:
            if self._closed or os.getpid() != self._process:
                return
            self._closed = True
            handles, self._all = self._all, []
        for handle in handles:
            handle.close()
        self._connect.close()

    def _open(self, settings: Mapping[str, Any] = SESSION_SETTINGS, seconds: int = ANSWER_SECONDS) -> Handle:
        with translated(self.dsn.shown):
            handle = self._connect(settings, seconds)
        with self._lock:
            self._all.append(handle)
        return handle


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what the client library raises into StoreError, saying what was being done."""
    errors = importlib.import_module("clickhouse_connect.driver.exceptions")
    try:
        yield
    except (errors.Error, OSError) as error:
        raise StoreError(f"{what}: {words_of(error)}") from error


class Connector:
    """Opens handles, with the settings that it is given or those of every other."""

    def __init__(self, dsn: Dsn, library: Any) -> None:
        """Take a DSN that was looked at, and clickhouse-connect."""
        self._dsn, self._library = dsn, library
        self._scheme = "https" if dsn.secure else "http"
        self._lines = self._server_lines() if dsn.path is None else None

    def __call__(self, settings: Mapping[str, Any] = SESSION_SETTINGS, seconds: int = ANSWER_SECONDS) -> Handle:
        """Open one more; `seconds` is how long a server may be silent."""
        url, get_client = self._dsn.url, self._library.get_client
        if self._lines is None:
            return EmbeddedHandle(lambda: get_client(dsn=url, settings=dict(settings), chdb_options=ENGINE_OPTIONS))
        return get_client(
            dsn=url,
            settings=dict(settings),
            interface=self._scheme,
            pool_mgr=self._lines.pool,
            connect_timeout=min(CONNECT_SECONDS, seconds),
            send_receive_timeout=seconds,
        )

    def hang_up(self) -> None:
        """Have what waits for a server fail now, and whatever is asked later; the embedded engine ends by itself."""
        if self._lines is not None:
            self._lines.cut()

    def close(self) -> None:
        """Let go of the connections of every handle."""
        if self._lines is not None:
            self._lines.close()

    def _server_lines(self) -> Lines:
        where = urlsplit(self._dsn.url)
        ca = str(self._dsn.ca) if self._dsn.ca else None
        return Lines(self._scheme, where.hostname or "", where.port or DEFAULT_PORTS[self._scheme], ca)


def connector(dsn: Dsn) -> Connector:
    """Return what opens handles.

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
                f"{dsn.shown} needs the Python package {module}, which does not load here ({error}): install "
                "gpufleet[hub]. The embedded store has no build for Alpine (musl): use glibc, or a clickhouse:// DSN"
            ) from error
        except RuntimeError as error:  # the engine makes a folder of its own in /tmp when its module is loaded
            words = " ".join(str(error).split())
            raise StoreError(f"{dsn.shown}: {module} does not start; may /tmp be written? {words[:300]}") from error
    library = importlib.import_module("clickhouse_connect")

    if dsn.ca is not None and not dsn.ca.is_file():
        raise StoreError(f"{dsn.shown}: there is no file {dsn.ca}, which ca= names")
    if dsn.path is None:
        quieten()
    return Connector(dsn, library)


def _check_working_folder(dsn: Dsn) -> None:
    """Refuse where the engine would read what is not its own: its tools look for a configuration where they are."""
    found = Path.cwd() / "config.xml"
    if found.exists():
        raise StoreError(
            f"{dsn.shown}: the engine would take {found} for its configuration: start it in another folder"
        )


def _check_processor(dsn: Dsn) -> None:
    """Refuse where loading the engine would kill the process with an illegal instruction."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    try:
        flags = _CPUINFO.read_text(errors="replace")
    except OSError:
        return  # no such file on this platform: nothing to tell from
    if " avx2" not in flags:
        raise StoreError(f"{dsn.shown}: the embedded store needs a processor with AVX2; use a clickhouse:// DSN")
