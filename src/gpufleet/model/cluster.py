"""Clusters registered with a hub."""

import datetime as dt
from typing import Annotated

import msgspec

from gpufleet.model.allocation import Name
from gpufleet.model.api.answer import Coverage
from gpufleet.model.api.kubernetes import ClusterCollection
from gpufleet.model.contract import ContractSummary, ContractWaiver, Tier
from gpufleet.model.finding import Severity
from gpufleet.model.liveness import ClusterFreshness

MAX_WAIVERS = 100

NetdataUrl = Annotated[
    str,
    msgspec.Meta(max_length=1024, pattern=r"^https?://[A-Za-z0-9._:{}\[\]-]+(/[A-Za-z0-9._~:/?#!$&()*+,;=%{}@-]*)?$"),
]
"""URL of Netdata without credentials. `{node}` stands for the host name of a node."""


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `PUT /v1/clusters/{id}`.

    Attributes:
        environment: such as `production`.
        team: responsible team.
        contact: contact of the team.
        expected: expected number of GPUs per class name; an empty map expects nothing.
        tier: tier of the adoption contract by which the cluster is judged; None for that of most of its machines.
        waivers: waivers of items of the contract.
        netdata_url: URL of the operator's Netdata about a node, such as `http://{node}:19999/`: operators see a link on
            the node's page.
    """

    environment: Name | None = None
    team: Name | None = None
    contact: Name | None = None
    expected: dict[Name, Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]] = {}
    tier: Tier | None = None
    waivers: Annotated[tuple[ContractWaiver, ...], msgspec.Meta(max_length=MAX_WAIVERS)] = ()
    netdata_url: NetdataUrl | None = None


class Cluster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored cluster.

    Attributes:
        id: chosen by the client; agents send it in every batch.
        known_since: time when the hub first knew the cluster.
        spec: registered spec; None if the cluster is only named in a configuration.
        closed_at: time of deletion (closed, never erased), or None.
    """

    id: str
    known_since: dt.datetime
    spec: ClusterSpec | None = None
    closed_at: dt.datetime | None = None


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Cluster in a response.

    Attributes:
        cluster: stored cluster.
        served: whether the hub accepts its batches now.
        configured: whether the hub's configuration names it.
        freshness: liveness of its senders and machines, and the instant up to which its data is complete.
        coverage: number of its GPUs that report.
        contract: verdict by the adoption contract; None if it was not judged since the hub's start, or is closed.
        machines: number of its machines that are not retired.
        collection: collection of its Kubernetes objects.
        findings: number of its open findings by severity; None if the rules were not evaluated since the hub's start.
        max_machines: limit on that number; batches with further machines get 403 `too_many_machines`.
        machines_ratio: use of the nearest limit on machines: that one, half of it by one sender, or four times with
            retired machines.
    """

    cluster: Cluster
    served: bool
    configured: bool
    freshness: ClusterFreshness | None = None
    coverage: Coverage | None = None
    collection: ClusterCollection | None = None
    findings: dict[Severity, int] | None = None
    contract: ContractSummary | None = None
    machines: int | None = None
    max_machines: int | None = None
    machines_ratio: float | None = None
