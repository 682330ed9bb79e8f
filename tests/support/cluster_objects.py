"""Batches with objects of a Kubernetes cluster, for tests of stores and queries."""

import msgspec

from gpufleet.model.kubernetes import ClusterPod
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.wire.batch import ClusterPart
from tests.support.accepted import accept


def accept_part(cluster: str, part: ClusterPart, *, at: int, sender: str = "collector", seq: int = 1) -> AcceptedBatch:
    """Return the batch of a collector; `at` is the place of its report in the hub's order."""
    accepted = accept(cluster, "", received_at=at, reported_at=at, sent_at=part.observed_at, seq=seq)
    accepted.batch.sender = sender
    accepted.batch.machines = []
    accepted.batch.cluster_part = part
    return msgspec.structs.replace(accepted, machine_ids=())


def pod(uid: str, **fields: object) -> ClusterPod:
    """Return a pod; its name is that of its UID unless given."""
    return ClusterPod(**{"uid": uid, "namespace": "ml", "name": uid, **fields})  # type: ignore[arg-type]
