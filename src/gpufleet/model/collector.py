"""State of a cluster collector, as it shows it to its operator."""

import msgspec

from gpufleet.model.kubernetes import ClusterClaim, ClusterNode, ClusterPod, ClusterSlice, ClusterVmi, CopyStatus

SNAPSHOT_SCHEMA = 1


class CollectorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replica of a collector. Instants are nanoseconds since 1970.

    Attributes:
        cluster: id of the cluster; empty without a hub.
        replica: name of this replica, which is its sender's name.
        started_at: start of the process.
        is_leader: whether this replica reports objects. The others send heartbeats only.
        leader: identity of the leader as last seen: its name and a random part; empty if unknown.
        election_error: error of the last attempt to read or renew the Lease, or empty.
        system_uid, server_version: identity of the cluster; empty if unknown.
        identity_error: why `system_uid` is unknown, or empty.
        copies: state of the copy of each resource.
        left_out: some of the objects that the batch format does not permit, with the reason.
        queued_walks: number of pods whose owner chain is being resolved.
        push: `available`, or the reason why nothing is pushed.
    """

    cluster: str
    replica: str
    started_at: int
    is_leader: bool
    leader: str
    election_error: str
    system_uid: str
    server_version: str
    identity_error: str
    copies: tuple[CopyStatus, ...]
    left_out: tuple[str, ...]
    queued_walks: int
    push: str


class CollectorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of a collector with their objects, in order of name.

    Attributes:
        schema: version of this document.
        at: time of the document.
        status: state of the replica.
        nodes, pods, slices, claims, vmis: objects of the copies.
    """

    schema: int = SNAPSHOT_SCHEMA
    at: int
    status: CollectorStatus
    nodes: tuple[ClusterNode, ...] = ()
    pods: tuple[ClusterPod, ...] = ()
    slices: tuple[ClusterSlice, ...] = ()
    claims: tuple[ClusterClaim, ...] = ()
    vmis: tuple[ClusterVmi, ...] = ()
