"""Dead letters: notices that a receiver rejected or that were given up, kept for inspection."""

import asyncio
import hashlib
import re
import threading
from pathlib import Path

MAX_FILES = 1000
"""Default of the maximum number of files; beyond it, the oldest are deleted."""

MAX_FOLDER_BYTES = 64 << 20
"""Default of the maximum size of all files; beyond it, the oldest are deleted."""

MAX_BODY_BYTES = 1 << 20
"""Maximum size of a file; the rest of a longer body is dropped."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARACTERS = 120
_HASH_DIGITS = 16


class DeadLetters:
    """Folder of the bodies of undelivered notices, bounded in files and bytes."""

    def __init__(self, folder: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_FOLDER_BYTES) -> None:
        """Set the folder, which is created with the first body, and its bounds."""
        self._folder, self._max_files, self._max_bytes = folder, max_files, max_bytes
        self._lock = threading.Lock()

    async def keep(self, receiver: str, name: str, body: bytes) -> str:
        """Write a body; return its path, or a text with the reason if it cannot be written. Never raises OSError."""
        return await asyncio.to_thread(self._keep, receiver, name, body)

    def _keep(self, receiver: str, name: str, body: bytes) -> str:
        file = self._folder / _file_name(receiver, name)
        body = body[:MAX_BODY_BYTES]
        try:
            with self._lock:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                file.unlink(missing_ok=True)
                self._make_room(len(body))
                _write(file, body)
        except OSError as error:
            return f"nothing ({error.strerror or type(error).__name__})"
        return str(file)

    def _make_room(self, size: int) -> None:
        """Delete the oldest files until a file of a size fits."""
        files = [(one, one.lstat()) for one in self._folder.glob("*.json")]
        files.sort(key=lambda found: found[1].st_mtime_ns)
        count, total = len(files) + 1, sum(status.st_size for _, status in files) + size
        for one, status in files:
            if count <= self._max_files and total <= self._max_bytes:
                break
            one.unlink()
            count, total = count - 1, total - status.st_size


def _file_name(receiver: str, name: str) -> str:
    """Return a file name of bounded length that is unique for a receiver and a notice."""
    digest = hashlib.sha256(f"{receiver}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return f"{_UNSAFE.sub('-', f'{receiver}-{name}')[:_NAME_CHARACTERS]}-{digest}.json"


def _write(file: Path, body: bytes) -> None:
    """Write a file whole or not at all."""
    try:
        file.touch(mode=0o600)
        file.write_bytes(body)
    except OSError:
        file.unlink(missing_ok=True)
        raise
