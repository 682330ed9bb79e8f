"""Who may do what: roles, tokens as they are kept, and who stands behind a request.

A token is `gpf_ID_SECRET`. The id names it in lists, logs and the audit log; the secret is 32 random bytes and is
kept nowhere: what is kept is the SHA-256 of the whole token. A slow hash would add nothing, for it protects secrets
that can be guessed, and 256 random bits cannot; it would cost the hub its time on every batch.
"""

import datetime as dt
import enum
import hashlib
import re

import msgspec


class Role(enum.StrEnum):
    """What a token is for."""

    SENDER = "sender"  # posts batches of one cluster, and reads nothing
    TENANT = "tenant"  # reads the allocations of one tenant
    OPERATOR = "operator"  # reads everything
    ADMIN = "admin"  # reads everything, and registers clusters and allocations


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token without its secret.

    Attributes:
        id: stays the same when the secret is rotated.
        role: what it is for.
        created_at: when it was made.
        cluster: the one that a sender posts for; None for every other role.
        tenant: the one whose allocations a tenant reads; None for every other role.
        note: what people wrote about it.
        expires_at: from then on it is refused; None means never.
        revoked_at: since then it is refused.
    """

    id: str
    role: Role
    created_at: dt.datetime
    cluster: str | None = None
    tenant: str | None = None
    note: str = ""
    expires_at: dt.datetime | None = None
    revoked_at: dt.datetime | None = None


class Secret(msgspec.Struct, frozen=True):
    """One secret of a token as it is kept.

    Attributes:
        digest: see `digest`.
        valid_until: end of the overlap after a rotation; None for the newest.
    """

    digest: bytes
    valid_until: dt.datetime | None = None


class KnownToken(msgspec.Struct, frozen=True):
    """A token with every secret that may still be presented."""

    token: Token
    secrets: tuple[Secret, ...]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who stands behind a request.

    Attributes:
        id: of the token; `local` where the hub asks for none.
        roles: what it may do.
        cluster: the only one that it may post for; None for any.
        tenant: the only one whose allocations it may see; None for any.
    """

    id: str
    roles: frozenset[Role]
    cluster: str | None = None
    tenant: str | None = None


LOCAL = Principal(id="local", roles=frozenset(Role))
"""Everybody, on a hub that asks for no tokens; whoever works on the registry itself."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was written, or attempted by somebody who may write.

    Attributes:
        at: by the hub's clock.
        actor: id of the token, or `local`.
        method, path: of the request; `token` and what was done, for work on the registry itself.
        status: of the answer; 0 where there was no request.
        detail: what was asked for, cut short.
    """

    at: dt.datetime
    actor: str
    method: str
    path: str
    status: int
    detail: str = ""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as the log keeps it; the numbers grow."""

    number: int
    entry: AuditEntry


_TOKEN = re.compile(r"gpf_([a-z2-7]{12})_[A-Za-z0-9_-]{43}")


def write_token(id: str, secret: str) -> str:  # noqa: A002 - the word of the domain
    """Put a token together."""
    return f"gpf_{id}_{secret}"


def token_id(token: str) -> str | None:
    """Return the id in a token, or None if it is no token."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def digest(token: str) -> bytes:
    """Return what is kept of a token: 32 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
