"""Access of a caller to a hub or relay: what its token permits, as `GET /v1/access` returns it."""

import enum

import msgspec

from gpufleet.model.access import Role


class PostRefusal(enum.StrEnum):
    """Reason why a caller's batches of a cluster would be rejected."""

    NOT_A_SENDER = "not_a_sender"  # the token's role does not post batches
    OTHER_CLUSTER = "other_cluster"  # the token is bound to another cluster
    FOREIGN_CLUSTER = "foreign_cluster"  # the cluster is not served here


class CallerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Access of the caller.

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
