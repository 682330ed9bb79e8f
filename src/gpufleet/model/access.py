"""Access control: roles, stored tokens, the principal of a request, and what it permits.

A token is `gpf_ID_SECRET`. The id names it in lists, logs and the audit log; the secret is 32 random bytes and is
not stored. The registry stores the SHA-256 of the whole token. A slow hash protects secrets that can be guessed; 256
random bits cannot be guessed, and a slow hash would cost the hub time on every batch.
"""

import datetime as dt
import enum
import hashlib
import re

import msgspec


class Role(enum.StrEnum):
    """Role of a token."""

    SENDER = "sender"  # posts batches of one cluster; reads nothing
    TENANT = "tenant"  # reads the allocations of one tenant
    OPERATOR = "operator"  # reads everything; acknowledges and silences findings
    ADMIN = "admin"  # as an operator; registers clusters and allocations


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token without its secret.

    Attributes:
        id: unchanged when the secret is rotated.
        role: role of the token.
        created_at: creation time.
        cluster: cluster that a sender posts for; None for every other role.
        tenant: tenant whose allocations the token reads; None for every other role.
        note: free text.
        expires_at: time from which the token is rejected; None means never.
        revoked_at: time since which the token is rejected.
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
    """Stored secret of a token.

    Attributes:
        digest: see `digest`.
        valid_until: end of the overlap after a rotation; None for the newest secret.
    """

    digest: bytes
    valid_until: dt.datetime | None = None


class KnownToken(msgspec.Struct, frozen=True):
    """A token with all secrets that are still valid."""

    token: Token
    secrets: tuple[Secret, ...]


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Authenticated principal of a request.

    Attributes:
        id: token id; `local` on a hub that requires no tokens.
        roles: roles of the principal.
        cluster: the only cluster that it may post for; None for any.
        tenant: the only tenant whose allocations it may see; None for any.
    """

    id: str
    roles: frozenset[Role]
    cluster: str | None = None
    tenant: str | None = None


LOCAL = Principal(id="local", roles=frozenset(Role))
"""Principal of all requests on a hub that requires no tokens, and of commands that work on the registry itself."""


class PostRefusal(enum.StrEnum):
    """Reason why a caller's batches of a cluster would be rejected."""

    NOT_A_SENDER = "not_a_sender"  # the token's role does not post batches
    OTHER_CLUSTER = "other_cluster"  # the token is bound to another cluster
    FOREIGN_CLUSTER = "foreign_cluster"  # the cluster is not served here


class CallerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Access of a caller to a hub or relay: what its token permits, as `GET /v1/access` returns it.

    Attributes:
        id: id of its token; `local` if no tokens are required.
        roles: its roles.
        cluster: the only cluster that it may post for; null for any.
        tenant: the only tenant whose allocations it may see; null for any.
        refusal: why batches of the cluster in the request would be rejected; null if they are accepted, or if the
            request names no cluster and the token is bound to none.
    """

    id: str
    roles: tuple[Role, ...]
    cluster: str | None = None
    tenant: str | None = None
    refusal: PostRefusal | None = None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A write, or an attempted write by a principal with write access.

    Attributes:
        at: time by the hub's clock.
        actor: token id, or `local`.
        method, path: of the request; `token` and the action for work on the registry itself.
        status: HTTP status of the response; 0 if there was no request.
        detail: content of the request, truncated.
    """

    at: dt.datetime
    actor: str
    method: str
    path: str
    status: int
    detail: str = ""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Stored audit entry; numbers are ascending."""

    number: int
    entry: AuditEntry


_TOKEN = re.compile(r"gpf_([a-z2-7]{12})_[A-Za-z0-9_-]{43}")


def write_token(id: str, secret: str) -> str:  # noqa: A002 - the domain term
    """Return the token of an id and a secret."""
    return f"gpf_{id}_{secret}"


def token_id(token: str) -> str | None:
    """Return the id in a token, or None if the text is not a token."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def digest(token: str) -> bytes:
    """Return the stored digest of a token: 32 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
