"""The way to a hub, put together from its configuration."""

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpufleet.config.token_file import TokenFile
from gpufleet.model.errors import ConfigError

if TYPE_CHECKING:
    from gpufleet.sending.post import HubClient


def hub_client(
    url: str,
    *,
    name: str,
    timeout_seconds: float,
    token_file: str | None,
    ca: str | None,
    connections: int = 1,
    relays: Callable[[], str] | None = None,
) -> "HubClient":
    """Return a client of the hub at `url`, not connected yet.

    Raises:
        ConfigError: if the token or the authorities cannot be read.
    """
    # Imported here: a process that sends nothing does without the HTTP client.
    from gpufleet.sending.post import HubClient

    return HubClient(
        url,
        name=name,
        timeout_seconds=timeout_seconds,
        connections=connections,
        token=token_of(token_file),
        relays=relays,
        tls=trust_of(ca),
    )


def token_of(file: str | None) -> Callable[[], str] | None:
    """Return what reads the token, having read it once, or None without a file.

    Raises:
        ConfigError: if it holds no token now.
    """
    if file is None:
        return None
    kept = TokenFile(file)
    kept.token()
    return kept.token


def trust_of(ca: str | None) -> ssl.SSLContext | None:
    """Return what trusts the authorities of a PEM file, or None without one. Raises ConfigError."""
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(ca, "", f"the authorities cannot be read: {error.strerror or error}") from error
