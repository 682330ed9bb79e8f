"""Whom an SSH login is to.

Host keys that guests are known by: one a virtual machine, not one an address.

A pin is the first two words of a public key file: `ssh-ed25519 AAAA...`.
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
    """Whom to dial, and as whom.

    Attributes:
        host, port: of the guest.
        user: account in the guest.
        key_file: private key, without a passphrase.
        connect_seconds: until somebody answers.
        login_seconds: until the login is over, the connection included.
    """

    host: str
    port: int
    user: str
    key_file: Path
    connect_seconds: float = 5.0
    login_seconds: float = 15.0

    @property
    def name(self) -> str:
        """How it is called in words of errors."""
        return f"ssh {self.user}@{self.host}:{self.port}"


MAX_BYTES = 16 << 10

_KEY = re.compile(r"(?:ssh-|ecdsa-)[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}", re.ASCII)


class Pin(Protocol):
    """The host key that one virtual machine is known by."""

    def key(self) -> str | None:
        """Return it, or None while none is known. Raises ChannelError if what was kept cannot be read."""
        ...

    def keep(self, key: str) -> None:
        """Keep the key that it showed when none was known. Raises ChannelError if that fails."""
        ...


def is_key(text: str) -> bool:
    """Tell whether a text is a type of key and a key, and nothing else."""
    return len(text) <= MAX_BYTES and _KEY.fullmatch(text) is not None


class GivenPin:
    """A key that was given with the guest: the only one that is ever taken."""

    def __init__(self, key: str) -> None:
        self._key = key

    def key(self) -> str | None:
        """Return it."""
        return self._key

    def keep(self, key: str) -> None:
        """Nothing is learned."""


class FirstPin:
    """The first key that a virtual machine shows, kept in a file over restarts of the agent.

    A virtual machine that is to have another key from now on needs its file removed, by an operator.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def key(self) -> str | None:
        """Return what was kept."""
        try:
            with self._file.open(encoding="ascii") as opened:
                text = opened.read(MAX_BYTES + 1).strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ChannelError(f"{self._file}: {error}", ChannelProblem.NOT_PERMITTED) from error
        if not is_key(text):
            words = f"{self._file} holds no host key: remove it to take the next key that the guest shows"
            raise ChannelError(words, ChannelProblem.IDENTITY_MISMATCH)
        return text

    def keep(self, key: str) -> None:
        """Keep it, whole or not at all."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._file.parent, prefix=".pin-")
            with contextlib.ExitStack() as stack:
                stack.callback(Path(name).unlink, missing_ok=True)
                with os.fdopen(handle, "w", encoding="ascii") as opened:
                    opened.write(f"{key}\n")
                    opened.flush()
                    os.fsync(opened.fileno())
                Path(name).replace(self._file)
                stack.pop_all()  # it has its place
        except OSError as error:
            words = f"{self._file}: the guest's host key cannot be kept: {error.strerror}"
            raise ChannelError(words, ChannelProblem.NOT_PERMITTED) from error
