"""Registry and store, opened for a look: nothing is migrated, and the embedded store only while nobody has it."""

import datetime as dt
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TypeVar

from gpufleet.config.hub import HubConfig
from gpufleet.doctor.hub.facts import Daemon, Kept
from gpufleet.model.access import Token
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.model.time import NANOS, to_ns
from gpufleet.registry.database import Database, sqlite_file
from gpufleet.registry.migrations import NEWEST
from gpufleet.registry.sql import SqlRegistry
from gpufleet.registry.tokens import SqlTokens

RECENT_SECONDS = 3600.0
"""A sender that was not heard of for longer says nothing of its clock now."""

T = TypeVar("T")


def look_at_registry(config: HubConfig) -> Kept | str:
    """Return the registry's version, and what its own check finds; or why it cannot be opened."""
    return _of_registry(config, lambda database: Kept(database.version(), NEWEST, database.damage()), any_version=True)


def look_at_store(config: HubConfig, holder: int | str, daemon: Daemon | str) -> Kept | str:
    """Return the store's version; for an embedded one that the daemon has open, the daemon's word for it."""
    from gpufleet.stores.clickhouse.dsn import parse_dsn
    from gpufleet.stores.clickhouse.schema import SCHEMA_VERSION
    from gpufleet.stores.clickhouse.store import ClickHouseStore

    try:
        path = parse_dsn(config.store_dsn).path
        if path is not None and not path.is_dir():
            return f"there is no {path} yet"
        if path is not None and isinstance(holder, str):
            return f"whether a hub has it open is not known: {holder}"
        if path is not None and holder:
            if isinstance(daemon, str):
                return f"process {holder} has it open, and it cannot be asked: {daemon}"
            return Kept(SCHEMA_VERSION, SCHEMA_VERSION, daemon.ready)
        with closing(ClickHouseStore.open(config.store_dsn)) as store:
            return Kept(store.schema_version(), SCHEMA_VERSION)
    except StoreError as error:
        return str(error)


def tokens_of(config: HubConfig) -> tuple[Token, ...] | str:
    """Return every token, or why they cannot be read."""
    return _of_registry(config, lambda database: SqlTokens(database).tokens())


def skews_kept(config: HubConfig, now: dt.datetime) -> dict[str, float] | str:
    """Return by how many seconds senders' clocks were ahead, as the registry of a stopped hub remembers it."""
    at = to_ns(now)

    def read(database: Database) -> dict[str, float]:
        heard = ((one.sender, one.heard) for one in SqlRegistry(database).senders())
        return {
            sender: (word.sent_at - word.received_at) / NANOS
            for sender, word in heard
            if (at - word.received_at) / NANOS < RECENT_SECONDS
        }

    return _of_registry(config, read)


def skews_told(senders: Iterable[tuple[str, dt.datetime, dt.datetime]], now: dt.datetime) -> dict[str, float]:
    """Return the same from what a running hub says: sender, when it sent, when that was received."""
    return {
        sender: (sent_at - received_at).total_seconds()
        for sender, sent_at, received_at in senders
        if (now - received_at).total_seconds() < RECENT_SECONDS
    }


def _of_registry(config: HubConfig, question: Callable[[Database], T], *, any_version: bool = False) -> T | str:
    file = sqlite_file(config.registry_dsn)
    if file is not None and not file.is_file():
        return f"there is no {file} yet"
    try:
        with closing(Database.open(config.registry_dsn)) as database:
            version = database.version()
            if version != NEWEST and not any_version:  # its tables may be others than this build knows
                return f"the registry's schema is version {version}, this build knows {NEWEST}"
            return question(database)
    except RegistryError as error:
        return str(error)
