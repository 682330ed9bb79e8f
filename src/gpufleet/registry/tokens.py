"""Tokens: created, rotated and revoked in the registry itself, so that the first token needs no running hub."""

import base64
import datetime as dt
import secrets

import msgspec
import sqlalchemy as sa

from gpufleet.model.access import LOCAL, AuditEntry, KnownToken, Role, Secret, Token, digest, write_token
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.registry import audit
from gpufleet.registry.database import Database
from gpufleet.registry.tables import TOKEN_CHANGES, TOKEN_SECRETS, TOKENS

SECRET_BYTES = 32


class SqlTokens:
    """A `ports.Tokens` with the operator's commands; every change is written to the audit log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def changes(self) -> int:
        """Return a number that differs after every change of a token."""
        with self._database.reading() as connection:
            number: int = connection.execute(sa.select(TOKEN_CHANGES.c.number)).scalar_one()
            return number

    def known(self) -> tuple[KnownToken, ...]:
        """Return every token with its secrets."""
        with self._database.reading() as connection:
            secrets_of: dict[str, list[Secret]] = {}
            for row in connection.execute(sa.select(TOKEN_SECRETS)):
                secrets_of.setdefault(row.token, []).append(Secret(row.digest, _instant(row.valid_until)))
            rows = connection.execute(sa.select(TOKENS).order_by(TOKENS.c.created_at, TOKENS.c.id))
            return tuple(KnownToken(_read(row), tuple(secrets_of.get(row.id, ()))) for row in rows)

    def tokens(self) -> tuple[Token, ...]:
        """Return every token, oldest first."""
        return tuple(known.token for known in self.known())

    def create(
        self,
        role: Role,
        at: dt.datetime,
        *,
        cluster: str | None = None,
        tenant: str | None = None,
        note: str = "",
        expires_at: dt.datetime | None = None,
    ) -> tuple[Token, str]:
        """Create a token, and return it with its text, which is shown once: only a digest is stored.

        Raises:
            ConflictError: if a sender token has no cluster, a tenant token has no tenant, or another role has either.
        """
        for required, given, name in ((Role.SENDER, cluster, "cluster"), (Role.TENANT, tenant, "tenant")):
            if (role is required) != (given is not None):
                raise ConflictError(
                    f"a token of the role {role} requires a {name}: set it"
                    if role is required
                    else f"a token of the role {role} accepts no {name}: omit it, or use the role {required}"
                )
        token = Token(
            id=base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12],
            role=role,
            created_at=at,
            cluster=cluster,
            tenant=tenant,
            note=note,
            expires_at=expires_at,
        )
        with self._database.writing() as connection:
            connection.execute(TOKENS.insert().values(**_values(token)))
            return token, self._new_secret(connection, token, at, "create")

    def rotate(
        self,
        id: str,  # noqa: A002
        at: dt.datetime,
        *,
        overlap: dt.timedelta,
        expires_at: dt.datetime | None = None,
    ) -> tuple[Token, str]:
        """Create a new secret for a token and return both; the old secrets stay valid for `overlap`.

        Args:
            id: the token's id.
            at: the current time.
            overlap: time for which the old secrets stay valid.
            expires_at: a new expiry, or None to keep the present one.

        Raises:
            NotFoundError: if there is no such token.
            ConflictError: if it was revoked or has expired.
        """
        with self._database.writing() as connection:
            token = self._get(connection, id)
            if token.revoked_at is not None:
                raise ConflictError(f"token {id} was revoked at {token.revoked_at.isoformat()}: create another token")
            token = msgspec.structs.replace(token, expires_at=expires_at or token.expires_at)
            if token.expires_at is not None and token.expires_at <= at:
                raise ConflictError(f"token {id} expired at {token.expires_at.isoformat()}: give it a new expiry")
            own, until = TOKEN_SECRETS.c.token == id, TOKEN_SECRETS.c.valid_until
            connection.execute(TOKEN_SECRETS.delete().where(own & (until <= to_ns(at))))
            end = to_ns(at + overlap)
            connection.execute(
                TOKEN_SECRETS.update().where(own & (until.is_(None) | (until > end))).values(valid_until=end)
            )
            connection.execute(TOKENS.update().where(TOKENS.c.id == id).values(**_values(token)))
            return token, self._new_secret(connection, token, at, "rotate")

    def revoke(self, id: str, at: dt.datetime) -> Token:  # noqa: A002
        """Revoke a token; a revoked token is unchanged. Raises NotFoundError."""
        with self._database.writing() as connection:
            token = self._get(connection, id)
            if token.revoked_at is not None:
                return token
            token = msgspec.structs.replace(token, revoked_at=at)
            connection.execute(TOKENS.update().where(TOKENS.c.id == id).values(**_values(token)))
            self._record_change(connection, token, at, "revoke")
            return token

    def _get(self, connection: sa.Connection, id: str) -> Token:  # noqa: A002
        row = connection.execute(sa.select(TOKENS).where(TOKENS.c.id == id)).one_or_none()
        if row is None:
            raise NotFoundError(f"there is no token {id!r}: give its id, not its secret")
        return _read(row)

    def _new_secret(self, connection: sa.Connection, token: Token, at: dt.datetime, action: str) -> str:
        text = write_token(token.id, secrets.token_urlsafe(SECRET_BYTES))
        connection.execute(
            TOKEN_SECRETS.insert().values(token=token.id, digest=digest(text), created_at=to_ns(at), valid_until=None)
        )
        self._record_change(connection, token, at, action)
        return text

    def _record_change(self, connection: sa.Connection, token: Token, at: dt.datetime, action: str) -> None:
        connection.execute(TOKEN_CHANGES.update().values(number=TOKEN_CHANGES.c.number + 1))
        detail = msgspec.json.encode(token).decode()
        entry = AuditEntry(at=at, actor=LOCAL.id, method="token", path=action, status=0, detail=detail)
        audit.append(connection, entry)


def _values(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "role": token.role.value,
        "cluster": token.cluster,
        "tenant": token.tenant,
        "note": token.note,
        "created_at": to_ns(token.created_at),
        "expires_at": None if token.expires_at is None else to_ns(token.expires_at),
        "revoked_at": None if token.revoked_at is None else to_ns(token.revoked_at),
    }


def _read(row: "sa.Row[tuple[object, ...]]") -> Token:
    created_at = _instant(row.created_at)
    assert created_at is not None
    return Token(
        id=row.id,
        role=Role(row.role),
        created_at=created_at,
        cluster=row.cluster,
        tenant=row.tenant,
        note=row.note,
        expires_at=_instant(row.expires_at),
        revoked_at=_instant(row.revoked_at),
    )


def _instant(at: int | None) -> dt.datetime | None:
    return None if at is None else to_datetime(at)
