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
from gpufleet.stores.clickhouse.words import quieten, words_of

Handle = Any
"""A client of clickhouse-connect, which has no types, or an `EmbeddedHandle`."""

EMBEDDED = "chdb"
SERVER = "clickhouse"
TLS_PORTS = (443, 8443)

_FORM = "clickhouse://user:password@host:port/database"
_UNREADABLE = f"store DSN: it is {_FORM}, with %XX for what stands in user and password but letters and digits"

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
"""The same for what may take long: bringing tables forward, and making hours."""

_CPUINFO = Path("/proc/cpuinfo")


class Dsn(msgspec.Struct, frozen=True):
    """Where the store is.

    Attributes:
        url: as the client library takes it.
        path: folder of the embedded database, or None for a server.
        engine: what stands in the engine clause.
        shown: the DSN without user, password and options, for messages.
        secure: whether it is spoken to over TLS.
        ca: file of the certificates that a server's is proven by, or None for those of the system.
    """

    url: str
    path: Path | None
    engine: Engine
    shown: str
    secure: bool = False
    ca: Path | None = None


def parse_dsn(dsn: str) -> Dsn:
    """Read a DSN: `chdb:///absolute/folder`, or `clickhouse://user:password@host:port/database`.

    A server's may end in options: with `replicated=1` tables are made with Replicated engines, with `secure=1` (and
    always on the ports 443 and 8443) it is spoken to over TLS, and `ca=/file.pem` proves its certificate.

    Raises:
        StoreError: if it is neither; the message does not show a password.
    """
    try:
        parts = urlsplit(dsn)
    except ValueError:  # its words may have the password in them
        raise StoreError(_UNREADABLE) from None
    if parts.scheme == EMBEDDED:
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/" or parts.query or parts.fragment:
            raise StoreError(f"{dsn}: write chdb:///absolute/path/of/a/folder")
        return Dsn(url=dsn, path=Path(parts.path), engine=Engine.PLAIN, shown=dsn)
    if parts.scheme != SERVER:
        raise StoreError(f"store DSN begins with {parts.scheme!r}: it is chdb:///folder or clickhouse://host:port/db")
    try:
        host, port = parts.hostname, parts.port
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise StoreError(_UNREADABLE) from None
    if "@" in parts.path or parts.fragment:
        raise StoreError(_UNREADABLE)  # without showing it: a part of the password is where the path should be
    shown = f"clickhouse://{host}{f':{port}' if port else ''}{parts.path}"
    told = {name: values[-1] for name, values in options.items()}
    flags = [told.get(name, "0") for name in ("replicated", "secure")]
    if not host or parts.path in ("", "/") or told.keys() - {"replicated", "secure", "ca"} or set(flags) - {"0", "1"}:
        raise StoreError(f"{shown}: write {_FORM}, and after it what is so of ?replicated=1&secure=1&ca=/file.pem")
    secure = flags[1] == "1" or port in TLS_PORTS
    if "ca" in told and not secure:
        raise StoreError(f"{shown}: ca= is for TLS, which secure=1 asks for")
    return Dsn(
        url=urlunsplit(parts._replace(query="")),
        path=None,
        engine=Engine.REPLICATED if flags[0] == "1" else Engine.PLAIN,
        shown=shown,
        secure=secure,
        ca=Path(told["ca"]) if "ca" in told else None,
    )


class Handles:
    """The handles of one store: one for the writer, one for each thread that reads.

    A handle of the library takes one statement at a time, so threads do not share any. Handles live until
    `close`: read from a pool of threads, not from a new thread a question.
    """

    def __init__(self, dsn: Dsn, connect: Callable[..., Handle]) -> None:
        self.dsn = dsn
        self._connect = connect
        self._guarded: Handle | None = None
        self._patient: Handle | None = None
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


def connector(dsn: Dsn) -> Callable[..., Handle]:
    """Return what opens one more handle, with the settings that it is given, or those of every other.

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

    def connect(settings: Mapping[str, Any] = SESSION_SETTINGS, seconds: int = ANSWER_SECONDS) -> Handle:
        if dsn.path is None:
            return library.get_client(
                dsn=dsn.url,
                settings=dict(settings),
                interface="https" if dsn.secure else "http",
                ca_cert=str(dsn.ca) if dsn.ca else None,
                connect_timeout=CONNECT_SECONDS,
                send_receive_timeout=seconds,
            )
        return EmbeddedHandle(
            lambda: library.get_client(dsn=dsn.url, settings=dict(settings), chdb_options=ENGINE_OPTIONS)
        )

    return connect


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
