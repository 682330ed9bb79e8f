"""A running daemon, and the settings of its listener."""

import asyncio

import msgspec

CONNECTIONS = 256
"""Maximum open connections."""

STOP_SECONDS = 2
"""Time that stopping waits for responses in progress."""


class RunningDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """A running daemon.

    Attributes:
        host, port: listening address; the port is chosen by the kernel if it is 0 in the configuration.
        secure: whether it uses TLS.
        task: ends only if the daemon fails.
    """

    host: str
    port: int
    secure: bool
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        """Root URL of its HTTP API."""
        return (
            f"{'https' if self.secure else 'http'}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"
        )
