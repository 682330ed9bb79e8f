"""The audit log of writes and their actors. Append-only."""

import sqlalchemy as sa

from gpufleet.model.access import AuditEntry, AuditRecord
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.registry.database import Database, storable_text
from gpufleet.registry.tables import AUDIT


class SqlAudit:
    """A `ports.Audit` in the registry's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, entry: AuditEntry) -> None:
        """Append an entry."""
        with self._database.writing() as connection:
            append(connection, entry)

    def newest(self, before: int | None, limit: int) -> tuple[AuditRecord, ...]:
        """Return entries, newest first."""
        query = sa.select(AUDIT).order_by(AUDIT.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.number < before)
        with self._database.reading() as connection:
            return tuple(_read(row) for row in connection.execute(query))


def append(connection: sa.Connection, entry: AuditEntry) -> None:
    """Append an entry inside the caller's transaction."""
    connection.execute(
        AUDIT.insert().values(
            at=to_ns(entry.at),
            actor=entry.actor,
            method=entry.method,
            path=storable_text(entry.path),
            status=entry.status,
            detail=storable_text(entry.detail),
        )
    )


def _read(row: "sa.Row[tuple[object, ...]]") -> AuditRecord:
    entry = AuditEntry(
        at=to_datetime(row.at),
        actor=row.actor,
        method=row.method,
        path=row.path,
        status=row.status,
        detail=row.detail,
    )
    return AuditRecord(number=row.number, entry=entry)
