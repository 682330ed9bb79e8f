"""Tokens and the audit log in the registry."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpufleet.model.access import AuditEntry, Role, digest, token_id
from gpufleet.model.errors import ConflictError, NotFoundError, RegistryError
from gpufleet.registry.audit import SqlAudit
from gpufleet.registry.database import Database
from gpufleet.registry.tables import AUDIT
from gpufleet.registry.tokens import SqlTokens

AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    database = Database.open(dsn)
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def tokens(database: Database) -> SqlTokens:
    return SqlTokens(database)


def test_database_error_has_no_statement_or_values(database: Database) -> None:
    statement = sa.text("SELECT * FROM nowhere WHERE secret = :secret")
    with pytest.raises(RegistryError, match="nowhere") as refused, database.reading() as connection:
        connection.execute(statement, {"secret": "private-value"})
    assert "private-value" not in str(refused.value)


def test_missing_database_driver_is_named() -> None:
    with pytest.raises(RegistryError, match=r"gpufleet\[hub,postgres\]"):
        Database.open("postgresql+pg8000://user:password@host/gpufleet")


def test_token_is_stored_as_a_digest_only(tokens: SqlTokens, tmp_path: Path) -> None:
    token, text = tokens.create(Role.SENDER, AT, cluster="a", note="rack 7", expires_at=AT + HOUR)
    assert text.startswith(f"gpf_{token.id}_")
    assert token_id(text) == token.id
    ((known),) = tokens.known()
    assert known.token == token
    assert [one.digest for one in known.secrets] == [digest(text)]
    secret = text.removeprefix(f"gpf_{token.id}_").encode()
    for file in tmp_path.iterdir():
        assert secret not in file.read_bytes()


def test_secrets_are_unique(tokens: SqlTokens) -> None:
    texts = {tokens.create(Role.ADMIN, AT)[1] for _ in range(20)}
    assert len(texts) == 20
    assert {len(text) for text in texts} == {4 + 12 + 1 + 43}


@pytest.mark.parametrize(
    ("role", "cluster", "tenant"),
    [
        (Role.SENDER, None, None),
        (Role.SENDER, "a", "t"),
        (Role.TENANT, None, None),
        (Role.TENANT, "a", None),
        (Role.ADMIN, "a", None),
        (Role.OPERATOR, None, "t"),
    ],
)
def test_role_requires_exactly_its_own_scope(
    tokens: SqlTokens, role: Role, cluster: str | None, tenant: str | None
) -> None:
    with pytest.raises(ConflictError):
        tokens.create(role, AT, cluster=cluster, tenant=tenant)


def test_rotation_keeps_the_old_secret_for_the_overlap_only(tokens: SqlTokens) -> None:
    token, first = tokens.create(Role.ADMIN, AT)
    same, second = tokens.rotate(token.id, AT + HOUR, overlap=HOUR)
    assert same == token
    (known,) = tokens.known()
    assert {one.digest: one.valid_until for one in known.secrets} == {
        digest(first): AT + 2 * HOUR,
        digest(second): None,
    }
    _, third = tokens.rotate(token.id, AT + 3 * HOUR, overlap=dt.timedelta(0))
    (known,) = tokens.known()  # the first secret is removed, the second ends at once
    assert {one.digest: one.valid_until for one in known.secrets} == {
        digest(second): AT + 3 * HOUR,
        digest(third): None,
    }


def test_later_rotation_does_not_extend_an_overlap(tokens: SqlTokens) -> None:
    token, first = tokens.create(Role.ADMIN, AT)
    tokens.rotate(token.id, AT, overlap=HOUR)
    tokens.rotate(token.id, AT, overlap=5 * HOUR)
    (known,) = tokens.known()
    assert {one.digest: one.valid_until for one in known.secrets}[digest(first)] == AT + HOUR


def test_revoked_and_expired_tokens_are_not_rotated(tokens: SqlTokens) -> None:
    token, _ = tokens.create(Role.ADMIN, AT, expires_at=AT + HOUR)
    with pytest.raises(ConflictError, match="expired"):
        tokens.rotate(token.id, AT + HOUR, overlap=HOUR)
    renewed, _ = tokens.rotate(token.id, AT + HOUR, overlap=HOUR, expires_at=AT + 3 * HOUR)
    assert renewed.expires_at == AT + 3 * HOUR
    revoked = tokens.revoke(token.id, AT + HOUR)
    assert tokens.revoke(token.id, AT + 2 * HOUR) == revoked
    with pytest.raises(ConflictError, match="revoked"):
        tokens.rotate(token.id, AT + 2 * HOUR, overlap=HOUR)
    for change in (lambda: tokens.revoke("none", AT), lambda: tokens.rotate("none", AT, overlap=HOUR)):
        with pytest.raises(NotFoundError):
            change()


def test_every_change_is_visible_to_other_processes_and_audited(tokens: SqlTokens, database: Database) -> None:
    numbers = [tokens.changes()]
    token, text = tokens.create(Role.TENANT, AT, tenant="acme")
    numbers.append(tokens.changes())
    tokens.rotate(token.id, AT, overlap=HOUR)
    numbers.append(tokens.changes())
    tokens.revoke(token.id, AT)
    numbers.append(tokens.changes())
    assert len(set(numbers)) == 4
    entries = SqlAudit(database).newest(None, 10)
    assert [(one.entry.actor, one.entry.method, one.entry.path) for one in entries] == [
        ("local", "token", "revoke"),
        ("local", "token", "rotate"),
        ("local", "token", "create"),
    ]
    assert all(token.id in one.entry.detail and text not in one.entry.detail for one in entries)


def test_audit_log_is_append_only(database: Database) -> None:
    audit = SqlAudit(database)
    for number in range(5):
        audit.append(AuditEntry(at=AT, actor="x", method="PUT", path=f"/{number}", status=200, detail="d"))
    assert [one.entry.path for one in audit.newest(None, 2)] == ["/4", "/3"]
    assert [one.entry.path for one in audit.newest(audit.newest(None, 2)[-1].number, 10)] == ["/2", "/1", "/0"]
    for statement in (AUDIT.delete(), AUDIT.update().values(actor="y")):
        with pytest.raises(RegistryError, match="append-only"), database.writing() as connection:
            connection.execute(statement)
