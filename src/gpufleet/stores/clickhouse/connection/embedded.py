"""A handle of the embedded engine on which a statement that failed leaves nothing behind.

What a statement had written when it failed (for its time, its memory, its many rows) stays in its connection, and
stands before the next answer there: seen in chDB 4.4. With the same columns it is read as rows of that answer: what one
asked for would be told to another. So the statement after a failure has a connection of its own, which takes 15 ms.

The lock that tells who owns an embedded store: the engine's own error does not say.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from gpufleet.model.errors import StoreError

Client = Any
"""A client of clickhouse-connect, which has no types."""


class EmbeddedHandle:
    """What the store asks of a client; as there, one statement at a time."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        """Open it; `connect` opens one more connection."""
        self._connect = connect
        self._client = connect()
        self._has_failed = False
        self._is_closed = False
        self._changing = threading.Lock()

    def query(self, *said: Any, **more: Any) -> Any:
        """Answer a question."""
        return self._ask("query", said, more)

    def query_arrow(self, *said: Any, **more: Any) -> Any:
        """Answer a question as an Arrow table."""
        return self._ask("query_arrow", said, more)

    def command(self, *said: Any, **more: Any) -> Any:
        """Do what a statement says."""
        return self._ask("command", said, more)

    def insert_arrow(self, *said: Any, **more: Any) -> Any:
        """Insert an Arrow table."""
        return self._ask("insert_arrow", said, more)

    def close(self) -> None:
        """Close the connection; nothing is asked afterwards."""
        with self._changing:
            self._is_closed = True
            self._client.close()

    def _ask(self, what: str, said: tuple[Any, ...], more: dict[str, Any]) -> Any:
        if self._has_failed:
            self._begin_anew()
        try:
            return getattr(self._client, what)(*said, **more)
        except BaseException:
            self._has_failed = True
            raise

    def _begin_anew(self) -> None:
        with self._changing:
            if self._is_closed:
                raise StoreError("the store is closed")
            before, self._client = self._client, self._connect()  # first: the last connection takes the engine with it
            before.close()
            self._has_failed = False


NAME = "gpufleet.lock"


class FolderLock:
    """Holds a folder for this process. The kernel lets go when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, making it where it is missing.

        Raises:
            StoreError: if another process has it (names its PID), or it cannot be made or written.
        """
        try:
            import fcntl
        except ImportError as error:
            raise StoreError(f"{folder}: the embedded store needs a POSIX system") from error

        self._file: IO[str] | None = None
        path = folder / NAME
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
                f"{folder}: process {owner} has this store open; one process at a time can. "
                "Stop it, or ask it over its API"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let go; a second release does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
