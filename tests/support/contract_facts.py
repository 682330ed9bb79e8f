"""Facts of a cluster that meets every item of the adoption contract, and contracts for tests."""

import datetime as dt
from typing import Any

import msgspec

from gpufleet.fleet.contract.facts import ClusterFacts, GpuSource, MachineFacts, MachineGroup
from gpufleet.model.api.answer import Coverage
from gpufleet.model.api.kubernetes import ClusterCollection, CollectionState, CollectorRecord, CopyRecord
from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.kubernetes import CopyState
from gpufleet.model.liveness import ExpectedGpus, Liveness, State

NOW = 1_790_000_000_000_000_000
AT = dt.datetime.fromtimestamp(NOW / 1e9, dt.UTC)

MACHINE = MachineFacts(
    state=State.LIVE,
    unseen_days=0,
    source=GpuSource.AGENT,
    is_scraped=False,
    in_kubernetes=True,
    version="0.5.1",
    heartbeat_seconds=30,
    clock_ahead_seconds=1,
    missing_batches=0,
    dropped_batches=0,
    expected_gpus=8,
    reporting_gpus=8,
    identified_gpus=8,
    usage_gpus=8,
    condition_gpus=8,
    invalid_gpus=0,
    unattributed_gpus=0,
    interval_seconds=10,
    value_age_seconds=60,
    driver_works=True,
    xids_watched=True,
    evidence=("system_uuid", "machine_id", "name"),
    identity_conflict=False,
    region="eu-1",
    zone="eu-1a",
    instance_type="hgx-h200",
    has_pool=True,
)
"""Node with 8 GPUs that meets every item of tier 3."""

SPEC = ClusterSpec(environment="production", team="training", contact="gpu@example", expected={"H200": 16})


def copies(**states: CopyState) -> tuple[CopyRecord, ...]:
    """Return the copies of a collector, synced unless given by the plural name."""
    names = ("nodes", "pods", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io")
    return tuple(
        CopyRecord(resource=name, state=states.get(name.partition(".")[0], CopyState.SYNCED), objects=2)
        for name in names
    )


def collector(**changes: Any) -> CollectorRecord:
    """Return a collector that reports now."""
    record = CollectorRecord(
        sender="collector-0",
        server_version="v1.34.0",
        system_uid="uid-1",
        observed_at=AT,
        received_at=AT,
        age_seconds=4.0,
        current=True,
        copies=copies(),
    )
    return msgspec.structs.replace(record, **changes)


def collection(*collectors: CollectorRecord, **changes: Any) -> ClusterCollection:
    """Return the collection of a cluster."""
    return msgspec.structs.replace(
        ClusterCollection(state=CollectionState.CURRENT, collectors=collectors or (collector(),)), **changes
    )


def coverage(expected: int | None = 16, reporting: int = 16, **sources: int | None) -> Coverage:
    """Return the coverage of a cluster; sources agree unless given."""
    return Coverage(
        cluster="east",
        reporting=reporting,
        expected=expected,
        expected_by="registration",
        sources=ExpectedGpus(**{"registration": expected, "pci": expected, **sources}),
        summary="",
    )


def liveness(state: State = State.LIVE) -> Liveness:
    """Return the liveness of a cluster."""
    return Liveness(state=state, unseen_seconds=12.0)


NO_COLLECTION = ClusterCollection(state=CollectionState.ABSENT, detail="no collector of this cluster has reported")


def machine(**changes: Any) -> MachineFacts:
    """Return the facts of `MACHINE` with changes."""
    return msgspec.structs.replace(MACHINE, **changes)


def cluster(*machines: MachineGroup, **changes: Any) -> ClusterFacts:
    """Return a Kubernetes cluster of two nodes that meets every item of tier 3, with changes."""
    facts = ClusterFacts(
        cluster="east",
        at=NOW,
        hub_version="0.6.0",
        spec=SPEC,
        liveness=liveness(),
        coverage=coverage(),
        collection=collection(),
        machines=machines or (MachineGroup(MACHINE, ("node-1", "node-2")),),
        unacknowledged_critical_seconds=0.0,
    )
    return msgspec.structs.replace(facts, **changes)


def bare(*machines: MachineGroup, **changes: Any) -> ClusterFacts:
    """Return a cluster without Kubernetes that meets every item of tier 4, with changes."""
    own = machines or (MachineGroup(machine(in_kubernetes=False, has_pool=None), ("host-1", "host-2")),)
    return cluster(*own, **{"collection": NO_COLLECTION, **changes})
