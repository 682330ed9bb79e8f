"""Collectors of Kubernetes clusters, and the Kubernetes node of a machine, in answers."""

import datetime as dt
import enum

import msgspec

from gpufleet.model.kubernetes import CopyState, NodeTaint


class CollectionState(enum.StrEnum):
    """Whether the Kubernetes objects of a cluster are known."""

    CURRENT = "current"  # every resource that the API server has is copied
    PARTIAL = "partial"  # a resource is not copied, or its copy is stale or incomplete
    CONFLICT = "conflict"  # collectors report different Kubernetes clusters
    ABSENT = "absent"  # no collector reports now


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Copy of a resource.

    Attributes:
        resource: `plural.group`.
        state: as the collector reports it.
        current_at: when the copy was last known to be current; None before its first complete list.
        age_seconds: since then, or None.
        detail, objects, rejected, example, is_complete: as in `CopyStatus`.
    """

    resource: str
    state: CopyState
    current_at: dt.datetime | None = None
    age_seconds: float | None = None
    detail: str = ""
    objects: int = 0
    rejected: int = 0
    example: str = ""
    is_complete: bool = True


class CollectorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Collector of a cluster.

    Attributes:
        sender: its name.
        server_version: version of the API server; empty if unknown.
        system_uid: UID of the namespace `kube-system`; empty if unknown.
        observed_at: time of its newest report, by its clock.
        received_at: time of that report, by the hub's clock.
        age_seconds: since the earlier of both.
        current: whether it reported in the last 31 minutes.
        copies: its copy of each resource.
    """

    sender: str
    server_version: str
    system_uid: str
    observed_at: dt.datetime
    received_at: dt.datetime
    age_seconds: float
    current: bool
    copies: tuple[CopyRecord, ...]


class ClusterCollection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Collection of the Kubernetes objects of a cluster.

    Attributes:
        state: the state.
        detail: the reason of a state other than `current`.
        collectors: the newest first.
    """

    state: CollectionState
    detail: str = ""
    collectors: tuple[CollectorRecord, ...] = ()


class KubernetesNodeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Kubernetes node of a machine.

    Attributes:
        uid, name: as in the API.
        age_seconds: since the collector last reported it.
        ready: status of its condition `Ready`: True, False or Unknown; empty if not reported.
        cordoned: whether new pods are kept from it (`spec.unschedulable`).
        taints: those that keep pods without a toleration from it.
        pools: its labels that name a node pool or class.
    """

    uid: str
    name: str
    age_seconds: float
    ready: str = ""
    cordoned: bool = False
    taints: tuple[NodeTaint, ...] = ()
    pools: dict[str, str] = {}
