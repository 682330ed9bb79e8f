"""The agents of the fleet: each counts its batches, keeps what waits, and says so, as a real one does."""

from collections import deque

import msgspec

from gpufleet import __version__
from gpufleet.codecs.batch import encode, renumber
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine
from gpufleet.model.status import Heartbeat
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import Batch, MachineReport
from gpufleet.simulate.fleet.chance import digits, number, uuid_of
from gpufleet.simulate.fleet.faults import Fault, FaultKind
from gpufleet.simulate.fleet.fleet import Fleet
from gpufleet.simulate.fleet.layout import Node
from gpufleet.simulate.fleet.reports import Look, reports_of

SLOW_SECONDS = 60.0
STATIC_SECONDS = 600.0
HEARTBEAT_SECONDS = 30.0
"""Intervals of an agent that nobody has configured."""

OFF = frozenset(
    {
        *(FaultKind.SILENT_CLUSTER, FaultKind.HALF_CLUSTER, FaultKind.SILENT_NODE),
        *(FaultKind.AGENT_RESTART, FaultKind.NODE_REBOOT),
    }
)
"""Faults in which nothing is measured."""


class Body(msgspec.Struct, frozen=True):
    """A batch that waits.

    Attributes:
        seq: its number.
        measured_at: by its node's clock.
        content: its bytes.
    """

    seq: int
    measured_at: int
    content: bytes


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When agents look.

    Attributes:
        start: nanoseconds since 1970; what agents number begins here, so a run from another instant has other epochs.
        interval: seconds between looks of the fast lane.
        at_once: whether all agents look at the same instants, and not spread over the interval.
    """

    start: int
    interval: float = 10.0
    at_once: bool = False


class Agent:
    """One sender.

    Attributes:
        name: by which it sends.
        next_at: when it looks next, nanoseconds since 1970.
        waiting: batches that no hub has taken, the oldest first.
        made: batches so far.
        dropped: batches that it lost and counts.
    """

    def __init__(self, fleet: Fleet, node: Node, timing: Timing) -> None:
        """Take whose agent it is."""
        self.node = node
        self.name = node.name
        self.waiting: deque[Body] = deque()
        self.made = 0
        self.dropped = 0
        self._fleet = fleet
        self._timing = timing
        self._every = int(timing.interval * NANOS)
        self._first = timing.start + (0 if timing.at_once else number(self._every, fleet.spec.seed, node.name, "turn"))
        self.next_at = self._first
        self._before = 0  # the look before; 0 when there was none since it was started
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
        """The epoch under which it counts, and the number before its newest batch's."""
        return self._epoch, max(0, self._seq - 1)

    def is_cut_off(self, at: int) -> bool:
        """Whether it reaches no hub at that instant."""
        return self._has(FaultKind.BACKFILL, at)

    def look(self) -> bool:
        """Look at what is due at `next_at`, and number the batch of it; False where there is none."""
        at, since = self.next_at, self._before or self.next_at - self._every
        self.next_at += self._every
        if any(fault.kind in OFF and fault.begin <= at < fault.end for fault in self._faults):
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
        if any(fault.kind is FaultKind.SPOOL_WIPED for fault in begun):
            self._epoch, self._seq = self._new_epoch(), 0
        return True

    def take(self, *, oldest: bool = False) -> Body:
        """Take the newest batch that waits, or the oldest."""
        return self.waiting.popleft() if oldest else self.waiting.pop()

    def put_back(self, body: Body) -> None:
        """Let a batch wait that was not taken: in its place by its number, so that the oldest stays known."""
        at = len(self.waiting)
        while at and self.waiting[at - 1].measured_at > body.measured_at:
            at -= 1
        self.waiting.insert(at, body)

    def drop_oldest(self) -> None:
        """Lose the oldest batch that waits, and count it."""
        self.dropped += 1
        self.waiting.popleft()

    def renew(self, body: Body) -> None:
        """Number a batch that another machine's epoch has cost, and all that waits, anew."""
        self.put_back(body)
        self._epoch, self._seq = self._new_epoch(), 0
        for at, one in enumerate(self.waiting):
            self._seq += 1
            self.waiting[at] = Body(self._seq, one.measured_at, renumber(one.content, self._epoch, self._seq))

    def _make(self, at: int, since: int) -> None:
        ahead = self._ahead(at)
        look = Look(
            at=at,
            since=since,
            lanes=[Lane.FAST, *self._due(at, Lane.SLOW, SLOW_SECONDS), *self._due(at, Lane.STATIC, STATIC_SECONDS)],
            intervals={Lane.FAST: self._timing.interval, Lane.SLOW: SLOW_SECONDS, Lane.STATIC: STATIC_SECONDS},
            ahead=ahead,
        )
        self._seq += 1
        batch = Batch(
            cluster=self.node.cluster_id,
            sender=self.name,
            epoch=self._epoch,
            seq=self._seq,
            sent_at=look.stamp,
            heartbeat=self._heartbeat() if self._is_due(at, HEARTBEAT_SECONDS) else None,
            reports=self._reports(look),
        )
        self.waiting.append(Body(self._seq, look.stamp, encode(batch)))
        self.made += 1
        self._before = at

    def _reports(self, look: Look) -> tuple[MachineReport, ...]:
        return reports_of(self._fleet, self.node, look)

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            interval_seconds=HEARTBEAT_SECONDS,
            version=__version__,
            started_at=self._started_at,
            config_hash="simulated",
            queue_records=len(self.waiting),
            queue_bytes=sum(len(body.content) for body in self.waiting),
            oldest_unsent=self.waiting[0].measured_at if self.waiting else None,
            dropped_total=self.dropped,
        )

    def _due(self, at: int, lane: Lane, seconds: float) -> tuple[Lane, ...]:
        return (lane,) if self._is_due(at, seconds) else ()

    def _is_due(self, at: int, seconds: float) -> bool:
        """Tell whether something that is done this often is due: at first, and once a span of it has begun."""
        every = int(seconds * NANOS)
        return not self._before or (at - self._first) // every != (self._before - self._first) // every

    def _ahead(self, at: int) -> int:
        """Return how far its clock is ahead at that instant, in nanoseconds."""
        return int(sum(fault.amount for fault in self._active(FaultKind.CLOCK_STEP, at)) * NANOS)

    def _has(self, kind: FaultKind, at: int) -> bool:
        return bool(self._active(kind, at))

    def _active(self, kind: FaultKind, at: int) -> list[Fault]:
        return [one for one in self._faults if one.kind is kind and one.begin <= at < one.end]

    def _new_epoch(self) -> str:
        self._epochs += 1
        words = (self._fleet.spec.seed, self._timing.start, self.name, type(self).__name__, self._epochs)
        return digits(32, *words)


