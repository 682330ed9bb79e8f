"""Schema migrations of the registry: numbered, forward only, never edited once released.

Portable SQL: TEXT, BIGINT and INTEGER. `{bytes}`, `{bytewise}`, `{serial}` and the triggers are rendered for each
dialect. Bytes columns hold MessagePack records or digests. A bytewise text has the same order in every database.
"""

import sqlalchemy as sa

from gpufleet.model.errors import RegistryError
from gpufleet.registry.tables import VERSION

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE clusters (id TEXT PRIMARY KEY, registered_at BIGINT NOT NULL, spec {bytes}, closed_at BIGINT)",
        (
            "CREATE TABLE machines (id TEXT PRIMARY KEY, cluster TEXT NOT NULL REFERENCES clusters (id),"
            " sender TEXT NOT NULL, known {bytes} NOT NULL, first_seen BIGINT NOT NULL, last_seen BIGINT NOT NULL,"
            " retired_at BIGINT)"
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
            " created_at BIGINT NOT NULL, put_at BIGINT NOT NULL, closed_at BIGINT,"
            " bindings {bytes} NOT NULL, PRIMARY KEY (id, generation))"
        ),
        (
            "CREATE TABLE sequences (cluster TEXT NOT NULL, sender TEXT NOT NULL, epoch TEXT NOT NULL,"
            " state {bytes} NOT NULL, PRIMARY KEY (cluster, sender, epoch))"
        ),
        (
            "CREATE TABLE senders (cluster TEXT NOT NULL, sender TEXT NOT NULL, newest_report {bytes} NOT NULL,"
            " PRIMARY KEY (cluster, sender))"
        ),
        "CREATE TABLE flush_intents (wal TEXT PRIMARY KEY, intent {bytes} NOT NULL)",
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
        "{reject_audit_update}",
        "{reject_audit_delete}",
        "CREATE TABLE findings_state (state {bytes})",
        "INSERT INTO findings_state (state) VALUES (NULL)",
        "CREATE TABLE contract_state (state {bytes})",
        "INSERT INTO contract_state (state) VALUES (NULL)",
        (
            "CREATE TABLE late_intervals (cluster TEXT NOT NULL, sender TEXT NOT NULL, start BIGINT NOT NULL,"
            " PRIMARY KEY (cluster, sender))"
        ),
        (
            "CREATE TABLE findings (id TEXT {bytewise} PRIMARY KEY, rule TEXT NOT NULL, scope TEXT {bytewise} NOT NULL,"
            " cluster TEXT, severity TEXT NOT NULL, opened_at BIGINT NOT NULL, closed_at BIGINT,"
            " finding {bytes} NOT NULL)"
        ),
        "CREATE INDEX findings_by_opening ON findings (opened_at DESC, id)",
        "CREATE INDEX findings_not_closed ON findings (opened_at DESC, id) WHERE closed_at IS NULL",
        "CREATE INDEX findings_by_closing ON findings (closed_at) WHERE closed_at IS NOT NULL",
        "CREATE INDEX findings_by_cluster ON findings (cluster, opened_at DESC, id)",
        "CREATE INDEX findings_by_rule ON findings (rule, opened_at DESC, id)",
        "CREATE INDEX findings_by_scope ON findings (scope, opened_at DESC, id)",
        (
            "CREATE TABLE finding_transitions (number {serial}, finding TEXT {bytewise} NOT NULL REFERENCES findings"
            " (id), kind TEXT NOT NULL, at BIGINT NOT NULL, transition {bytes} NOT NULL, UNIQUE (finding, kind, at))"
        ),
        (
            "CREATE TABLE finding_acknowledgements (finding TEXT {bytewise} NOT NULL PRIMARY KEY REFERENCES findings"
            " (id), at BIGINT NOT NULL, until BIGINT NOT NULL, actor TEXT NOT NULL, note TEXT NOT NULL)"
        ),
        (
            "CREATE TABLE silences (id TEXT PRIMARY KEY, at BIGINT NOT NULL, until BIGINT NOT NULL,"
            " silence {bytes} NOT NULL)"
        ),
        "CREATE TABLE finding_receivers (receiver TEXT NOT NULL PRIMARY KEY, number BIGINT NOT NULL)",
    ),
)
"""Statements by schema version: the first tuple makes version 1."""

NEWEST = len(MIGRATIONS)
"""The schema version of this build."""

_DIALECT_TERMS = {
    "sqlite": {
        "bytes": "BLOB",
        "bytewise": "COLLATE BINARY",
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "reject_audit_update": (
            "CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit"
            " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        ),
        "reject_audit_delete": (
            "CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit"
            " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        ),
    },
    "postgresql": {
        "bytes": "BYTEA",
        "bytewise": 'COLLATE "C"',
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "reject_audit_update": (
            "CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RAISE EXCEPTION ''the audit log is append-only''; END'"
        ),
        "reject_audit_delete": (
            "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit"
            " FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()"
        ),
    },
}


def migrate(connection: sa.Connection) -> None:
    """Bring the schema to this build's version, inside the caller's transaction.

    Raises:
        RegistryError: if the database has a newer schema version.
    """
    VERSION.create(connection, checkfirst=True)
    version = connection.execute(sa.select(VERSION.c.version)).scalar_one_or_none()
    if version is None:
        connection.execute(VERSION.insert().values(version=0))
        version = 0
    if version > len(MIGRATIONS):
        raise RegistryError(
            f"the registry has schema version {version}, this build supports {len(MIGRATIONS)}: "
            "run a newer gpufleet, or configure another registry"
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in statements:
            connection.execute(sa.text(statement.format(**_DIALECT_TERMS[connection.dialect.name])))
        connection.execute(VERSION.update().values(version=number))
