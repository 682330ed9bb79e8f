"""Construction of hub clients, credentials and TLS contexts, and the registry of stores."""

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpufleet.config.secret_files import TokenFile
from gpufleet.model.errors import ConfigError, StoreError
from gpufleet.ports.store import Store

if TYPE_CHECKING:
    from gpufleet.delivery.post import HubClient


def make_hub_client(
    url: str,
    *,
    name: str,
    timeout_seconds: float,
    token_file: str | None,
    ca: str | None,
    connections: int = 1,
    relays: Callable[[], str] | None = None,
) -> "HubClient":
    """Return a client of the hub at `url`. It is not connected yet.

    Raises:
        ConfigError: if the token or CA file cannot be read.
    """
    # Imported here: a process that sends nothing does not load the HTTP client.
    from gpufleet.delivery.post import HubClient

    return HubClient(
        url,
        name=name,
        timeout_seconds=timeout_seconds,
        connections=connections,
        token=token_reader(token_file),
        relays=relays,
        tls=tls_context(ca),
    )


def token_reader(path: str | None) -> Callable[[], str] | None:
    """Return a function that reads the current token, or None without a file.

    Raises:
        ConfigError: if the file holds no token now.
    """
    if path is None:
        return None
    token_file = TokenFile(path)
    token_file.token()
    return token_file.token


def tls_context(ca: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext | None:
    """Return a client TLS context, or None for the system's CAs without a client certificate.

    Raises:
        ConfigError: if a file cannot be read.
    """
    if ca is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(ca or "", "", f"the CA file cannot be read: {error.strerror or error}") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(certificate, "", f"cannot be read with its key: {error.strerror or error}") from error
    return context


def _clickhouse(dsn: str) -> Store:
    from gpufleet.stores.clickhouse.store import ClickHouseStore  # imported here: only a hub loads the heavy engine

    return ClickHouseStore.open(dsn)


STORES: dict[str, Callable[[str], Store]] = {
    "chdb": _clickhouse,
    "clickhouse": _clickhouse,
}
"""DSN scheme to the function that opens such a store."""


def open_store(dsn: str) -> Store:
    """Open the store at a DSN.

    Raises:
        StoreError: if the scheme is unknown or the store cannot be opened.
    """
    scheme = dsn.partition("://")[0]
    open_at = STORES.get(scheme)
    if open_at is None:
        raise StoreError(f"unknown scheme {scheme!r} of a store: use one of {', '.join(STORES)}")
    return open_at(dsn)
