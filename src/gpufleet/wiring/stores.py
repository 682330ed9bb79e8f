"""The stores a hub can have, by the scheme of their DSN."""

from collections.abc import Callable

from gpufleet.model.errors import StoreError
from gpufleet.ports import Store


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
