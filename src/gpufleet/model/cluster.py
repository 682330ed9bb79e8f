"""A cluster as it was registered with a hub."""

import datetime as dt
from typing import Annotated

import msgspec

from gpufleet.model.allocation import Name
from gpufleet.model.api.answer import Coverage
from gpufleet.model.liveness import Freshness


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of `PUT /v1/clusters/{id}`.

    Attributes:
        environment: such as `production`.
        team: who runs it.
        contact: whom to ask.
        expected: number of GPUs per class name that it should have; an empty map claims nothing.
    """

    environment: Name | None = None
    team: Name | None = None
    contact: Name | None = None
    expected: dict[Name, Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]] = {}


class Cluster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cluster as the registry keeps it.

    Attributes:
        id: given by the caller; agents name it in every batch.
        known_since: when the hub first knew of it.
        spec: what was registered; None if only a configuration ever named it.
        closed_at: when it was deleted (closed, never erased), or None.
    """

    id: str
    known_since: dt.datetime
    spec: ClusterSpec | None = None
    closed_at: dt.datetime | None = None


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cluster in an answer.

    Attributes:
        cluster: as it is kept.
        served: whether the hub takes batches of it now.
        configured: whether the hub's configuration names it.
        freshness: who of it was heard of how recently, and up to when it is complete.
        coverage: how many of its GPUs report.
    """

    cluster: Cluster
    served: bool
    configured: bool
    freshness: Freshness | None = None
    coverage: Coverage | None = None
