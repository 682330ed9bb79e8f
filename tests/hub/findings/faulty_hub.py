"""Faults of a hub on a fake clock, each as a generator that yields before every minute in which it lasts."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from gpufleet.codecs.batch import CONTENT_TYPE, encode
from gpufleet.codecs.remote_write.encode import CONTENT_TYPE_1, WritePoint, encode_1
from gpufleet.hub.imports.receiver import ImportReceiver
from gpufleet.hub.imports.writers import ImportWriters
from gpufleet.hub.receive.limits import ByteBudget
from gpufleet.model.allocation import AllocationKind, AllocationSpec, Binding, Target
from gpufleet.model.errors import StoreError, UnstorableError
from gpufleet.model.kubernetes import CopyState, CopyStatus
from gpufleet.model.status import Heartbeat
from gpufleet.model.stored.kubernetes import ObjectKind
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.wire.batch import Batch, ClusterPart
from gpufleet.runtime import supervise
from gpufleet.web.hub.imports import ImportEndpoint
from gpufleet.web.hub.ingest import BatchEndpoint
from gpufleet.web.hub.remote_write import RemoteWriteFormat
from tests.fakes.batches import gpu_view
from tests.fakes.clock import FakeClock
from tests.hub.findings.evaluated_hub import EvaluatedHub
from tests.hub.liveness.fake_clock_hub import INTERVAL, STEP, Node

CLUSTER = "local"
BODY_BYTES = 1 << 20
CACHED_SERIES = 6
POWER = "DCGM_FI_DEV_POWER_USAGE"
METRICS = (POWER, *(f"DCGM_FI_DEV_{name}" for name in ("MEMORY_TEMP", "SM_CLOCK", "MEM_CLOCK", "FB_FREE")))
"""The power, and metrics that may vanish: they are no watched core readings."""


class FaultyHub(EvaluatedHub):
    """A hub with three nodes and a Prometheus that post to its endpoints, and with room for few imported series.

    Attributes:
        nodes: the nodes.
        metrics: metrics that the Prometheus sends about the GPUs of the first node.
    """

    max_machines = 10

    def __init__(self, folder: Path, log_bytes: int) -> None:
        self.log_bytes = log_bytes
        super().__init__(folder, CLUSTER)
        self.metrics: tuple[str, ...] = (POWER,)
        self.nodes = [Node(f"node-{number}", CLUSTER, first_gpu=2 * number) for number in range(3)]
        for one in self.nodes:
            one.sends_inventory = True
        self._queues = dict[str, deque[bytes]]()

    def open(self) -> None:
        """Start the hub and its endpoints."""
        super().open()
        pressure = ByteBudget(1 << 28)
        self._batches = BatchEndpoint(
            ingest=self.ingest,
            pressure=pressure,
            counters=self.counters,
            clock=self.clock,
            max_body_bytes=BODY_BYTES,
            body_timeout_seconds=30,
            ingest_clock=self.ingest_clock,
        )
        receiver = ImportReceiver(
            ingest=self.ingest,
            clusters=self.configured,
            registry=self.registry,
            store=self.store,
            counters=self.counters,
            clock=self.clock,
            threads=self.threads,
            is_caught_up=lambda: True,
            writers=ImportWriters(self.clock, max_series=CACHED_SERIES),
        )
        self._imports = ImportEndpoint(
            RemoteWriteFormat(),
            receiver=receiver,
            served=lambda: self.configured,
            pressure=pressure,
            counters=self.counters,
            ingest_clock=self.ingest_clock,
            body_timeout_seconds=30,
        )

    async def pass_minute(self) -> set[str]:
        """Advance the clock by a minute; return the rules with an open finding."""
        for step in range(1, 25):
            await self.advance(STEP)
            if step * STEP % INTERVAL == 0:
                for one in self.nodes:
                    await self._send(one)
                await self._import()
                if self.flushes:
                    await self.flush()
        await self.evaluator.evaluate(self.threads)
        return self.open_rules

    async def allocate(self) -> None:
        """Store an allocation of the second node, whose answers come from the store."""
        target = Target(cluster=CLUSTER, machine="node-1")
        spec = AllocationSpec(kind=AllocationKind.BARE_METAL, target=target, tenant="green", expected={"any": 2})
        await self.allocations.put("green", spec)

    async def _send(self, node: Node) -> None:
        """Post the backlog of a node, oldest first, until a body is rejected for later."""
        queue = self._queues.setdefault(node.name, deque())
        queue.append(node.body(self.clock))
        while queue and await self.post(queue[0]) != 503:
            queue.popleft()

    async def post(self, body: bytes) -> int:
        """Post a batch; return the status."""
        return await _request(self._batches, "/v1/batches", CONTENT_TYPE, body)

    async def _import(self) -> None:
        """Post the series of dcgm-exporter by remote write."""
        points = [
            WritePoint(
                {"__name__": metric, "Hostname": "node-0", "UUID": gpu_view(gpu).uuid or "", "gpu": str(gpu)},
                100.0,
                self.clock.now_ns(),
            )
            for metric in self.metrics
            for gpu in range(2)
        ]
        await _request(self._imports, "/api/v1/write", CONTENT_TYPE_1, encode_1(points))


class Collector(Node):
    """A cluster collector of a Kubernetes cluster of its own, without GPU nodes."""

    def body(self, clock: FakeClock, *, at: int | None = None, seq: int | None = None) -> bytes:
        """Return the next batch."""
        self.seq += 1
        at = self.now(clock)
        nodes = CopyStatus(resource=ObjectKind.NODE.value, state=CopyState.SYNCED, since=at, objects=0)
        return encode(
            Batch(
                cluster=self.cluster,
                sender=self.name,
                epoch=self.epoch,
                seq=self.seq,
                sent_at=at,
                heartbeat=Heartbeat(interval_seconds=INTERVAL, version="1", started_at=1),
                cluster_part=ClusterPart(observed_at=at, system_uid=f"uid-of-{self.name}", copies=[nodes]),
            )
        )


async def _request(endpoint: BatchEndpoint | ImportEndpoint, path: str, content_type: str, body: bytes) -> int:
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    sent: list[dict[str, int]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, int]) -> None:
        sent.append(message)

    await endpoint(scope, receive, send)  # type: ignore[arg-type]
    return sent[0]["status"]


SMALL_LOG_BYTES, LOG_BYTES = 41_130, 1 << 26
"""Size of a log that is full after 15.5 min: then it has 40,910 to 41,120 bytes, and no body of 232 bytes or more fits.

