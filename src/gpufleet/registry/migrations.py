"""How the schema came to be: numbered, forward only, never edited once released.

Portable SQL: TEXT, BIGINT, INTEGER and the dialect's words for bytes and for a key that counts up. Bytes columns hold
MessagePack records, or digests.
"""

import sqlalchemy as sa

from gpufleet.model.errors import RegistryError
from gpufleet.registry.tables import VERSION

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE clusters (id TEXT PRIMARY KEY, registered_at BIGINT NOT NULL)",
        (
            "CREATE TABLE machines (id TEXT PRIMARY KEY, cluster TEXT NOT NULL REFERENCES clusters (id),"
            " sender TEXT NOT NULL, known {bytes} NOT NULL, first_seen BIGINT NOT NULL, last_seen BIGINT NOT NULL)"
        ),
        (
            "CREATE TABLE machine_evidence (machine TEXT NOT NULL REFERENCES machines (id), field TEXT NOT NULL,"
            " value TEXT NOT NULL, since BIGINT NOT NULL, PRIMARY KEY (machine, field, value))"
        ),
        (
            "CREATE TABLE machine_conflicts (machine TEXT NOT NULL REFERENCES machines (id), other TEXT NOT NULL,"
            " field TEXT NOT NULL, value TEXT NOT NULL, since BIGINT NOT NULL,"
            " PRIMARY KEY (machine, other, field, value))"
        ),
        (
            "CREATE TABLE allocations (id TEXT NOT NULL, generation INTEGER NOT NULL, spec {bytes} NOT NULL,"
            " created_at BIGINT NOT NULL, put_at BIGINT NOT NULL, closed_at BIGINT, PRIMARY KEY (id, generation))"
        ),
        (
            "CREATE TABLE sequences (cluster TEXT NOT NULL, sender TEXT NOT NULL, epoch TEXT NOT NULL,"
            " ranges {bytes} NOT NULL, PRIMARY KEY (cluster, sender, epoch))"
        ),
        (
            "CREATE TABLE senders (cluster TEXT NOT NULL, sender TEXT NOT NULL, heard {bytes} NOT NULL,"
            " PRIMARY KEY (cluster, sender))"
        ),
        "CREATE TABLE flush_intents (wal TEXT PRIMARY KEY, intent {bytes} NOT NULL)",
    ),
    (
        "ALTER TABLE clusters ADD COLUMN spec {bytes}",
        "ALTER TABLE clusters ADD COLUMN closed_at BIGINT",
        (
            "CREATE TABLE tokens (id TEXT PRIMARY KEY, role TEXT NOT NULL, cluster TEXT, tenant TEXT,"
            " note TEXT NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT, revoked_at BIGINT)"
        ),
        (
            "CREATE TABLE token_secrets (token TEXT NOT NULL REFERENCES tokens (id), digest {bytes} NOT NULL,"
            " created_at BIGINT NOT NULL, valid_until BIGINT, PRIMARY KEY (token, digest))"
        ),
        "CREATE TABLE token_changes (number BIGINT NOT NULL)",
        "INSERT INTO token_changes (number) VALUES (0)",
        (
            "CREATE TABLE audit (number {serial}, at BIGINT NOT NULL, actor TEXT NOT NULL, method TEXT NOT NULL,"
            " path TEXT NOT NULL, status INTEGER NOT NULL, detail TEXT NOT NULL)"
        ),
        "{never_update_audit}",
        "{never_delete_audit}",
    ),
    ("ALTER TABLE sequences ADD COLUMN held {bytes}",),
    ("ALTER TABLE machines ADD COLUMN retired_at BIGINT",),
)
"""Statements by version: the first tuple makes version 1."""

NEWEST = len(MIGRATIONS)
"""The version that this build makes."""

_WORDS = {
    "sqlite": {
        "bytes": "BLOB",
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "never_update_audit": (
            "CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit"
            " BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END"
        ),
        "never_delete_audit": (
            "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit"
            " BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END"
        ),
    },
    "postgresql": {
        "bytes": "BYTEA",
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "never_update_audit": (
            "CREATE FUNCTION audit_only_grows() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RAISE EXCEPTION ''the audit log is only added to''; END'"
        ),
        "never_delete_audit": (
            "CREATE TRIGGER audit_only_grows BEFORE UPDATE OR DELETE OR TRUNCATE ON audit"
            " FOR EACH STATEMENT EXECUTE FUNCTION audit_only_grows()"
        ),
    },
}


def migrate(connection: sa.Connection) -> None:
    """Bring the schema to this build's version, inside the caller's transaction.

    Raises:
        RegistryError: if a newer build has been here.
    """
    VERSION.create(connection, checkfirst=True)
    version = connection.execute(sa.select(VERSION.c.version)).scalar_one_or_none()
    if version is None:
        connection.execute(VERSION.insert().values(version=0))
        version = 0
    if version > len(MIGRATIONS):
        raise RegistryError(
            f"the registry's schema is version {version} and this build knows {len(MIGRATIONS)}: "
            "a newer gpufleet wrote it; run that one, or point this one at another registry"
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in statements:
            connection.execute(sa.text(statement.format(**_WORDS[connection.dialect.name])))
        connection.execute(VERSION.update().values(version=number))
