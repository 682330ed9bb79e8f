"""The way to a hub, put together from its configuration.

The stores a hub can have, by the scheme of their DSN.
"""

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpufleet.config.secret_files import TokenFile
from gpufleet.model.errors import ConfigError, StoreError
from gpufleet.ports.store import Store

if TYPE_CHECKING:
    from gpufleet.delivery.post import HubClient


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
    from gpufleet.delivery.post import HubClient

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


def trust_of(ca: str | None, certificate: str | None = None, key: str | None = None) -> ssl.SSLContext | None:
    """Return whom to trust and what to show, or None for the system's authorities and no certificate.

    Raises:
        ConfigError: if a file cannot be read.
    """
    if ca is None and certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(ca or "", "", f"the authorities cannot be read: {error.strerror or error}") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(certificate, "", f"it and its key cannot be read: {error.strerror or error}") from error
    return context


def _clickhouse(dsn: str) -> Store:
    from gpufleet.stores.clickhouse.store import ClickHouseStore  # the engine is heavy: only a hub loads it

    return ClickHouseStore.open(dsn)


STORES: dict[str, Callable[[str], Store]] = {
    "chdb": _clickhouse,
    "clickhouse": _clickhouse,
}
"""Scheme to how such a store is opened."""


def open_store(dsn: str) -> Store:
    """Open the store at a DSN.

    Raises:
        StoreError: if no store has its scheme, or it cannot be opened.
    """
    scheme = dsn.partition("://")[0]
    opened = STORES.get(scheme)
    if opened is None:
        raise StoreError(f"no store has the scheme {scheme!r}; there are {', '.join(STORES)}")
    return opened(dsn)
