"""Holdings of pods, completed on the node: join by UID, outages, restarts, and the states of the reader."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from gpufleet.agent.collect.enrichment import NO_NODE, PodAccess, PodEnrichment
from gpufleet.agent.collect.holders import HolderCollector, SavedHoldings
from gpufleet.agent.collect.saved import SavedFile
from gpufleet.model.absence import Reason
from gpufleet.model.errors import ConfigError
from gpufleet.model.holdings import Holder, HolderKind, Holding, Owner
from gpufleet.model.kubernetes import ChainEnd, ClusterPod, CopyState, CopyStatus
from gpufleet.ports.holder import HolderReport
from tests.agent.collect.test_holders import GPU, HELD, FakeSource, collector
from tests.fakes.clock import FakeClock
from tests.support.snapshots import holding
from tests.support.waiting import wait_until_async

SET = Owner(kind="ReplicaSet", name="a-1", uid="s", api_version="apps/v1")
DEPLOYMENT = Owner(kind="Deployment", name="a", uid="d", api_version="apps/v1")
POD = ClusterPod(
    uid="uid-a",
    namespace="ml",
    name="a",
    labels={"app": "web"},
    annotations={"note": "x"},
    controller=SET,
    owners=(SET, DEPLOYMENT),
    chain_end=ChainEnd.TOP,
    queue="research",
)
GONE = HolderReport()


class FakePods:
    """Copy of pods with settable records and status; their chains are those of the records."""

    def __init__(self, *pods: ClusterPod) -> None:
        self.records = {pod.uid: pod for pod in pods}
        self.rejected = ()
        self.status = CopyStatus(resource="pods", state=CopyState.SYNCED, since=1)
        self.queued = 0
        self.requested: Mapping[str, ClusterPod] = {}
        self.nodes: list[str] = []
        self.is_closed = False

    def merge(self, pods: Mapping[str, ClusterPod]) -> dict[str, ClusterPod]:
        self.requested = dict(pods)
        return dict(pods)

    async def run(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        self.is_closed = True

    def connect(self, node: str) -> PodAccess:
        self.nodes.append(node)
        return PodAccess(self, self, self.close)


@contextlib.asynccontextmanager
async def following(pods: FakePods) -> AsyncIterator[PodEnrichment]:
    """Run the reader of the pods of the node `gpu-1`."""
    enrichment = PodEnrichment(pods.connect)
    task = asyncio.create_task(enrichment.run(lambda: "gpu-1"))

    async def is_open() -> bool:
        return not enrichment.capability.startswith(NO_NODE)

    try:
        await wait_until_async(is_open)
        yield enrichment
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def holder_of(holders: HolderCollector) -> Holder:
    return holders.devices[GPU.key].holdings[0].holder


async def test_pod_gains_owners_labels_and_queue_by_its_uid() -> None:
    other = msgspec.structs.replace(POD, uid="uid-b", name="b")
    pods = FakePods(POD, other)
    async with following(pods) as enrichment:
        holders = collector(FakeSource(HELD), pods=enrichment)
        assert await holders.round([GPU])
        holder = holder_of(holders)
        assert (holder.owners, holder.labels, holder.queue) == ((SET, DEPLOYMENT), {"app": "web"}, "research")
        assert (holder.annotations, holder.namespace, holder.name) == ({"note": "x"}, "ml", "a")
        assert [one.holder for one in holders.due()] == [holder]
        assert pods.requested.keys() == {"uid-a"}  # chains of pods without a device are not resolved
        before = holders.devices[GPU.key]
        assert not await holders.round([GPU])
        assert holders.devices[GPU.key] is before
        assert holders.capabilities["holders_kubernetes"] == "available"
    assert (pods.nodes, pods.is_closed) == (["gpu-1"], True)


@pytest.mark.parametrize("pod", [msgspec.structs.replace(POD, uid="uid-b"), msgspec.structs.replace(POD, name="b")])
async def test_pod_that_is_not_the_holder_adds_nothing(pod: ClusterPod) -> None:
    async with following(FakePods(pod)) as enrichment:
        holders = collector(FakeSource(HELD), pods=enrichment)
        await holders.round([GPU])
        assert (holder_of(holders).owners, holder_of(holders).labels) == ((), {})


async def test_job_and_pod_without_uid_are_not_joined() -> None:
    named = msgspec.structs.replace(POD, uid="ml/a")
    async with following(FakePods(POD, named)) as enrichment:
        for kind, id_ in ((HolderKind.JOB, "uid-a"), (HolderKind.POD, "ml/a")):
            one = holding(Holder(kind=kind, id=id_))
            enrichment.update([one])
            assert enrichment.complete(one) is one


async def test_owners_stay_for_the_holding_and_its_end() -> None:
    clock, source, pods = FakeClock(), FakeSource(HELD), FakePods(POD)
    async with following(pods) as enrichment:
        holders = collector(source, clock=clock, pods=enrichment)
        await holders.round([GPU])
        holders.due()
        holders.note_delivered()
        pods.records = {}
        pods.status = msgspec.structs.replace(pods.status, state=CopyState.STALE, detail="no answer")
        await holders.round([GPU])
        assert holder_of(holders).owners == (SET, DEPLOYMENT)
        assert holders.capabilities["holders_kubernetes"] == "stale: no answer"

        source.answer = GONE
        for _ in range(3):
            clock.advance(10)
            await holders.round([GPU])
        (ended,) = holders.due()
        assert ended.until is not None
        assert ended.holder.owners == (SET, DEPLOYMENT)
        holders.note_delivered()
        source.answer = HELD
        for _ in range(2):
            await holders.round([GPU])
        assert holder_of(holders).owners == ()  # nothing is kept of an earlier holding


@pytest.mark.parametrize("end", [ChainEnd.UNREACHABLE, ChainEnd.FORBIDDEN])
async def test_shorter_chain_replaces_no_known_chain(end: ChainEnd) -> None:
    pods = FakePods(POD)
    async with following(pods) as enrichment:
        holders = collector(FakeSource(HELD), pods=enrichment)
        await holders.round([GPU])
        pods.records = {
            POD.uid: msgspec.structs.replace(POD, owners=(SET,), chain_end=end, queue="", labels={"app": "api"}),
        }
        await holders.round([GPU])
        assert (holder_of(holders).owners, holder_of(holders).queue) == ((SET, DEPLOYMENT), "research")
        assert holder_of(holders).labels == {"app": "api"}
        assert f"ReplicaSet ({end})" in holders.capabilities["holders_kubernetes"]


async def test_state_after_a_crash_is_not_that_of_before() -> None:
    class CrashingPods(FakePods):
        async def run(self) -> NoReturn:
            raise ZeroDivisionError

    pods = CrashingPods(POD)
    enrichment = PodEnrichment(pods.connect)
    await enrichment.settle("gpu-1", [])
    assert enrichment.capability.startswith(Reason.READER_FAILED)
    assert pods.is_closed


async def test_owners_survive_a_restart_without_the_api_server(tmp_path: Path) -> None:
    def restarted(enrichment: PodEnrichment) -> HolderCollector:
        file = SavedFile(tmp_path / "holdings.json", SavedHoldings, loss="holdings begin again")
        return collector(FakeSource(HELD), pods=enrichment, file=file, boot="b")

    async with following(FakePods(POD)) as enrichment:
        await restarted(enrichment).round([GPU])
    holders = restarted(PodEnrichment(FakePods().connect))
    await holders.round([GPU])
    assert (holder_of(holders).owners, holder_of(holders).labels) == ((SET, DEPLOYMENT), {"app": "web"})


@pytest.mark.parametrize(
    ("status", "pod", "reason"),
    [
        ({"state": CopyState.STARTING}, POD, "not_collected"),
        ({"state": CopyState.STARTING, "detail": "refused"}, POD, "reader_failed"),
        ({"state": CopyState.FORBIDDEN, "detail": "403"}, POD, "not_permitted"),
        ({"state": CopyState.STALE, "detail": "401"}, POD, "stale"),
        ({"is_complete": False}, POD, "partial"),
        ({"rejected": 1, "example": "ml/x: no UID"}, POD, "partial"),
        ({}, msgspec.structs.replace(POD, owners=(SET,), chain_end=ChainEnd.FORBIDDEN), "partial"),
        ({}, msgspec.structs.replace(POD, owners=(SET,), chain_end=ChainEnd.NOT_FOUND), "available"),
    ],
)
async def test_state_names_what_is_missing(status: dict[str, object], pod: ClusterPod, reason: str) -> None:
    pods = FakePods(pod)
    async with following(pods) as enrichment:
        pods.status = msgspec.structs.replace(pods.status, **status)
        holders = collector(FakeSource(HELD), pods=enrichment)
        await holders.round([GPU])
        assert holders.capabilities["holders_kubernetes"].partition(":")[0] == reason
        assert holder_of(holders).name == "a"


async def test_nothing_is_opened_before_the_name_of_the_node_is_known() -> None:
    pods, requested = FakePods(POD), asyncio.Event()
    enrichment = PodEnrichment(pods.connect)

    def node() -> str:
        requested.set()
        return ""

    task = asyncio.create_task(enrichment.run(node))
    await requested.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await enrichment.settle("", [])
    assert (enrichment.capability, pods.nodes) == (NO_NODE, [])


async def test_unusable_credentials_cost_the_owners_only() -> None:
    def connect(node: str) -> PodAccess:
        raise ConfigError("/etc/gpufleet/kubeconfig", "", "no usable credentials of a cluster")

    enrichment = PodEnrichment(connect)
    holders = collector(FakeSource(HELD), pods=enrichment)
    await holders.round([GPU])
    await holders.settle("gpu-1")
    assert holder_of(holders).name == "a"
    assert holders.capabilities["holders_kubernetes"].startswith("reader_failed: /etc/gpufleet/kubeconfig")


async def test_single_round_waits_for_pods_and_owners() -> None:
    pods = FakePods(POD)
    holders = collector(FakeSource(HELD), pods=PodEnrichment(pods.connect))
    await holders.round([GPU])
    assert holder_of(holders).owners == ()
    await holders.settle("gpu-1")
    assert holder_of(holders).owners == (SET, DEPLOYMENT)
    assert holders.capabilities["holders_kubernetes"] == "available"
    assert pods.is_closed


def test_launcher_pod_has_its_machine_after_a_restart() -> None:
    vmi = Owner(kind="VirtualMachineInstance", name="vm-0", uid="vmi-uid", api_version="kubevirt.io/v1")
    pod = Holder(kind=HolderKind.POD, id="uid-a", name="virt-launcher-vm-0-x", namespace="ml", owners=(vmi,))
    before: Holding = holding(pod)
    enrichment = PodEnrichment(FakePods().connect)
    enrichment.remember([before])
    bare = msgspec.structs.replace(before, holder=msgspec.structs.replace(pod, owners=()))
    enrichment.update([bare])
    parent = enrichment.complete(bare).parent
    assert parent is not None
    assert (parent.kind, parent.id, parent.name) == (HolderKind.VM, "vmi-uid", "vm-0")
