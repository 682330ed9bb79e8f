"""Simulated agents: like real ones, they number their batches, queue them, and report their queue."""

from collections import deque

import msgspec

from gpufleet import __version__
from gpufleet.codecs.batch import encode, renumber
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import Batch, ClusterPart, MachineReport
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault
from gpufleet.simulate.fleet.fleet import STATIC_FAULTS, Fleet
from gpufleet.simulate.fleet.kubernetes import COLLECTOR_FAULTS, collector_name, collector_part, collector_reports
from gpufleet.simulate.fleet.layout import FleetNode
from gpufleet.simulate.fleet.random_values import digits, number, uuid_of
from gpufleet.simulate.fleet.reports import CollectionPass, machine_reports

SLOW_SECONDS = 60.0
STATIC_SECONDS = 600.0
HEARTBEAT_SECONDS = 30.0
"""Default intervals of an agent."""

OFFLINE_FAULTS = frozenset(
    {
        *(FaultKind.CLUSTER_OFF, FaultKind.HALF_CLUSTER, FaultKind.NODE_OFF),
        *(FaultKind.AGENT_RESTART, FaultKind.NODE_REBOOT, FaultKind.NODE_DELETED),
    }
)
"""Faults during which nothing is measured."""


HELD_BACK_FAULTS = (FaultKind.DELAYED_BATCHES, FaultKind.STUCK_BATCHES)
"""Faults with batches that are sent at the end of the fault."""


class EncodedBatch(msgspec.Struct, frozen=True):
    """Queued batch.

    Attributes:
        seq: its sequence number.
        measured_at: by its node's clock.
        content: encoded bytes.
    """

    seq: int
    measured_at: int
    content: bytes


class AgentTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Collection times of the agents.

    Attributes:
        start: nanoseconds since 1970; part of every epoch, so that a run from another instant has other epochs.
        interval: seconds between fast-lane passes.
        at_once: whether all agents collect at the same instants, instead of spread over the interval.
    """

    start: int
    interval: float = 10.0
    at_once: bool = False


class SimulatedAgent:
    """Simulated agent, a sender.

    Attributes:
        name: its sender name.
        next_at: its next collection pass, nanoseconds since 1970.
        waiting: batches that no hub has acknowledged, oldest first.
        made: number of batches so far.
        dropped: number of batches that it dropped.
    """

    def __init__(self, fleet: Fleet, node: FleetNode, timing: AgentTiming) -> None:
        """Take the fleet, the agent's node and the collection times."""
        self.node = node
        self.name = node.name
        self.waiting: deque[EncodedBatch] = deque()
        self.made = 0
        self.dropped = 0
        self._fleet = fleet
        self._timing = timing
        self._every = int(timing.interval * NANOS)
        self._first = timing.start + (0 if timing.at_once else number(self._every, fleet.spec.seed, node.name, "turn"))
        self.next_at = self._first
        self._before = 0  # the previous pass; 0 if there was none since its start
        self._reported_at = 0  # newest instant whose values it reported
        self._held_back: dict[FleetFault, list[EncodedBatch]] = {}
        self._copied_at: tuple[int, ...] = ()  # of a duplicate
        self._faults = fleet.schedule.of_node(node.cluster, node.number)
        self._started_at = timing.start + self._ahead(timing.start)
        self._epochs = 0
        self._epoch = self._new_epoch()
        self._seq = 0

    @property
    def cluster(self) -> int:
        """Number of its cluster."""
        return self.node.cluster

    @property
    def position(self) -> tuple[str, int]:
        """The epoch, and the sequence number before its newest batch's."""
        return self._epoch, max(0, self._seq - 1)

    def is_cut_off(self, at: int) -> bool:
        """Return whether it cannot reach a hub at that instant."""
        return self._has(FaultKind.BACKFILL, at)

    def collect(self) -> bool:
        """Collect the lanes due at `next_at` and queue a batch; False if the node is off."""
        at, since = self.next_at, self._before or self.next_at - self._every
        self.next_at += self._every
        if any(fault.kind in OFFLINE_FAULTS and fault.begin <= at < fault.end for fault in self._faults):
            return False
        begun = [fault for fault in self._faults if self._timing.start < fault.begin and since < fault.begin <= at]
        for fault in self._faults:
            if fault.kind in (FaultKind.AGENT_RESTART, FaultKind.NODE_REBOOT) and since < fault.end <= at:
                self._before, self._started_at = 0, fault.end + self._ahead(fault.end)
        for fault in begun:
            if fault.kind in (FaultKind.SPOOL_WIPED, FaultKind.LOST_BATCHES):
                self._seq += int(fault.amount)
                self.dropped += int(fault.amount) if fault.kind is FaultKind.LOST_BATCHES else 0
        self._make(at, since)
        self._hold_back(at)
        if any(fault.kind is FaultKind.SPOOL_WIPED for fault in begun):
            self._epoch, self._seq = self._new_epoch(), 0
        return True

    def take(self, *, oldest: bool = False) -> EncodedBatch:
        """Remove and return the newest queued batch, or the oldest."""
        return self.waiting.popleft() if oldest else self.waiting.pop()

    def put_back(self, body: EncodedBatch) -> None:
        """Return a batch to the queue, at its place in measurement order."""
        at = len(self.waiting)
        while at and self.waiting[at - 1].measured_at > body.measured_at:
            at -= 1
        self.waiting.insert(at, body)

    def drop_oldest(self) -> None:
        """Drop the oldest queued batch, and count it."""
        self.dropped += 1
        self.waiting.popleft()

    def renew(self, body: EncodedBatch) -> None:
        """Start a new epoch after a conflict: renumber a rejected batch and the whole queue."""
        self.put_back(body)
        self._epoch, self._seq = self._new_epoch(), 0
        for at, one in enumerate(self.waiting):
            self._seq += 1
            self.waiting[at] = EncodedBatch(self._seq, one.measured_at, renumber(one.content, self._epoch, self._seq))

    def _make(self, at: int, since: int) -> None:
        ahead, late = self._ahead(at), self._total(FaultKind.LATE_DATA, at)
        measured = max(at - late, self._reported_at)
        before = min(self._reported_at or since - late, measured)  # before `since` if data was late until now
        is_changed = self._fleet.has_edge(self.node, STATIC_FAULTS, before, measured)
        pass_ = CollectionPass(
            at=measured,
            since=before,
            lanes=[
                Lane.FAST,
                *self._due(at, Lane.SLOW, SLOW_SECONDS),
                *((Lane.STATIC,) if is_changed else self._due(at, Lane.STATIC, STATIC_SECONDS)),
            ],
            intervals={Lane.FAST: self._timing.interval, Lane.SLOW: SLOW_SECONDS, Lane.STATIC: STATIC_SECONDS},
            ahead=ahead,
        )
        self._reported_at = measured
        self._seq += 1
        batch = Batch(
            cluster=self.node.cluster_id,
            sender=self.name,
            epoch=self._epoch,
            seq=self._seq,
            sent_at=at + ahead,
            heartbeat=self._heartbeat() if self._is_due(at, HEARTBEAT_SECONDS) else None,
            reports=self._reports(pass_),
            cluster_part=self._cluster_part(pass_),
        )
        self.waiting.append(EncodedBatch(self._seq, at + ahead, encode(batch)))
        self.made += 1
        self._before = at

    def _hold_back(self, at: int) -> None:
        """Hold back the newest batch if a fault requires it, and release the batches of faults that have ended."""
        for fault in [one for one in self._held_back if one.end <= at]:
            for body in self._held_back.pop(fault):
                self.put_back(body)
        for kind in HELD_BACK_FAULTS:
            for fault in self._active(kind, at):
                held = self._held_back.setdefault(fault, [])
                if len(held) < fault.amount:
                    held.append(self.waiting.pop())

    def _reports(self, pass_: CollectionPass) -> tuple[MachineReport, ...]:
        return machine_reports(self._fleet, self.node, pass_)

    def _cluster_part(self, pass_: CollectionPass) -> ClusterPart | None:
        """Return the objects of its cluster; only collectors have them."""
        return None

    def _heartbeat(self) -> Heartbeat:
        stuck = [
            one for fault, held in self._held_back.items() if fault.kind is FaultKind.STUCK_BATCHES for one in held
        ]
        queued = [*stuck, *self.waiting]
        return Heartbeat(
            interval_seconds=HEARTBEAT_SECONDS,
            version=__version__,
            started_at=self._started_at,
            config_hash="simulated",
            queue_records=len(queued),
            queue_bytes=sum(len(body.content) for body in queued),
            oldest_unsent=queued[0].measured_at if queued else None,
            dropped_total=self.dropped,
        )

    def _due(self, at: int, lane: Lane, seconds: float) -> tuple[Lane, ...]:
        return (lane,) if self._is_due(at, seconds) else ()

    def _is_due(self, at: int, seconds: float) -> bool:
        """Return whether an interval is due: on the first pass, and on the first pass of each interval."""
        every = int(seconds * NANOS)
        return not self._before or (at - self._first) // every != (self._before - self._first) // every

    def _ahead(self, at: int) -> int:
        """Return the offset of its clock at that instant, in nanoseconds; positive if ahead."""
        return self._total(FaultKind.CLOCK_STEP, at)

    def _total(self, kind: FaultKind, at: int) -> int:
        """Return the sum of the amounts of present faults of a kind in seconds, as nanoseconds."""
        return int(sum(fault.amount for fault in self._active(kind, at)) * NANOS)

    def _has(self, kind: FaultKind, at: int) -> bool:
        return bool(self._active(kind, at))

    def _active(self, kind: FaultKind, at: int) -> list[FleetFault]:
        return [one for one in self._faults if one.kind is kind and one.begin <= at < one.end]

    def _new_epoch(self) -> str:
        self._epochs += 1
        key = (self._fleet.spec.seed, self._timing.start, self.name, type(self).__name__, self._epochs)
        return digits(32, *key, *self._copied_at)


