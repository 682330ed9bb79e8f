"""Objects of Kubernetes clusters as collectors reported them, and queries for them."""

import enum

import msgspec

from gpufleet.model.kubernetes import ClusterClaim, ClusterNode, ClusterPod, ClusterSlice, ClusterVmi, CopyStatus

ClusterObject = ClusterNode | ClusterPod | ClusterSlice | ClusterClaim | ClusterVmi


class ObjectKind(enum.StrEnum):
    """Resource of an object, as `plural.group`."""

    NODE = "nodes"
    POD = "pods"
    SLICE = "resourceslices.resource.k8s.io"
    CLAIM = "resourceclaims.resource.k8s.io"
    VMI = "virtualmachineinstances.kubevirt.io"


RECORDS: dict[ObjectKind, type[ClusterObject]] = {
    ObjectKind.NODE: ClusterNode,
    ObjectKind.POD: ClusterPod,
    ObjectKind.SLICE: ClusterSlice,
    ObjectKind.CLAIM: ClusterClaim,
    ObjectKind.VMI: ClusterVmi,
}
"""Record of each kind of object."""


class ObjectReport(msgspec.Struct, frozen=True, kw_only=True):
    """Newest report of an object, or of its end, by a collector.

    Attributes:
        sender: name of the collector.
        uid: of the object.
        record: the object; None for the report of an end.
        observed_at: time of the state, by the collector's clock.
        reported_at: time of the report, by the hub's clock.
        ended_at: time of the end, by the collector's clock; None for the report of an object.
    """

    sender: str
    uid: str
    record: ClusterObject | None
    observed_at: int
    reported_at: int
    ended_at: int | None = None


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """Object of a cluster as last reported. Instants are nanoseconds since 1970.

    Attributes:
        cluster: cluster of the collector that reported it.
        record: the object.
        known_at: time of the newest report of it: that of its state or of its receipt, whichever is earlier.
        ended_at: its end; None if no end was reported since.
    """

    cluster: str
    record: ClusterObject
    known_at: int
    ended_at: int | None = None


class ObjectQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for objects of a kind in a cluster.

    Attributes:
        cluster, kind: of the objects.
        uids, names: objects with one of these UIDs or one of these names (`object_names`); None for no condition.
        since: only objects with a report since then, nanoseconds since 1970 by the hub's clock.
    """

    cluster: str
    kind: ObjectKind
    uids: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    since: int = 0


class StoredCollector(msgspec.Struct, frozen=True, kw_only=True):
    """Newest report of a collector about itself.

    Attributes:
        sender: its name.
        observed_at: time of the report by its clock.
        reported_at: time of the report by the hub's clock.
        system_uid, server_version, copies: as in `ClusterPart`.
    """

    sender: str
    observed_at: int
    reported_at: int
    system_uid: str
    server_version: str
    copies: tuple[CopyStatus, ...]

    @property
    def known_at(self) -> int:
        """Return the time of the report by either clock, whichever is earlier."""
        return min(self.observed_at, self.reported_at)


def object_names(record: ClusterObject) -> tuple[str, ...]:
    """Return the texts by which an object is searched besides its UID.

    A node has its name, machine id and system UUID; another object has `namespace/name`.
    """
    match record:
        case ClusterNode():
            names = (record.name, record.machine_id.lower(), record.system_uuid.lower())
            return tuple(dict.fromkeys(name for name in names if name))
        case ClusterSlice():
            return (record.name,)
        case _:
            return (f"{record.namespace}/{record.name}",)
