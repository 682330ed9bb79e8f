"""The collector: keeps the copies current, and reports them to the hub while this replica leads."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from gpufleet.cluster.owners import PodOwners
from gpufleet.cluster.parts import PartObjects
from gpufleet.cluster.reporter import CopyView, Reporter
from gpufleet.delivery.outbox import Delivery
from gpufleet.model.collector import CollectorSnapshot, CollectorStatus
from gpufleet.model.kubernetes import ClusterPod, CopyState, CopyStatus
from gpufleet.model.stored.kubernetes import ClusterObject, ObjectKind
from gpufleet.model.wire.batch import ClusterPart
from gpufleet.ports.clock import Clock
from gpufleet.ports.cluster import ClusterIdentity, Election, IdentitySource, ResourceCopy
from gpufleet.runtime import supervise

log = logging.getLogger(__name__)

CYCLE_SECONDS = 1.0
"""Time between two cycles. Changes within it share a batch."""

STATUS_SECONDS = 30.0
"""Interval at which the state of the copies is reported if no object is due."""

IDENTITY_SECONDS = 600.0
"""Interval at which the cluster's identity is read."""

IDENTITY_RETRY_SECONDS = 60.0

FLUSH_SECONDS = 3.0
"""Time limit for posting the queue at shutdown; the rest stays in the spool."""

RELEASE_SECONDS = 2.0
"""Time limit for giving back the lease at shutdown."""


