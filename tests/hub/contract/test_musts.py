"""Each MUST item that a hub checks: a fault of a reporting cluster changes exactly its item, within its time."""

import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpufleet.fleet.contract.check import ItemStatus
from gpufleet.fleet.contract.records import CheckPlace, Requirement
from gpufleet.fleet.contract.report import ConformanceStatus
from gpufleet.model.kubernetes import CopyState, CopyStatus
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Provenance, Sample
from gpufleet.model.time import NANOS
from gpufleet.model.view import View
from gpufleet.model.wire.batch import Batch, ClusterPart, MachineReport
from gpufleet.wiring.contract import load_contract
from tests.hub.contract.contract_fleet import BARE, CLEAN, COLLECTED, ContractFleet, Rewrite

CONTRACT = load_contract()
MUSTS = {one.id for one in CONTRACT.items if one.level is Requirement.MUST and one.on is CheckPlace.HUB}
UNMET = (ConformanceStatus.MISSING, ConformanceStatus.PARTIAL)
UNMET_BEFORE = {"exposition.usage", "exposition.gpus_located"}
"""Items that the cluster `BARE` does not meet without a further fault."""

HIDDEN_NODE = frozenset({"exposition.gpus_report", "freshness.machines", "freshness.age"})
"""Items of a node without reports: its values are old, and its GPUs have none."""


def heartbeats(**changes: Any) -> Rewrite:
    """Return the change of the heartbeats of agents."""

    def rewrite(batch: Batch) -> Batch:
        if batch.heartbeat is None or batch.cluster_part is not None:
            return batch
        return msgspec.structs.replace(batch, heartbeat=msgspec.structs.replace(batch.heartbeat, **changes))

    return rewrite


def samples(change: Callable[[Sample], Sample | None]) -> Rewrite:
    """Return the change of each sample."""

    def rewrite(batch: Batch) -> Batch:
        reports = [
            msgspec.structs.replace(one, samples=tuple(new for old in one.samples if (new := change(old)) is not None))
            for one in batch.reports
        ]
        return msgspec.structs.replace(batch, reports=tuple(reports))

    return rewrite


def part(change: Callable[[ClusterPart], ClusterPart]) -> Rewrite:
    """Return the change of the objects of collectors."""

    def rewrite(batch: Batch) -> Batch:
        if batch.cluster_part is None:
            return batch
        return msgspec.structs.replace(batch, cluster_part=change(batch.cluster_part))

    return rewrite


def without(*metrics: str) -> Rewrite:
    """Return the removal of metrics."""
    return samples(
        lambda one: msgspec.structs.replace(
            one, values={name: value for name, value in one.values.items() if name not in metrics}
        )
    )


def forbid_pods(objects: ClusterPart) -> ClusterPart:
    copies = [
        msgspec.structs.replace(one, state=CopyState.FORBIDDEN) if one.resource == "pods" else one
        for one in objects.copies
    ]
    return msgspec.structs.replace(objects, copies=copies)


def without_collector(batch: Batch) -> Batch | None:
    return None if batch.sender.endswith("-collector") else batch


def with_value(metric: str, value: str) -> Rewrite:
    """Return the change of a metric where it is reported."""
    return samples(
        lambda one: msgspec.structs.replace(one, values={**one.values, metric: value}) if metric in one.values else one
    )


def without_gpu(batch: Batch) -> Batch | None:
    """Drop the samples of the second GPU of the first node."""
    return samples(lambda one: None if batch.sender == NODE and one.view and one.view.index == 1 else one)(batch)


def without_gpus(batch: Batch) -> Batch | None:
    """Drop the samples of all GPUs of a node: its agent lives."""
    return samples(lambda one: None if batch.sender == NODE and one.view is not None else one)(batch)


def without_uuid(sample: Sample) -> Sample:
    view = sample.view
    if view is None:
        return sample
    place = f"0000:{view.index or 0:02x}:00.0"
    return msgspec.structs.replace(sample, view=View(kind=view.kind, side=view.side, pci_address=place))


def with_interval(batch: Batch) -> Batch:
    """Declare an interval of two minutes for every reader."""
    reports = [
        msgspec.structs.replace(
            one, readers=tuple([msgspec.structs.replace(each, interval_seconds=120.0) for each in one.readers])
        )
        for one in batch.reports
    ]
    return msgspec.structs.replace(batch, reports=tuple(reports))


def off_clock(batch: Batch) -> Batch | None:
    """Set the clock of an agent 9 s ahead."""
    if batch.cluster_part is not None:
        return batch
    ahead = samples(lambda one: msgspec.structs.replace(one, measured_at=one.measured_at + 9 * NANOS))
    return ahead(msgspec.structs.replace(batch, sent_at=batch.sent_at + 9 * NANOS))


def imported(sample: Sample) -> Sample:
    """Return a sample as an agent reads it from an exporter of its node."""
    if sample.view is None:
        return sample
    return msgspec.structs.replace(sample, provenance=Provenance.IMPORTED)


NODE = "sim-1-n0001"


def second_sender(fleet: ContractFleet, cluster: str = CLEAN, **content: Any) -> None:
    """Let a further sender report in the cluster."""
    numbers = itertools.count(1)

    def batches() -> Sequence[Batch]:
        at, number = fleet.hub.clock.now_ns(), next(numbers)
        return [Batch(cluster=cluster, sender="another", epoch="f" * 32, seq=number, sent_at=at, **content)]

    fleet.more = batches


