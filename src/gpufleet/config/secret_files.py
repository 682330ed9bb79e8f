"""The files that a configuration names: are they there?

Headers of requests in a file, read again whenever the file changes: they often are credentials.

A token in a file, read again whenever the file changes.
"""

import os
import re
import stat
from pathlib import Path
from typing import Any

from gpufleet.config.load import Resolved, leaves
from gpufleet.model.errors import ConfigError

_NAMES = ("ca", "certificate", "key")
"""Keys that name a file, beside all that end in `_file`."""


def missing_files(resolved: Resolved[Any]) -> tuple[ConfigError, ...]:
    """Return a problem for each file that is named and not there.

    One that this user may not see is not missing: tokens and keys are often the daemon's alone.
    """
    problems: list[ConfigError] = []
    for key, _ in leaves(type(resolved.config)):
        name = key.rpartition(".")[2]
        if name not in _NAMES and not name.endswith("_file"):
            continue
        value: Any = resolved.config
        for part in key.split("."):
            value = getattr(value, part)
        if value is None:
            continue
        try:
            mode = Path(value).stat().st_mode
        except PermissionError:
            continue
        except OSError as error:
            problems.append(ConfigError(resolved.origin(key), key, f"{value}: {error.strerror}"))
        else:
            if stat.S_ISDIR(mode):
                problems.append(ConfigError(resolved.origin(key), key, f"{value} is a folder"))
    return tuple(problems)


MAX_HEADER_BYTES = 16_384

_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,100}):[ \t]*([!-~](?:[ -~]{0,4000}[!-~])?)[ \t]*")
"""A name and a value that may stand in an HTTP header as they are (RFC 9110, 5.5 and 5.6.2)."""

_OURS = frozenset({"content-type", "content-encoding", "content-length", "transfer-encoding", "host", "connection"})


class HeadersFile:
    """The headers that a file holds now, `Name: value` a line. Replace the file by renaming another one over it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int, int] | None = None
        self._headers: dict[str, str] = {}

    def headers(self) -> dict[str, str]:
        """Return the headers.

        Raises:
            ConfigError: if the file cannot be read now, or a line of it is no header.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if seen != self._seen:
                    self._headers = self._parse(file.read(MAX_HEADER_BYTES + 1))
                    self._seen = seen
        except OSError as error:
            raise ConfigError(str(self.path), "", f"the headers cannot be read: {error.strerror}") from error
        return self._headers

    def _parse(self, content: bytes) -> dict[str, str]:
        if len(content) > MAX_HEADER_BYTES:
            raise ConfigError(str(self.path), "", f"more than {MAX_HEADER_BYTES} bytes of headers")
        headers: dict[str, str] = {}
        for number, line in enumerate(content.splitlines(), 1):
            if not line.strip() or line.startswith(b"#"):
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise ConfigError(f"{self.path}:{number}", "", "is no header: write Name: value")
            name = match[1].decode("ascii")
            if name.lower() in _OURS:
                raise ConfigError(f"{self.path}:{number}", "", f"{name} is not to be set: it belongs to the request")
            headers[name] = match[2].decode("ascii")
        return headers


MAX_TOKEN_BYTES = 4096

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
                    self._token = self._parse(file.read(MAX_TOKEN_BYTES))
                    self._seen = seen
        except OSError as error:
            raise ConfigError(str(self.path), "", f"the token cannot be read: {error.strerror}") from error
        return self._token

    def _parse(self, content: bytes) -> str:
        token = content.strip()
        if not _TOKEN.fullmatch(token):
            raise ConfigError(str(self.path), "", "holds no token: write one there, and nothing else")
        return token.decode("ascii")