class ClusterCollector:
    """Runs until cancelled.

    The leader reports objects, node reports and the state of its copies. A standby keeps its copies current too and
    sends heartbeats only. A leader that cannot renew its lease stops at once to report objects. Until it sees another
    leader, it reports the state of its copies, and repeats the numbers of nodes while their copy is stale.

    Args:
        copies: copy of each resource.
        owners: owner chains of pods, or None if they are not resolved.
        election: leader election, or None if this is the only replica.
        identity: source of the cluster's identity.
        delivery: the queue to the hub, or None.
        clock: wall and monotonic time.
        cluster: id of the cluster.
        replica: name of this replica.
    """

    def __init__(
        self,
        copies: Mapping[ObjectKind, ResourceCopy[ClusterObject]],
        *,
        owners: PodOwners | None,
        election: Election | None,
        identity: IdentitySource,
        delivery: Delivery | None,
        clock: Clock,
        cluster: str,
        replica: str,
    ) -> None:
        self._copies = dict(copies)
        self._owners = owners
        self._election = election
        self._source = identity
        self._identity = ClusterIdentity(error="not read yet")
        self._delivery = delivery
        self._clock = clock
        self._cluster = cluster
        self._replica = replica
        self._started_at = clock.now_ns()
        self._reporter = Reporter()
        self._has_led = False
        self._reported_states: tuple[tuple[str, CopyState], ...] = ()
        self._next_status = clock.monotonic()
        self._views: Mapping[ObjectKind, CopyView] = {}
        self._logged: dict[str, CopyState] = {}
        self._logged_objects: set[str] = set()

    @property
    def delivery(self) -> Delivery | None:
        """Return the queue to the hub, or None."""
        return self._delivery

    @property
    def is_leader(self) -> bool:
        """Return whether this replica reports objects now."""
        return self._election is None or self._election.is_leader

    @property
    def _sees_no_other_leader(self) -> bool:
        return self._election is None or self._election.holder == self._election.identity

    @property
    def _may_report_nodes(self) -> bool:
        """Return whether this replica reports the numbers of nodes: the leader, and the last leader in an outage.

        Numbers of a stale copy keep its time, so they replace none of another leader. Without repetition the hub would
        take the nodes as removed after 10 minutes.
        """
        nodes = self._copies.get(ObjectKind.NODE)
        is_cut_off = nodes is not None and nodes.status.state is CopyState.STALE
        return self.is_leader or (self._has_led and is_cut_off)

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the resources without a first answer of the API server at the last cycle; empty when ready.

        Before its first cycle with a copy, a standby would not notice that an object of it ends.
        """
        seen = {view.status.resource for view in self._views.values() if view.status.state is not CopyState.STARTING}
        return tuple(one.resource for one in self._statuses() if one.resource not in seen)

    def status(self) -> CollectorStatus:
        """Return the state of this replica."""
        election, delivery = self._election, self._delivery
        return CollectorStatus(
            cluster=self._cluster,
            replica=self._replica,
            started_at=self._started_at,
            is_leader=self.is_leader,
            leader=self._replica if election is None else election.holder,
            election_error="" if election is None else election.error,
            system_uid=self._identity.system_uid,
            server_version=self._identity.server_version,
            identity_error=self._identity.error,
            copies=self._statuses(),
            left_out=tuple(self._reporter.left_out.values()),
            queued_walks=self._owners.queued if self._owners is not None else 0,
            push="no hub is configured" if delivery is None else delivery.capability,
        )

    def snapshot(self) -> CollectorSnapshot:
        """Return the copies with their objects."""

        def listed(kind: ObjectKind) -> Any:
            records = self._views[kind].records.values() if kind in self._views else ()
            return tuple(sorted(records, key=lambda one: (getattr(one, "namespace", ""), one.name, one.uid)))

        return CollectorSnapshot(
            at=self._clock.now_ns(),
            status=self.status(),
            nodes=listed(ObjectKind.NODE),
            pods=listed(ObjectKind.POD),
            slices=listed(ObjectKind.SLICE),
            claims=listed(ObjectKind.CLAIM),
            vmis=listed(ObjectKind.VMI),
        )

    async def run(self) -> None:
        """Run until cancelled; then give back the lease and post the queue."""
        try:
            async with asyncio.TaskGroup() as tasks:

                def start(run: Callable[[], Awaitable[None]], name: str) -> None:
                    tasks.create_task(supervise(run, name), name=name)

                for kind, copy in self._copies.items():
                    start(copy.run, f"copy of {kind}")
                if self._owners is not None:
                    start(self._owners.run, "owner chains")
                if self._election is not None:
                    start(self._election.run, "leader election")
                start(self._read_identity, "cluster identity")
                start(self._report, "cluster report")
                if self._delivery is not None:
                    start(self._delivery.pusher.run, "push")
        finally:
            await self._stop()

    async def _stop(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                if self._election is not None:
                    await self._election.release()
        if self._delivery is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._delivery.pusher.flush()

    async def _read_identity(self) -> None:
        while True:
            found = await self._source.read()
            if found.system_uid or not self._identity.system_uid:
                self._identity = found
            await asyncio.sleep(IDENTITY_RETRY_SECONDS if found.error else IDENTITY_SECONDS)

    async def _report(self) -> None:
        while True:
            await self.cycle()
            await asyncio.sleep(CYCLE_SECONDS)

    async def cycle(self) -> None:
        """Report what is due, once."""
        self._log_states()
        views = self._take_views()
        delivery = self._delivery
        if delivery is None:
            return
        is_queued = False
        self._has_led = self.is_leader or (self._has_led and self._sees_no_other_leader)
        reports_nodes = self._may_report_nodes
        if reports_nodes:
            is_queued = await self._post_nodes(delivery, views)
        if self.is_leader:
            is_queued |= await self._post_objects(delivery, views)
        else:
            now, now_ns = self._clock.monotonic(), self._clock.now_ns()
            self._reporter.follow(views, now=now, now_ns=now_ns, with_numbers=not reports_nodes)
        if self._has_led and self._status_is_due():
            is_queued |= await self._post_part(delivery, PartObjects())
        is_queued |= await delivery.outbox.post()  # a heartbeat, if one is due
        if is_queued:
            delivery.pusher.wake()

    async def _post_objects(self, delivery: Delivery, views: Mapping[ObjectKind, CopyView]) -> bool:
        is_queued = False
        now, now_ns = self._clock.monotonic(), self._clock.now_ns()
        for objects in self._reporter.due_objects(views, now=now, now_ns=now_ns):
            if not self.is_leader or not await self._post_part(delivery, objects):
                break
            self._reporter.confirm_objects(objects, now=now)
            is_queued = True
        return is_queued

    async def _post_nodes(self, delivery: Delivery, views: Mapping[ObjectKind, CopyView]) -> bool:
        is_queued = False
        now, now_ns = self._clock.monotonic(), self._clock.now_ns()
        for nodes in self._reporter.due_nodes(views, now=now, now_ns=now_ns):
            if not self._may_report_nodes or (nodes.reports and not await delivery.outbox.post(*nodes.reports)):
                break
            self._reporter.confirm_nodes(nodes, now=now)
            is_queued = True
        return is_queued

    async def _post_part(self, delivery: Delivery, objects: PartObjects) -> bool:
        statuses = self._statuses()
        status = ClusterPart(
            observed_at=self._clock.now_ns(),
            system_uid=self._identity.system_uid,
            server_version=self._identity.server_version[:64],
            copies=list(statuses),
        )
        is_queued = await delivery.outbox.post(cluster_part=objects.part(status))
        if is_queued:
            self._reported_states = _states(statuses)
            self._next_status = self._clock.monotonic() + STATUS_SECONDS
        return is_queued

    def _log_states(self) -> None:
        """Log each change of the state of a copy, and each object that is not sent."""
        for one in self._statuses():
            before, self._logged[one.resource] = self._logged.get(one.resource, CopyState.STARTING), one.state
            if one.state is before:
                continue
            if one.state is CopyState.SYNCED:
                log.info("%s: the copy is current, with %d objects", one.resource, one.objects)
            else:
                log.warning("%s: the copy is %s: %s", one.resource, one.state, one.detail)
        for uid in self._reporter.left_out.keys() - self._logged_objects:
            log.error("object %s is not sent: %s", uid, self._reporter.left_out[uid])
            self._logged_objects.add(uid)

    def _status_is_due(self) -> bool:
        """Return whether the state of the copies is due: after a change, and at an interval.

        An earlier leader without connection repeats its state too: the hub then knows why no object is repeated.
        """
        if _states(self._statuses()) != self._reported_states:
            return True
        return self._clock.monotonic() >= self._next_status

    def _statuses(self) -> tuple[CopyStatus, ...]:
        return tuple(copy.status for copy in self._copies.values())

    def _take_views(self) -> Mapping[ObjectKind, CopyView]:
        """Return the present state of the copies, the pods with their owner chains."""
        views = {kind: CopyView(copy.records, copy.rejected, copy.status) for kind, copy in self._copies.items()}
        pods = views.get(ObjectKind.POD)
        if pods is not None and self._owners is not None:
            merged = self._owners.merge(cast(Mapping[str, ClusterPod], pods.records), repeats=self.is_leader)
            views[ObjectKind.POD] = CopyView(merged, pods.rejected, pods.status)
        self._views = views
        return views


def _states(statuses: tuple[CopyStatus, ...]) -> tuple[tuple[str, CopyState], ...]:
    return tuple((one.resource, one.state) for one in statuses)
