"""Reports of one replica to a hub: as leader, as standby, and between both."""

import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from gpufleet.cluster.collector import STATUS_SECONDS, ClusterCollector
from gpufleet.config.agent import HubClientConfig, SpoolConfig
from gpufleet.delivery.outbox import Delivery
from gpufleet.model.kubernetes import (
    ClusterDevice,
    ClusterNode,
    ClusterPod,
    ClusterSlice,
    CopyState,
    CopyStatus,
    GpuRequest,
    GpuResourceKind,
    NodeGpuResource,
)
from gpufleet.model.stored.kubernetes import ClusterObject, ObjectKind
from gpufleet.model.wire.batch import ClusterPart
from gpufleet.ports.cluster import ClusterIdentity
from gpufleet.wiring.delivery import open_delivery
from tests.fakes.clock import FakeClock
from tests.fakes.hub import FakeHub

GPUS = (NodeGpuResource(name="nvidia.com/gpu", kind=GpuResourceKind.GPU, capacity=8, allocatable=8),)


class FakeCopy:
    """Copy with scripted content."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.content: dict[str, ClusterObject] = {}
        self.state = CopyState.SYNCED
        self.since = 1

    @property
    def records(self) -> Mapping[str, ClusterObject]:
        return self.content

    @property
    def rejected(self) -> Collection[str]:
        return ()

    @property
    def status(self) -> CopyStatus:
        return CopyStatus(resource=self.resource, state=self.state, since=self.since, objects=len(self.content))

    async def run(self) -> NoReturn:
        raise AssertionError("the test calls cycle")


class FakeElection:
    """Election with a scripted result."""

    def __init__(self) -> None:
        self.is_leader = True
        self.holder = self.identity = "replica-1_1"
        self.error = ""
        self.is_released = False

    async def run(self) -> NoReturn:
        raise AssertionError("the test calls cycle")

    async def release(self) -> None:
        self.is_released = True


class FakeIdentity:
    async def read(self) -> ClusterIdentity:
        return ClusterIdentity("system-uid", "v1.36.2")


class Site:
    """Collector with a spool, and the hub that receives its batches."""

    def __init__(self, delivery: Delivery, hub: FakeHub, clock: FakeClock) -> None:
        self.delivery, self.hub, self.clock = delivery, hub, clock
        self.nodes, self.pods, self.slices = FakeCopy("nodes"), FakeCopy("pods"), FakeCopy("resourceslices")
        self.election = FakeElection()
        self.collector = self.collector_with(self.election)

    def collector_with(self, election: FakeElection | None) -> ClusterCollector:
        """Return a collector of the copies with this election."""
        return ClusterCollector(
            {ObjectKind.NODE: self.nodes, ObjectKind.POD: self.pods, ObjectKind.SLICE: self.slices},
            owners=None,
            election=election,
            identity=FakeIdentity(),
            delivery=self.delivery,
            clock=self.clock,
            cluster="prod-1",
            replica="replica-1",
        )

    async def cycle(self, seconds: float = 1.0) -> list[ClusterPart]:
        """Run a cycle; return the cluster parts that it sent."""
        self.clock.advance(seconds)
        before = len(self.hub.taken)
        await self.collector.cycle()
        with contextlib.suppress(TimeoutError):
            await self.delivery.pusher.flush()
        self.batches = sorted(self.hub.taken[before:], key=lambda batch: batch.seq)
        return [batch.cluster_part for batch in self.batches if batch.cluster_part is not None]

    @property
    def numbers(self) -> list[tuple[str, str, object]]:
        """Numbers of GPUs in the batches of the last cycle: node, metric, value."""
        return [
            (batch.machines[machine].name, block.metric, value)
            for batch in self.batches
            for block in batch.dims
            for machine, value in zip(block.machine, block.values, strict=True)
        ]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    clock = FakeClock()
    async with FakeHub.running() as hub, contextlib.AsyncExitStack() as stack:
        delivery = await open_delivery(
            HubClientConfig(url=hub.url),
            SpoolConfig(),
            folder=tmp_path,
            cluster="prod-1",
            sender="replica-1",
            client="gpufleet-cluster-agent",
            config_hash="",
            clock=clock,
            stack=stack,
        )
        site = Site(delivery, hub, clock)
        site.nodes.content = {"n1": ClusterNode(uid="n1", name="gpu-1", resources=GPUS)}
        site.pods.content = {"p1": pod("p1"), "p2": pod("p2")}
        yield site


def pod(name: str, phase: str = "Running") -> ClusterPod:
    return ClusterPod(uid=name, namespace="a", name=name, node="gpu-1", phase=phase)


def uids(parts: list[ClusterPart]) -> tuple[set[str], set[str]]:
    """Return the UIDs of present and removed objects."""
    present = {one.uid for part in parts for one in part.nodes} | {one.uid for part in parts for one in part.pods}
    return present, {one.uid for part in parts for one in part.removed}


async def test_leader_sends_changes_at_once_and_nothing_else(site: Site) -> None:
    (part,) = await site.cycle()
    assert uids([part]) == ({"n1", "p1", "p2"}, set())
    assert (part.observed_at, [one.state for one in part.copies]) == (site.clock.now_ns(), [CopyState.SYNCED] * 3)
    assert sorted(site.numbers) == [
        ("gpu-1", "kubernetes_allocatable_devices", 8),
        ("gpu-1", "kubernetes_allocated_devices", 0),
        ("gpu-1", "kubernetes_capacity_devices", 8),
    ]
    assert await site.cycle() == []
    site.pods.content = {"p1": pod("p1", "Succeeded"), "p3": pod("p3")}
    assert uids(await site.cycle()) == ({"p1", "p3"}, {"p2"})
    assert site.numbers == []


async def test_allocated_devices_are_those_of_the_pods(site: Site) -> None:
    two = GpuRequest(resource="nvidia.com/gpu", kind=GpuResourceKind.GPU, count=2)

    def allocated() -> list[object]:
        return [value for _, metric, value in site.numbers if metric == "kubernetes_allocated_devices"]

    site.pods.content = {"p1": msgspec.structs.replace(pod("p1"), requests=(two,))}
    await site.cycle()
    assert allocated() == [2]
    await site.cycle()
    assert allocated() == []
    site.pods.content = {"p1": msgspec.structs.replace(pod("p1", "Failed"), requests=(two,))}
    await site.cycle()
    assert allocated() == [0]
    site.pods.state = CopyState.FORBIDDEN
    await site.cycle()
    assert allocated() == [None]


async def test_removed_node_has_no_numbers_any_more(site: Site) -> None:
    await site.cycle()
    site.nodes.content = {}
    assert uids(await site.cycle()) == (set(), {"n1"})
    assert {value for _, _, value in site.numbers} == {None}


def slice_of(uid: str, *uuids: str, generation: int = 1, slices: int = 1) -> ClusterSlice:
    devices = tuple(
        ClusterDevice(driver="gpu.nvidia.com", pool="gpu-1", name=uuid.lower(), node="gpu-1", kind="gpu", uuid=uuid)
        for uuid in uuids
    )
    return ClusterSlice(
        uid=uid, name=uid, driver="gpu.nvidia.com", pool="gpu-1", generation=generation, slices=slices, devices=devices
    )


def published(site: Site) -> list[object]:
    """Return the numbers of published GPUs in the batches of the last cycle."""
    return [
        value
        for batch in site.batches
        for block in batch.dims
        for resource, value in zip(block.labels[0], block.values, strict=True)
        if resource == "gpu_nvidia_com"
    ]


async def test_gpus_of_a_dra_driver_are_counted_while_their_pool_is_complete(site: Site) -> None:
    site.nodes.content = {"n1": ClusterNode(uid="n1", name="gpu-1")}
    site.slices.content = {"s1": slice_of("s1", "GPU-1", "GPU-2")}
    await site.cycle()
    assert published(site) == [2]
    await site.cycle()
    assert published(site) == []
    site.slices.content = {
        "s1": slice_of("s1", "GPU-1", "GPU-2"),
        "s2": slice_of("s2", "GPU-3", generation=2, slices=2),
    }
    await site.cycle()
    assert published(site) == [None]
    site.slices.content["s3"] = slice_of("s3", "GPU-4", generation=2, slices=2)
    await site.cycle()
    assert published(site) == [2]


@pytest.mark.parametrize("state", [CopyState.FORBIDDEN, CopyState.NOT_SERVED])
async def test_published_gpus_are_unknown_without_their_slices(site: Site, state: CopyState) -> None:
    site.slices.content = {"s1": slice_of("s1", "GPU-1")}
    await site.cycle()
    assert published(site) == [1]
    site.slices.state = state
    await site.cycle()
    assert published(site) == [None]


@pytest.mark.parametrize(("since", "expected"), [(7, 0), (500_000_000, 500_000_000)], ids=["before", "after"])
async def test_published_gpus_of_a_stale_copy_have_its_last_time(site: Site, since: int, expected: int) -> None:
    site.slices.content = {"s1": slice_of("s1", "GPU-1")}
    await site.cycle()
    synced = site.clock.now_ns()
    site.slices.state = CopyState.STALE
    site.slices.since = since if since == 7 else synced + since  # a bookmark came before or after the report
    site.nodes.content = {"n1": ClusterNode(uid="n1", name="gpu-1", resources=GPUS, zone="other")}
    await site.cycle()
    times = {
        resource: at
        for batch in site.batches
        for block in batch.dims
        for resource, at in zip(block.labels[0], block.measured_at, strict=True)
    }
    assert times == {"nvidia_com_gpu": site.clock.now_ns(), "gpu_nvidia_com": synced + expected}


async def test_time_without_permission_is_not_that_of_the_numbers(site: Site) -> None:
    await site.cycle()
    synced = site.clock.now_ns()
    site.nodes.since = synced
    site.pods.state = CopyState.STARTING  # no numbers of pods
    for state in (CopyState.FORBIDDEN, CopyState.STALE):
        site.nodes.state = state
        site.nodes.content = {"n1": ClusterNode(uid="n1", name="gpu-1", resources=GPUS, zone=state)}
        await site.cycle(3600)
    assert {at for batch in site.batches for block in batch.dims for at in block.measured_at} == {synced}


async def test_outage_is_reported_and_ends_nothing(site: Site) -> None:
    await site.cycle()
    site.nodes.state = site.pods.state = site.slices.state = CopyState.STALE
    site.nodes.since = site.pods.since = site.clock.now_ns()
    (part,) = await site.cycle()
    assert uids([part]) == (set(), set())
    assert {one.state for one in part.copies} == {CopyState.STALE}
    assert len(await site.cycle(STATUS_SECONDS)) == 1
    present: set[str] = set()
    for _ in range(40):
        present |= uids(await site.cycle(STATUS_SECONDS))[0]
        assert all(at == site.nodes.since for batch in site.batches for block in batch.dims for at in block.measured_at)
    assert present == {"n1", "p1", "p2"}


async def test_standby_sends_heartbeats_only(site: Site) -> None:
    site.election.is_leader, site.election.holder = False, "replica-2_2"
    assert await site.cycle() == []
    (batch,) = site.batches
    assert batch.heartbeat is not None
    assert (batch.sender, batch.machines) == ("replica-1", [])
    assert await site.cycle() == []
    assert site.batches == []


async def test_standby_takes_over_with_all_objects(site: Site) -> None:
    site.election.is_leader, site.election.holder = False, "replica-2_2"
    await site.cycle()
    site.pods.content = {"p1": pod("p1")}
    await site.cycle()
    site.election.is_leader, site.election.holder = True, "replica-1_1"
    assert uids(await site.cycle()) == ({"n1", "p1"}, {"p2"})


async def test_replica_is_ready_after_a_cycle_with_its_copies(site: Site) -> None:
    missing = [site.collector.missing]
    site.election.is_leader, site.election.holder = False, "replica-2_2"
    for state in (CopyState.STARTING, CopyState.SYNCED):
        site.pods.state = state
        await site.cycle()
        missing.append(site.collector.missing)
    assert missing == [("nodes", "pods", "resourceslices"), ("pods",), ()]
    site.pods.content = {}
    await site.cycle()
    site.election.is_leader, site.election.holder = True, "replica-1_1"
    assert uids(await site.cycle()) == ({"n1"}, {"p1", "p2"})


async def test_leader_without_lease_reports_its_copies_only(site: Site) -> None:
    await site.cycle()
    site.election.is_leader = False  # it cannot renew the lease, and sees no other leader
    site.pods.content = {}
    site.pods.state = CopyState.STALE
    (part,) = await site.cycle()
    assert uids([part]) == (set(), set())
    assert [one.state for one in part.copies] == [CopyState.SYNCED, CopyState.STALE, CopyState.SYNCED]
    (part,) = await site.cycle(2 * STATUS_SECONDS)
    assert (uids([part]), part.copies[1].state) == ((set(), set()), CopyState.STALE)
    site.election.holder = "replica-2_2"
    site.nodes.state = CopyState.STALE
    assert await site.cycle() == []


async def test_last_leader_repeats_the_numbers_of_nodes_in_an_outage(site: Site) -> None:
    await site.cycle()
    site.election.is_leader = False  # it cannot renew the lease, and sees no other leader
    site.nodes.state = site.pods.state = CopyState.STALE
    site.nodes.since = site.pods.since = site.clock.now_ns()
    reports = []
    for _ in range(20):
        parts = await site.cycle(STATUS_SECONDS)
        assert all(uids([part]) == (set(), set()) for part in parts)
        reports += site.numbers
        assert all(at == site.nodes.since for batch in site.batches for block in batch.dims for at in block.measured_at)
    assert reports.count(("gpu-1", "kubernetes_capacity_devices", 8)) in (5, 6)  # each two minutes
    site.election.holder = "replica-2_2"
    await site.cycle(3600)
    assert site.numbers == []
    site.election.is_leader, site.election.holder = True, "replica-1_1"
    site.nodes.state = site.pods.state = CopyState.SYNCED
    assert uids(await site.cycle())[0] == {"n1", "p1", "p2"}
    assert len(site.numbers) == 3


async def test_replica_that_never_led_repeats_nothing_in_an_outage(site: Site) -> None:
    site.election.is_leader = False
    site.nodes.state = CopyState.STALE
    assert await site.cycle() == []
    assert site.numbers == []


async def test_lost_lease_stops_a_report_in_progress(site: Site) -> None:
    site.pods.content = {f"p{number}": pod(f"p{number}") for number in range(5001)}

    outbox, posted = site.delivery.outbox, list[object]()

    class CountingOutbox:
        async def post(self, *reports: Any, cluster_part: ClusterPart | None = None) -> bool:
            posted.extend([] if cluster_part is None else [cluster_part])
            return await outbox.post(*reports, cluster_part=cluster_part)

    class Expiring(FakeElection):
        """Leader until the first part is queued."""

        @property
        def is_leader(self) -> bool:
            return not posted

        @is_leader.setter
        def is_leader(self, _: bool) -> None:
            pass

    site.delivery.outbox = CountingOutbox()  # type: ignore[assignment]
    site.collector = site.collector_with(Expiring())
    parts = await site.cycle()
    assert sum(len(part.pods) + len(part.nodes) for part in parts) == 5000


async def test_objects_without_room_in_the_queue_stay_due(site: Site) -> None:
    class FullOutbox:
        async def post(self, *reports: object, cluster_part: object = None) -> bool:
            return False

    outbox = site.delivery.outbox
    site.delivery.outbox = FullOutbox()  # type: ignore[assignment]
    assert await site.cycle() == []
    site.delivery.outbox = outbox
    assert uids(await site.cycle()) == ({"n1", "p1", "p2"}, set())


async def test_object_that_the_format_does_not_permit_costs_only_itself(site: Site) -> None:
    name = "x" * 321
    site.pods.content["p1"] = ClusterPod(uid="p1", namespace="a", name="p1", labels={name: "v"})
    site.nodes.content["n2"] = ClusterNode(uid="n2", name="n" * 300, resources=GPUS)
    assert uids(await site.cycle()) == ({"n1", "p2"}, set())
    assert {name for name, _, _ in site.numbers} == {"gpu-1"}
    assert len(site.collector.status().left_out) == 2
    assert await site.cycle() == []


async def test_collector_without_election_leads(site: Site) -> None:
    site.collector = site.collector_with(None)
    assert uids(await site.cycle())[0] == {"n1", "p1", "p2"}
    assert site.collector.status().is_leader
