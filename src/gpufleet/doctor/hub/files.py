"""Inspection of the registry, the store, the disk and the lock of a hub.

Nothing is migrated. The embedded store is opened only while no process has it open. The holder of the lock is looked
up in /proc/locks first, because an attempt to lock could keep a daemon from starting.
"""

import datetime as dt
import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from gpufleet.config.hub import HubConfig
from gpufleet.doctor.hub.facts import DaemonStatus, DatabaseState, DiskUsage
from gpufleet.model.access import Token
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.errors import RegistryError, StoreError
from gpufleet.model.stored.ledger import MachineCounts
from gpufleet.model.time import NANOS, to_ns
from gpufleet.registry.database import Database, sqlite_file
from gpufleet.registry.machine_rows import count_machines
from gpufleet.registry.migrations import NEWEST
from gpufleet.registry.sql import SqlRegistry
from gpufleet.registry.tokens import SqlTokens

RECENT_SECONDS = 3600.0
"""Senders last seen longer ago are ignored: their clock may have changed."""

T = TypeVar("T")


def inspect_registry(config: HubConfig) -> DatabaseState | str:
    """Return version and damage of the registry, or why it cannot be opened."""
    file = sqlite_file(config.registry_dsn)
    if file is not None and file.is_file() and file.stat().st_size == 0:
        return DatabaseState(0, NEWEST, f"{file} has 0 bytes")
    return _query_registry(
        config, lambda database: DatabaseState(database.version(), NEWEST, database.damage()), any_version=True
    )


def count_stored_machines(config: HubConfig) -> MachineCounts | str:
    """Return the machines of each cluster, or why the registry cannot be opened."""

    def read(database: Database) -> MachineCounts:
        with database.reading() as connection:
            return count_machines(connection, config.ingest.max_machines)

    return _query_registry(config, read)


def inspect_store(config: HubConfig, holder: int | str, daemon: DaemonStatus | str) -> DatabaseState | str:
    """Return the version of the store. If the daemon has an embedded store open, its status is returned instead."""
    from gpufleet.stores.clickhouse.connection.dsn import parse_dsn
    from gpufleet.stores.clickhouse.schema.tables import SCHEMA_VERSION
    from gpufleet.stores.clickhouse.store import ClickHouseStore

    try:
        path = parse_dsn(config.store_dsn).path
        if path is not None and not path.is_dir():
            return f"{path} does not exist yet"
        if path is not None and isinstance(holder, str):
            return f"whether a hub has it open is unknown: {holder}"
        if path is not None and holder:
            if isinstance(daemon, str):
                return f"process {holder} has it open and cannot be queried: {daemon}"
            return DatabaseState(SCHEMA_VERSION, SCHEMA_VERSION, daemon.ready)
        with closing(ClickHouseStore.open(config.store_dsn)) as store:
            return DatabaseState(store.schema_version(), SCHEMA_VERSION)
    except StoreError as error:
        return str(error)


def read_tokens(config: HubConfig) -> tuple[Token, ...] | str:
    """Return every token, or why they cannot be read."""
    return _query_registry(config, lambda database: SqlTokens(database).tokens())


def stored_clock_skews(config: HubConfig, now: dt.datetime) -> dict[str, float] | str:
    """Return sender to seconds by which its clock was ahead, from the registry of a stopped hub.

    A sender whose clock is not known is left out.
    """
    at = to_ns(now)

    def read(database: Database) -> dict[str, float]:
        reports = ((one.sender, one.newest_report) for one in SqlRegistry(database).senders())
        return {
            sender: (report.sent_at - report.received_at) / NANOS
            for sender, report in reports
            if not report.is_created_by_hub and (at - report.received_at) / NANOS < RECENT_SECONDS
        }

    return _query_registry(config, read)


def reported_clock_skews(senders: Iterable[SenderRecord], now: dt.datetime) -> dict[str, float]:
    """Return sender to seconds by which its clock is ahead, from the senders of a running hub.

    A sender whose clock is not known is left out.
    """
    return {
        one.sender: (one.sent_at - one.received_at).total_seconds()
        for one in senders
        if one.clock_ahead_seconds is not None and (now - one.received_at).total_seconds() < RECENT_SECONDS
    }


def _query_registry(config: HubConfig, query: Callable[[Database], T], *, any_version: bool = False) -> T | str:
    file = sqlite_file(config.registry_dsn)
    if file is not None and not file.is_file():
        return f"{file} does not exist yet"
    try:
        with closing(Database.open(config.registry_dsn)) as database:
            version = database.version()
            if version != NEWEST and not any_version:  # its tables may differ from this build's
                return f"the registry's schema is version {version}, this build requires {NEWEST}"
            return query(database)
    except RegistryError as error:
        return str(error)


_DAY_PART = re.compile(r"(\d{8})_\d+_\d+_\d+(_\d+)?")
"""Folder name of a part of a table partitioned by day: partition, first and last block, level, mutation."""


def measure_disk(folder: Path, today: dt.date) -> DiskUsage:
    """Measure the folder and its file system. Raises OSError."""
    figures = os.statvfs(_nearest_existing(folder))
    used: dict[str, int] = {}
    days: dict[str, int] = {}
    for path, size in _files(folder):
        parts = path.relative_to(folder).parts
        used[parts[0]] = used.get(parts[0], 0) + size
        if parts[0] == "store" and len(parts) > 4 and (found := _DAY_PART.fullmatch(parts[4])):
            days[found[1]] = days.get(found[1], 0) + size
    whole = max((day for day in days if day < f"{today:%Y%m%d}"), default="")
    return DiskUsage(
        free=figures.f_bavail * figures.f_frsize,
        size=figures.f_blocks * figures.f_frsize,
        used=used,
        day_bytes=days.get(whole),
        day=whole and f"{whole[:4]}-{whole[4:6]}-{whole[6:]}",
    )


def _files(folder: Path) -> list[tuple[Path, int]]:
    """Return every file and its size. Files removed by a merge meanwhile are skipped."""
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


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


LOCKS = Path("/proc/locks")

_LOCK_LINE = re.compile(r"\d+: FLOCK +\w+ +WRITE (-?\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ")


def lock_holder(file: Path, locks: Path = LOCKS) -> int:
    """Return the process that has a file locked with flock(2), or 0 for none.

    /proc/locks (proc(5)) lists the process of each lock (-1 or 0 outside of this PID namespace), and the file by device
    and inode. An unknown process is returned as -1.

    Raises:
        OSError: if the file or /proc/locks cannot be read.
    """
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0
    file_id = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    for line in locks.read_text().splitlines():
        found = _LOCK_LINE.match(line)
        if found and (int(found[2], 16), int(found[3], 16), int(found[4])) == file_id:
            return int(found[1]) or -1
    return 0


def is_locked(file: Path) -> bool:
    """Return whether a process has a file locked, by trying to lock it.

    On btrfs and overlayfs the device in /proc/locks differs from stat(2), so `lock_holder` misses the lock.

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
