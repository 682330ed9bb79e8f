"""Registry and store, opened for a look: nothing is migrated, and the embedded store only while nobody has it.

How much room there is, who takes it, and how fast it goes.

Who holds a lock: looked up first, as trying would keep a daemon from starting for a moment.
"""

import datetime as dt
import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from gpufleet.config.hub import HubConfig
from gpufleet.doctor.hub.facts import Daemon, Disk, Kept
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
    from gpufleet.stores.clickhouse.connection.dsn import parse_dsn
    from gpufleet.stores.clickhouse.schema.tables import SCHEMA_VERSION
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


_PART_OF_A_DAY = re.compile(r"(\d{8})_\d+_\d+_\d+(_\d+)?")
"""Folder of a part of a table that is partitioned by day: partition, first and last block, level, mutation."""


def look_at_disk(folder: Path, today: dt.date) -> Disk:
    """Measure the folder and its file system. Raises OSError."""
    figures = os.statvfs(_nearest(folder))
    used: dict[str, int] = {}
    days: dict[str, int] = {}
    for path, size in _files(folder):
        parts = path.relative_to(folder).parts
        used[parts[0]] = used.get(parts[0], 0) + size
        if parts[0] == "store" and len(parts) > 4 and (found := _PART_OF_A_DAY.fullmatch(parts[4])):
            days[found[1]] = days.get(found[1], 0) + size
    whole = max((day for day in days if day < f"{today:%Y%m%d}"), default="")
    return Disk(
        free=figures.f_bavail * figures.f_frsize,
        size=figures.f_blocks * figures.f_frsize,
        used=used,
        day_bytes=days.get(whole),
        day=whole and f"{whole[:4]}-{whole[4:6]}-{whole[6:]}",
    )


def _files(folder: Path) -> list[tuple[Path, int]]:
    """Return every file and its size; a merge may take one away meanwhile."""
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            found.append((path, status.st_size))
    return found


def _nearest(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


LOCKS = Path("/proc/locks")

_LINE = re.compile(r"\d+: FLOCK +\w+ +WRITE (-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ")


def holder_of(file: Path, locks: Path = LOCKS) -> int:
    """Return the process that holds a file with flock(2), or 0 for none.

    /proc/locks (proc(5)) names each lock's process, -1 or 0 for one outside of this PID namespace, and its file by
    device and inode. A process that cannot be named is told as -1.

    Raises:
        OSError: if the file or /proc/locks cannot be read.
    """
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0
    wanted = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    for line in locks.read_text().splitlines():
        found = _LINE.match(line)
        if found and (int(found[2], 16), int(found[3], 16), int(found[4])) == wanted:
            return int(found[1]) or -1
    return 0


def is_held(file: Path) -> bool:
    """Try whether a process holds a file: btrfs and overlays show /proc/locks another device than stat(2) shows.

    Raises:
        OSError: if the file cannot be opened.
    """
    import fcntl

    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
