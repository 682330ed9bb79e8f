"""The lock that tells who owns an embedded store: the engine's own error does not say."""

import os
from pathlib import Path
from typing import IO

from gpufleet.model.errors import StoreError

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