The size depends on the random epoch of the import, which compresses to 232 to 237 bytes with its samples.
"""

HubPlay = Callable[[FaultyHub], AsyncIterator[None]]


async def full_log(hub: FaultyHub) -> AsyncIterator[None]:
    hub.flushes = False
    for _ in range(20):
        yield
    hub.flushes = True


async def stopped_hub(hub: FaultyHub) -> AsyncIterator[None]:
    hub.restart_after(600)
    return
    yield


async def store_outage(hub: FaultyHub) -> AsyncIterator[None]:
    hub.store.down = True
    for _ in range(10):
        yield
    hub.store.down = False


async def registry_outage(hub: FaultyHub) -> AsyncIterator[None]:
    hub.registered.is_down = True
    for _ in range(10):
        yield
    hub.registered.is_down = False


async def no_flushes(hub: FaultyHub) -> AsyncIterator[None]:
    hub.flushes = False
    for _ in range(6):
        yield
    hub.flushes = True


async def filling_log(hub: FaultyHub) -> AsyncIterator[None]:
    hub.flushes = False
    for _ in range(9):
        yield
    hub.flushes = True


async def full_disk(hub: FaultyHub) -> AsyncIterator[None]:
    hub.disk_free_ratio = 0.08
    for _ in range(5):
        yield
    hub.disk_free_ratio = 0.5


async def failing_writes(hub: FaultyHub) -> AsyncIterator[None]:
    def fail(_: AcceptedBatch) -> None:
        raise StoreError("the disk is full")

    hub.store.refuse = fail
    yield
    hub.store.refuse = lambda _: None


async def unstorable_batches(hub: FaultyHub) -> AsyncIterator[None]:
    def fail(one: AcceptedBatch) -> None:
        if one.batch.sender == "node-1":
            raise UnstorableError("a value does not fit its column")

    hub.store.refuse = fail
    yield
    hub.store.refuse = lambda _: None


async def crashed_task(hub: FaultyHub) -> AsyncIterator[None]:
    crashed = asyncio.Event()

    async def run() -> None:
        if not crashed.is_set():
            crashed.set()
            raise ZeroDivisionError("a defect")
        await asyncio.Event().wait()

    task = asyncio.create_task(
        supervise(run, "a task", on_end=hub.counters.restart_counter("contract"), restart_seconds=0)
    )
    await crashed.wait()
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def invalid_bodies(hub: FaultyHub) -> AsyncIterator[None]:
    for _ in range(10):
        for _ in range(4):
            assert await hub.post(b"not a batch") == 400
        yield


async def new_metric(hub: FaultyHub) -> AsyncIterator[None]:
    hub.metrics = (POWER, "DCGM_FI_DEV_INVENTED_BY_A_TEST")
    yield
    hub.metrics = (POWER,)


async def many_series(hub: FaultyHub) -> AsyncIterator[None]:
    hub.metrics = METRICS
    yield
    hub.metrics = (POWER,)


async def two_kubernetes_clusters(hub: FaultyHub) -> AsyncIterator[None]:
    collectors = [Collector(name, CLUSTER) for name in ("collector-a", "collector-b")]
    hub.nodes += collectors
    for _ in range(12):
        yield
    hub.nodes.remove(collectors[1])


async def many_machines(hub: FaultyHub) -> AsyncIterator[None]:
    more = [Node(f"more-{number}", CLUSTER, first_gpu=50 + 2 * number) for number in range(6)]
    hub.nodes += more
    for _ in range(3):
        yield
    hub.nodes.remove(more[0])
    (machine,) = hub.registry.find_machines(CLUSTER, more[0].name)
    hub.registry.retire_machine(machine.id, hub.clock.now_ns())


async def overlapping_tenants(hub: FaultyHub) -> AsyncIterator[None]:
    (machine,) = hub.registry.find_machines(CLUSTER, "node-0")
    at = to_datetime(hub.clock.now_ns() - 60 * NANOS)
    for tenant in ("red", "blue"):
        target = Target(cluster=CLUSTER, machine="node-0")
        spec = AllocationSpec(kind=AllocationKind.BARE_METAL, target=target, tenant=tenant, valid_from=at)
        allocation, _ = hub.registry.put_allocation(tenant, spec, at, (Binding(machine=machine.id),))
        hub.claims.update(allocation)
    for _ in range(3):
        yield
    await hub.allocations.close("blue")


FAULTS: Mapping[str, HubPlay] = {
    "hub.not_ingesting": full_log,
    "hub.outage": stopped_hub,
    "hub.store_unreachable": store_outage,
    "hub.registry_unreachable": registry_outage,
    "hub.flush_lag": no_flushes,
    "hub.flush_failing": failing_writes,
    "hub.log_filling": filling_log,
    "hub.disk_filling": full_disk,
    "hub.quarantine": unstorable_batches,
    "hub.task_restarts": crashed_task,
    "hub.rejecting": invalid_bodies,
    "hub.schema_drift": new_metric,
    "hub.series_churn": many_series,
    "cluster.identity_conflict": two_kubernetes_clusters,
    "cluster.machine_limit": many_machines,
    "allocation.tenant_overlap": overlapping_tenants,
}
"""Rule id to its fault; `simulate.fleet.hub_faults` describes them."""
