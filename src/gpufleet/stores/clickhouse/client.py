"""Handles to the database: an embedded file or a server, from one DSN."""

import contextlib
import importlib
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import msgspec

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse.embedded import EmbeddedHandle
from gpufleet.stores.clickhouse.schema import Engine

Handle = Any
"""A client of clickhouse-connect, which has no types, or an `EmbeddedHandle`."""

EMBEDDED = "chdb"
SERVER = "clickhouse"

SESSION_SETTINGS = {
    "async_insert": 0,  # an insert is on disk when it returns
    "max_partitions_per_insert_block": 0,  # one sender with an old backlog must not stop the others
    "max_execution_time": 60,
    "max_memory_usage": 2_000_000_000,
}

ENGINE_OPTIONS = {
    "max_server_memory_usage": 4_000_000_000,  # the engine's own default is nine tenths of the machine
    "mark_cache_size": 268_435_456,
}
"""Bounds of an embedded engine, bytes: a statement that would pass them fails, the process stays."""

_CPUINFO = Path("/proc/cpuinfo")


class Dsn(msgspec.Struct, frozen=True):
    """Where the store is.

    Attributes:
        url: as the client library takes it.
        path: folder of the embedded database, or None for a server.
        engine: what stands in the engine clause.
        shown: the DSN without its password, for messages.
    """

    url: str
    path: Path | None
    engine: Engine
    shown: str


def parse_dsn(dsn: str) -> Dsn:
    """Read a DSN: `chdb:///absolute/folder`, or `clickhouse://user:password@host:port/database`.

    A server's may end in `?replicated=1`: tables are then made with Replicated engines.

    Raises:
        StoreError: if it is neither; the message does not show a password.
    """
    parts = urlsplit(dsn)
    if parts.scheme == EMBEDDED:
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/" or parts.query or parts.fragment:
            raise StoreError(f"{dsn}: write chdb:///absolute/path/of/a/folder")
        return Dsn(url=dsn, path=Path(parts.path), engine=Engine.PLAIN, shown=dsn)
    if parts.scheme != SERVER:
        raise StoreError(f"store DSN begins with {parts.scheme!r}: it is chdb:///folder or clickhouse://host:port/db")
    try:
        host, port = parts.hostname, parts.port
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise StoreError(f"clickhouse DSN: {error}") from error
    shown = f"clickhouse://{host}{f':{port}' if port else ''}{parts.path}"
    unknown = sorted(set(options) - {"replicated"})
    replicated = options.get("replicated", ["0"])[-1]
    if not host or parts.path in ("", "/") or unknown or replicated not in ("0", "1"):
        raise StoreError(f"{shown}: write clickhouse://user:password@host:port/database, with ?replicated=1 if it is")
    engine = Engine.REPLICATED if replicated == "1" else Engine.PLAIN
    return Dsn(url=urlunsplit(parts._replace(query="")), path=None, engine=engine, shown=shown)


class Handles:
    """The handles of one store: one for the writer, one for each thread that reads.

    A handle of the library takes one statement at a time, so threads do not share any. Handles live until
    `close`: read from a pool of threads, not from a new thread a question.
    """

    def __init__(self, dsn: Dsn, connect: Callable[..., Handle]) -> None:
        self.dsn = dsn
        self._connect = connect
        self._guarded: Handle | None = None
        self._process = os.getpid()
        self._local = threading.local()
        self._all: list[Handle] = []
        self._lock = threading.Lock()
        self._closed = False
        self.writer = self._open()

    @property
    def reader(self) -> Handle:
        """The calling thread's handle."""
        self.check()
        handle = getattr(self._local, "handle", None)
        if handle is None:
            handle = self._local.handle = self._open()
        return handle

    def guarded(self, settings: Mapping[str, Any]) -> Handle:
        """The one handle with other settings than the rest; who uses it sees to it that nobody else does."""
        self.check()
        if self._guarded is None:
            self._guarded = self._open(settings)
        return self._guarded

    def check(self) -> None:
        """Raise StoreError if the store is closed, or this is a child forked from the process that opened it."""
        if self._closed:
            raise StoreError(f"{self.dsn.shown}: the store is closed")
        if os.getpid() != self._process:
            raise StoreError(f"{self.dsn.shown}: opened by process {self._process}; it does not work after a fork")

    def close(self) -> None:
        """Close every handle; a second close does nothing."""
        with self._lock:
            if self._closed or os.getpid() != self._process:
                return
            self._closed = True
            handles, self._all = self._all, []
        for handle in handles:
            handle.close()

    def _open(self, settings: Mapping[str, Any] = SESSION_SETTINGS) -> Handle:
        with self._lock, translated(self.dsn.shown):
            handle = self._connect(settings)
            self._all.append(handle)
        return handle


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what the client library raises into StoreError, saying what was being done."""
    errors = importlib.import_module("clickhouse_connect.driver.exceptions")
    try:
        yield
    except (errors.Error, OSError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise StoreError(f"{what}: {words[:1000]}") from error


def connector(dsn: Dsn) -> Callable[..., Handle]:
    """Return what opens one more handle, with the settings that it is given, or those of every other.

    Raises:
        StoreError: if a library is missing or cannot run on this machine.
    """
    if dsn.path is not None:
        _check_processor(dsn)
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

    def connect(settings: Mapping[str, Any] = SESSION_SETTINGS) -> Handle:
        if dsn.path is None:
            return library.get_client(dsn=dsn.url, settings=dict(settings))
        return EmbeddedHandle(
            lambda: library.get_client(dsn=dsn.url, settings=dict(settings), chdb_options=ENGINE_OPTIONS)
        )

    return connect


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