def second_collector(fleet: ContractFleet) -> None:
    """Let a collector of another Kubernetes cluster report with the id of this cluster."""
    at = fleet.hub.clock.now_ns()
    copies = [CopyStatus(resource="nodes", state=CopyState.SYNCED, since=at)]
    second_sender(fleet, cluster_part=ClusterPart(observed_at=at, system_uid="another", copies=copies))


def cloned_disk(fleet: ContractFleet) -> None:
    """Let a machine with a copy of the disk of a host report. It has no GPU."""
    clone = Machine(name="clone", machine_id=fleet.host.machine.machine_id, boot_id="boot-of-clone")
    second_sender(fleet, BARE, reports=(MachineReport(machine=clone, inventory=()),))


@dataclasses.dataclass(frozen=True)
class Fault:
    """Fault of a cluster.

    Attributes:
        apply: begins it.
        minutes: time within which the item has to change: the documented one, and at most a minute until the verdict.
        others: further items that the same fault breaks.
        cluster: cluster with the fault.
    """

    apply: Callable[[ContractFleet], None]
    minutes: int = 2
    others: frozenset[str] = frozenset()
    cluster: str = CLEAN


def rewritten(rewrite: Rewrite, minutes: int = 2, others: frozenset[str] = frozenset(), cluster: str = CLEAN) -> Fault:
    return Fault(lambda fleet: fleet.rewrites[cluster].append(rewrite), minutes, others, cluster)


def registered(**changes: Any) -> Fault:
    return Fault(lambda fleet: fleet.register(CLEAN, tier=3, **changes), 1)


DECLARED = frozenset({"metadata.environment", "metadata.expected_gpus", "ownership.team", "ownership.contact"})

# fmt: off
FAULTS = {
    "node.agent": rewritten(samples(imported), 22),
    "node.agent_version": rewritten(heartbeats(version="9.0.0")),
    "node.driver": rewritten(with_value("nvidia_driver_state", "mismatch")),
    "cluster.collector": rewritten(without_collector, 33),
    "cluster.identity": Fault(second_collector),
    "permission.inventory": rewritten(part(forbid_pods)),
    "metadata.environment": registered(environment=None),
    "metadata.expected_gpus": registered(expected={}),
    "metadata.machine_identity": Fault(cloned_disk, cluster=BARE),
    "metadata.gpu_uuid": rewritten(samples(without_uuid)),
    "exposition.push": rewritten(heartbeats(answered_at=1)),
    "exposition.usage": rewritten(without("gpu_utilization_ratio"), 4),
    "exposition.gpus_report": rewritten(without_gpu, 4),
    "exposition.gpus_located": registered(expected={"H200": 6}),
    "freshness.cluster": rewritten(lambda _: None, 7, cluster=COLLECTED),
    "freshness.machines": rewritten(lambda one: None if one.sender == NODE else one, 7, HIDDEN_NODE),
    "freshness.heartbeat": rewritten(heartbeats(interval_seconds=120.0)),
    "freshness.interval": rewritten(with_interval),
    "freshness.age": rewritten(without_gpus, 7, frozenset({"exposition.gpus_report"})),
    "freshness.clock": rewritten(off_clock),
    "ownership.team": registered(team=None),
    "ownership.contact": registered(contact=None),
}
# fmt: on


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[ContractFleet]:
    made = ContractFleet(tmp_path, reporting=(CLEAN, COLLECTED))
    made.register(CLEAN, tier=3)
    yield made
    made.hub.end()


def unmet(fleet: ContractFleet, cluster: str) -> set[str]:
    """Return the MUST items that a cluster does not meet."""
    return {item for item, status in fleet.statuses(cluster).items() if status in UNMET and item in MUSTS}


@pytest.mark.parametrize("item", FAULTS)
async def test_fault_changes_exactly_its_item_in_time(fleet: ContractFleet, item: str) -> None:
    fault = FAULTS[item]
    await fleet.run(3)
    before = unmet(fleet, fault.cluster)
    assert before == (UNMET_BEFORE if fault.cluster == BARE else set())
    fault.apply(fleet)
    for _ in range(fault.minutes):
        await fleet.run(1)
        found = unmet(fleet, fault.cluster)
        assert found - before <= {item} | fault.others
    assert item in found
    assert {one.item for one in fleet.report(fault.cluster).not_visible} == found


async def test_heartbeat_of_a_polled_target_meets_no_item(fleet: ContractFleet) -> None:
    items = ("node.agent_version", "freshness.heartbeat", "freshness.clock", "freshness.delivery")
    await fleet.run(3)
    assert {fleet.statuses(CLEAN)[one] for one in items} == {ConformanceStatus.IMPLEMENTED}
    rewritten(heartbeats(answered_at=1)).apply(fleet)
    await fleet.run(3)
    assert {fleet.statuses(CLEAN)[one] for one in items} == {ConformanceStatus.UNKNOWN}


def test_every_must_of_the_hub_has_a_fault() -> None:
    assert FAULTS.keys() | {"metadata.registration"} == MUSTS


async def test_cluster_that_is_not_registered_has_no_declared_metadata(tmp_path: Path) -> None:
    fleet = ContractFleet(tmp_path, unregistered=[CLEAN])
    await fleet.run(3)
    assert unmet(fleet, CLEAN) == {"metadata.registration"} | DECLARED
    assert fleet.hub.contract.counts()[CLEAN, ItemStatus.NOT_MET] > 0
    fleet.hub.end()