class _DuplicateMachine(SimulatedAgent):
    """Duplicate of a machine, which reports its identity but no GPUs."""

    def __init__(self, fleet: Fleet, node: FleetNode, timing: AgentTiming, fault: FleetFault) -> None:
        super().__init__(fleet, node, timing)
        self._fault = fault
        self._faults = ()
        self._copied_at = (fault.begin,)

    def collect(self) -> bool:
        """Collect only during the fault."""
        if self._fault.begin <= self.next_at < self._fault.end:
            return super().collect()
        self.next_at += self._every
        return False

    def _reports(self, pass_: CollectionPass) -> tuple[MachineReport, ...]:
        return (MachineReport(machine=self._machine(pass_.at)),)

    def _machine(self, at: int) -> Machine:
        boot = uuid_of(self._fleet.spec.seed, self.node.name, type(self).__name__, self._fault.begin)
        return msgspec.structs.replace(self._fleet.machine(self.node, at), boot_id=boot, name=self.name)


class ClonedMachine(_DuplicateMachine):
    """Another machine with the same machine-id: a copied disk image."""

    def __init__(self, fleet: Fleet, node: FleetNode, timing: AgentTiming, fault: FleetFault) -> None:
        """Take the node and the fault."""
        super().__init__(fleet, node, timing, fault)
        self.name = f"{node.name}-clone"
        self._epoch = self._new_epoch()


class SecondAgent(_DuplicateMachine):
    """Second agent on a machine, under another name."""

    def __init__(self, fleet: Fleet, node: FleetNode, timing: AgentTiming, fault: FleetFault) -> None:
        """Take the node and the fault."""
        super().__init__(fleet, node, timing, fault)
        self.name = f"{node.name}-second"
        self._epoch = self._new_epoch()

    def _machine(self, at: int) -> Machine:
        return self._fleet.machine(self.node, at)


class ClonedSpool(_DuplicateMachine):
    """Copy of a node with its spool: it continues the sequence numbers from the time of the copy."""

    def __init__(self, fleet: Fleet, original: SimulatedAgent, timing: AgentTiming, fault: FleetFault) -> None:
        """Take the original agent and the fault."""
        super().__init__(fleet, original.node, timing, fault)
        self._original = original
        self._is_copied = False

    def collect(self) -> bool:
        """Collect only during the fault; the first batch reuses the original's newest sequence number."""
        if not self._is_copied and self._fault.begin <= self.next_at and self._original.made:
            self._is_copied = True
            self._epoch, self._seq = self._original.position
        return super().collect()


class SimulatedCollector(SimulatedAgent):
    """Collector of a cluster: reports the objects of the Kubernetes API, and no GPUs."""

    def __init__(self, fleet: Fleet, cluster: int, timing: AgentTiming) -> None:
        """Take the number of the cluster."""
        timing = msgspec.structs.replace(timing, interval=HEARTBEAT_SECONDS)
        super().__init__(fleet, fleet.node(cluster, 1), timing)
        self.name = collector_name(fleet, cluster)
        self._epoch = self._new_epoch()
        self._faults = tuple([one for one in self._faults if one.kind is FaultKind.CLUSTER_OFF])

    def _reports(self, pass_: CollectionPass) -> tuple[MachineReport, ...]:
        return collector_reports(self._fleet, self.cluster, pass_.at, pass_.stamp)

    def _cluster_part(self, pass_: CollectionPass) -> ClusterPart:
        return collector_part(self._fleet, self.cluster, pass_.since, pass_.at, pass_.stamp)


def create_agents(fleet: Fleet, timing: AgentTiming) -> list[SimulatedAgent]:
    """Return every agent of a fleet, with the duplicates and collectors from its faults."""
    agents = [SimulatedAgent(fleet, node, timing) for node in fleet.nodes()]
    of_node = {(one.node.cluster, one.node.number): one for one in agents}
    doubles: list[SimulatedAgent] = []
    for fault in fleet.spec.faults:
        original = of_node.get((fault.cluster, fault.node))
        if original is None:
            continue
        if fault.kind is FaultKind.CLONED_MACHINE:
            doubles.append(ClonedMachine(fleet, original.node, timing, fault))
        if fault.kind is FaultKind.DUPLICATE_AGENT:
            doubles.append(SecondAgent(fleet, original.node, timing, fault))
        if fault.kind is FaultKind.CLONED_SPOOL:
            doubles.append(ClonedSpool(fleet, original, timing, fault))
    clusters = sorted({fault.cluster for fault in fleet.spec.faults if fault.kind in COLLECTOR_FAULTS})
    collectors = [SimulatedCollector(fleet, number, timing) for number in clusters if number <= fleet.spec.clusters]
    return [*agents, *doubles, *collectors]
