"""Token and header files, reloaded on change."""

import os
import re
from pathlib import Path

from gpufleet.model.errors import ConfigError

MAX_HEADER_BYTES = 16_384

_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,100}):[ \t]*([!-~](?:[ -~]{0,4000}[!-~])?)[ \t]*")
"""A name and a value that are valid in an HTTP header (RFC 9110, 5.5 and 5.6.2)."""

_RESERVED = frozenset({"content-type", "content-encoding", "content-length", "transfer-encoding", "host", "connection"})


class HeadersFile:
    """Headers in a file, `Name: value` per line. To change the file, rename a new file over it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int, int] | None = None
        self._headers: dict[str, str] = {}

    def headers(self) -> dict[str, str]:
        """Return the current headers.

        Raises:
            ConfigError: if the file cannot be read, or a line is not a header.
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
            raise ConfigError(str(self.path), "", f"the headers exceed {MAX_HEADER_BYTES} bytes")
        headers: dict[str, str] = {}
        for number, line in enumerate(content.splitlines(), 1):
            if not line.strip() or line.startswith(b"#"):
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise ConfigError(f"{self.path}:{number}", "", "is not a header: write Name: value")
            name = match[1].decode("ascii")
            if name.lower() in _RESERVED:
                raise ConfigError(f"{self.path}:{number}", "", f"{name} cannot be set: it is set by the request")
            headers[name] = match[2].decode("ascii")
        return headers


MAX_TOKEN_BYTES = 4096

_TOKEN = re.compile(rb"[!-~]{1,512}")
"""Characters that are valid in an HTTP header."""


class TokenFile:
    """A token in a file. To change the file, rename a new file over it."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int, int] | None = None
        self._token = ""

    def token(self) -> str:
        """Return the current token.

        Raises:
            ConfigError: if the file cannot be read, or holds no valid token.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if seen != self._seen:
                    self._token = parse_token(str(self.path), "", file.read(MAX_TOKEN_BYTES))
                    self._seen = seen
        except OSError as error:
            raise ConfigError(str(self.path), "", f"the token cannot be read: {error.strerror}") from error
        return self._token


def parse_token(source: str, key: str, content: bytes) -> str:
    """Return a token without surrounding white space.

    Args:
        source, key: place of the token, as in `ConfigError`.
        content: the token.

    Raises:
        ConfigError: if it is no valid token. The message does not contain it.
    """
    token = content.strip()
    if not _TOKEN.fullmatch(token):
        raise ConfigError(source, key, "holds no valid token: write the token and nothing else")
    return token.decode("ascii")