class _Double(Agent):
    """A machine that should not be: it tells who it is, and nothing of GPUs."""

    def __init__(self, fleet: Fleet, node: Node, timing: Timing, fault: Fault) -> None:
        super().__init__(fleet, node, timing)
        self._fault = fault
        self._faults = ()

    def look(self) -> bool:
        """Look only while the fault lasts."""
        if self._fault.begin <= self.next_at < self._fault.end:
            return super().look()
        self.next_at += self._every
        return False

    def _reports(self, look: Look) -> tuple[MachineReport, ...]:
        return (MachineReport(machine=self._machine(look.at)),)

    def _machine(self, at: int) -> Machine:
        boot = uuid_of(self._fleet.spec.seed, self.node.name, type(self).__name__, self._fault.begin)
        return msgspec.structs.replace(self._fleet.machine(self.node, at), boot_id=boot, name=self.name)


class Clone(_Double):
    """Another machine with the same machine-id: an image that was copied."""

    def __init__(self, fleet: Fleet, node: Node, timing: Timing, fault: Fault) -> None:
        """Take of which node, and when."""
        super().__init__(fleet, node, timing, fault)
        self.name = f"{node.name}-clone"
        self._epoch = self._new_epoch()


class Rival(_Double):
    """A copy of a node with its spool: it goes on counting where the copy was made."""

    def __init__(self, fleet: Fleet, original: Agent, timing: Timing, fault: Fault) -> None:
        """Take whose copy it is, and when."""
        super().__init__(fleet, original.node, timing, fault)
        self._original = original
        self._is_copied = False

    def look(self) -> bool:
        """Look only while the fault lasts; at first under the number that the original has just used."""
        if not self._is_copied and self._fault.begin <= self.next_at and self._original.made:
            self._is_copied = True
            self._epoch, self._seq = self._original.position
        return super().look()


def agents_of(fleet: Fleet, timing: Timing) -> list[Agent]:
    """Return every agent of a fleet, with the doubles that its faults bring."""
    agents = [Agent(fleet, node, timing) for node in fleet.nodes()]
    of_node = {(one.node.cluster, one.node.number): one for one in agents}
    doubles: list[Agent] = []
    for fault in fleet.spec.faults:
        original = of_node.get((fault.cluster, fault.node))
        if original is None:
            continue
        if fault.kind is FaultKind.CLONED_MACHINE:
            doubles.append(Clone(fleet, original.node, timing, fault))
        if fault.kind is FaultKind.CLONED_SPOOL:
            doubles.append(Rival(fleet, original, timing, fault))
    return [*agents, *doubles]
