"""Handle and folder lock of the embedded engine.

After a statement fails (time, memory or row limit), chDB 4.4 leaves its partial result in the connection and prepends
it to the next result. With equal columns a client would get rows of another client's query. So a handle opens a new
connection after each failure, which takes 15 ms.

The folder lock names the owning process, which the engine's own error does not.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from gpufleet.model.errors import StoreError

Client = Any
"""A clickhouse-connect client, which has no types."""


class EmbeddedHandle:
    """Client of the embedded engine with the methods that the store uses; one statement at a time."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        """Open a connection with `connect`, which is also used for reconnects."""
        self._connect = connect
        self._client = connect()
        self._has_failed = False
        self._is_closed = False
        self._changing = threading.Lock()

    def query(self, *arguments: Any, **options: Any) -> Any:
        """Run a query."""
        return self._call("query", arguments, options)

    def query_arrow(self, *arguments: Any, **options: Any) -> Any:
        """Run a query; return an Arrow table."""
        return self._call("query_arrow", arguments, options)

    def command(self, *arguments: Any, **options: Any) -> Any:
        """Run a statement without a result."""
        return self._call("command", arguments, options)

    def insert_arrow(self, *arguments: Any, **options: Any) -> Any:
        """Insert an Arrow table."""
        return self._call("insert_arrow", arguments, options)

    def close(self) -> None:
        """Close the connection."""
        with self._changing:
            self._is_closed = True
            self._client.close()

    def _call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self._has_failed:
            self._reconnect()
        try:
            return getattr(self._client, method)(*arguments, **options)
        except BaseException:
            self._has_failed = True
            raise

    def _reconnect(self) -> None:
        with self._changing:
            if self._is_closed:
                raise StoreError("the store is closed")
            before, self._client = self._client, self._connect()  # before closing: the last connection stops the engine
            before.close()
            self._has_failed = False


LOCK_FILE = "gpufleet.lock"


class FolderLock:
    """Exclusive lock of a folder. The kernel releases it when the process ends, in any way."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder, and create it if it is missing.

        Raises:
            StoreError: if another process (named by PID) has the lock, or the folder cannot be created or written.
        """
        try:
            import fcntl
        except ImportError as error:
            raise StoreError(f"{folder}: the embedded store needs a POSIX system") from error

        self._file: IO[str] | None = None
        path = folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            file = path.open("a+", encoding="ascii")
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise StoreError(
                f"{folder}: process {owner} has this store open, and only one process can: "
                "stop it, or query it over its API"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Release the lock; a second release has no effect."""
        if self._file is not None:
            self._file.close()
            self._file = None
