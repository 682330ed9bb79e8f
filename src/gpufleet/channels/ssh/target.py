"""Whom an SSH login is to."""

from pathlib import Path

import msgspec


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
