"""Targets of SSH logins, and the pinned host keys of guests: one per virtual machine, not per address.

A pin is the first two fields of a public key file: `ssh-ed25519 AAAA...`.
"""

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Protocol

import msgspec

from gpufleet.model.errors import ChannelError, ChannelProblem


class SshTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Address and account of an SSH login.

    Attributes:
        host, port: address of the guest.
        user: account in the guest.
        key_file: private key, without a passphrase.
        connect_seconds: time limit of the TCP connection.
        login_seconds: time limit of the login, the TCP connection included.
    """

    host: str
    port: int
    user: str
    key_file: Path
    connect_seconds: float = 5.0
    login_seconds: float = 15.0

    @property
    def name(self) -> str:
        """Name in error messages."""
        return f"ssh {self.user}@{self.host}:{self.port}"


MAX_BYTES = 16 << 10

_KEY = re.compile(r"(?:ssh-|ecdsa-)[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}", re.ASCII)


class HostKeyPin(Protocol):
    """The pinned host key of one virtual machine."""

    def key(self) -> str | None:
        """Return the key, or None if none is pinned. Raises ChannelError if the stored key cannot be read."""
        ...

    def keep(self, key: str) -> None:
        """Pin the key that the guest sent when none was pinned. Raises ChannelError if it cannot be stored."""
        ...


def is_host_key(text: str) -> bool:
    """Return whether a text is exactly a key type and a key."""
    return len(text) <= MAX_BYTES and _KEY.fullmatch(text) is not None


class ConfiguredHostKey:
    """A host key from the configuration. No other key is accepted."""

    def __init__(self, key: str) -> None:
        self._key = key

    def key(self) -> str | None:
        """Return the key."""
        return self._key

    def keep(self, key: str) -> None:
        """Do nothing: the key is fixed."""


class FirstUseHostKey:
    """Trust on first use: the first key of a virtual machine is stored in a file.

    To accept a new key of a virtual machine, an operator removes its file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def key(self) -> str | None:
        """Return the stored key."""
        try:
            with self._file.open(encoding="ascii") as stream:
                text = stream.read(MAX_BYTES + 1).strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ChannelError(f"{self._file}: {error}", ChannelProblem.NOT_PERMITTED) from error
        if not is_host_key(text):
            message = f"{self._file} holds no host key: remove it to pin the next key that the guest sends"
            raise ChannelError(message, ChannelProblem.IDENTITY_MISMATCH)
        return text

    def keep(self, key: str) -> None:
        """Store the key atomically."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._file.parent, prefix=".pin-")
            with contextlib.ExitStack() as stack:
                stack.callback(Path(name).unlink, missing_ok=True)
                with os.fdopen(handle, "w", encoding="ascii") as stream:
                    stream.write(f"{key}\n")
                    stream.flush()
                    os.fsync(stream.fileno())
                Path(name).replace(self._file)
                stack.pop_all()  # the file is in place
        except OSError as error:
            message = f"{self._file}: cannot store the guest's host key: {error.strerror}"
            raise ChannelError(message, ChannelProblem.NOT_PERMITTED) from error
