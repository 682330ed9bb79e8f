"""A token in a file, read again whenever the file changes."""

import os
import re
from pathlib import Path

from gpufleet.model.errors import ConfigError

MAX_BYTES = 4096

_TOKEN = re.compile(rb"[!-~]{1,512}")
"""What may stand in an HTTP header as it is."""


class TokenFile:
    """The token that a file holds now. Replace the file by renaming another one over it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int, int] | None = None
        self._token = ""

    def token(self) -> str:
        """Return the token.

        Raises:
            ConfigError: if the file cannot be read now, or holds no token.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if seen != self._seen:
                    self._token = self._parse(file.read(MAX_BYTES))
                    self._seen = seen
        except OSError as error:
            raise ConfigError(str(self.path), "", f"the token cannot be read: {error.strerror}") from error
        return self._token

    def _parse(self, content: bytes) -> str:
        token = content.strip()
        if not _TOKEN.fullmatch(token):
            raise ConfigError(str(self.path), "", "holds no token: write one there, and nothing else")
        return token.decode("ascii")
