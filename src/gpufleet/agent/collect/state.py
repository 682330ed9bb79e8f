"""The state of an agent: newest samples, reader statuses, PCI inventory, recent events; and the lanes' timetable."""

import math
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.fleet.devices import is_gone
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.event import RECENT_EVENTS, Event
from gpufleet.model.holdings import DeviceHolders
from gpufleet.model.machine import NVIDIA_VENDOR, Machine, PciFunction
from gpufleet.model.reading import Round, Sample
from gpufleet.model.status import MISSED_PASSES, ReaderState, ReaderStatus, lane_interval
from gpufleet.model.view import View, ViewKind


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one pass of one lane of one reader.

    Attributes:
        status: the lane's status after this pass; names reader and lane.
        round: the samples read; after a failure, those that could be read anyway, or None.
        failure: why the reader failed as a whole, or None.
        ended_at: end of the pass, nanoseconds since 1970.
        ended: the same in monotonic seconds.
        withheld: the reader was not called because its devices are released.
    """

    status: ReaderStatus
    round: Round | None
    failure: Absent | None
    ended_at: int
    ended: float
    withheld: bool = False


DRIVER_STACK_REASONS = frozenset({Reason.NO_LIBRARY, Reason.NO_DRIVER, Reason.NO_SUPPORTED_GPU})
"""Failures of a GPU reader whose library, driver or GPUs are missing."""

EVENTS_READER = "events"
"""Reader name of readings that the agent derives from events, such as XID counts."""


class LaneSample(msgspec.Struct, frozen=True):
    """A sample and the end of its pass in monotonic seconds."""

    sample: Sample
    ended: float


class PciInventory(msgspec.Struct, frozen=True):
    """The PCI display controllers.

    Attributes:
        functions: the controllers.
        at: time of the listing, nanoseconds since 1970.
        ended: the same in monotonic seconds.
        interval_seconds: interval of the lane that lists them.
    """

    functions: tuple[PciFunction, ...]
    at: int
    ended: float
    interval_seconds: float


class AgentState:
    """The newest sample of each view, reader and lane, and the status of each reader. Changed by `apply` only.

    Attributes:
        holders: view key to its holders; replaced after each round over the holder sources.
    """

    def __init__(
        self,
        machine: Machine,
        statuses: Iterable[ReaderStatus],
        *,
        name: str | None = None,
        events: Iterable[Event] = (),
    ) -> None:
        """Start without samples.

        Args:
            machine: identity evidence until a reader provides better.
            statuses: one for each lane of each reader.
            name: replaces the machine's host name.
            events: events from before the start, oldest first.
        """
        self._name = name
        self.machine = self._named(machine)
        self.statuses: dict[tuple[str, Lane], ReaderStatus] = {(s.reader, s.lane): s for s in statuses}
        self.inventory: PciInventory | None = None
        self.holders: Mapping[str, DeviceHolders] = {}
        self.events: deque[Event] = deque(events, maxlen=RECENT_EVENTS)
        self._view_samples: dict[str, dict[tuple[str, Lane], LaneSample]] = {}
        self._machine_samples: dict[tuple[str, Lane], LaneSample] = {}
        self._was_on_bus: set[str] = set()
        self._members: dict[tuple[str, Lane], frozenset[str]] = {}
        self._failures: dict[str, Absent | None] = {}

    def apply(self, outcome: Outcome) -> None:
        """Apply the outcome of a pass."""
        status = outcome.status
        self.statuses[status.reader, status.lane] = status
        if status.lane is not Lane.EVENT or outcome.failure is not None:
            # A pass over events queries nothing: its success does not prove that the reader works.
            self._failures[status.reader] = outcome.failure
        if outcome.round is not None:
            self.events += outcome.round.events
            self._drop_renamed(status.reader, outcome.round)
            self._keep(outcome, outcome.round)
            self._drop_ended_instances()
            if outcome.failure is None and not outcome.round.errors:
                self._drop_removed(status.reader, status.lane, outcome.round)

    def left_the_bus(self, address: str) -> bool:
        """Return whether an earlier PCI listing had a function at this address and the newest has not."""
        return (
            self.inventory is not None
            and address in self._was_on_bus
            and all(function.address != address for function in self.inventory.functions)
        )

    def views(self) -> dict[str, dict[tuple[str, Lane], LaneSample]]:
        """Return view key to its newest samples, by reader and lane."""
        return self._view_samples

    def machine_samples(self) -> dict[tuple[str, Lane], LaneSample]:
        """Return the newest samples of the machine itself, by reader and lane."""
        return self._machine_samples

    def is_stale(self, reader: str, lane: Lane, ended: float, now: float) -> bool:
        """Return whether a pass of the lane that ended at `ended` is stale at `now`, both in monotonic seconds."""
        return now - ended > MISSED_PASSES * lane_interval(self.statuses[reader, lane])

    def why_not(self, reader: str) -> Absent | None:
        """Return why a reader has no values: not enabled, no pass yet, or its newest pass failed. None if it works."""
        states = [status.state for (name, _), status in self.statuses.items() if name == reader]
        if not states:
            return Absent(Reason.NOT_COLLECTED, f"the {reader} reader is not enabled")
        if all(state is ReaderState.NEVER for state in states):
            return Absent(Reason.NOT_COLLECTED, f"the {reader} reader has not completed a pass yet")
        return self._failures.get(reader)

    def nothing_to_read(self, failure: Absent) -> bool | None:
        """Return whether a reader failed only because this machine has no NVIDIA GPU on its PCI bus.

        None before the first PCI listing. If no reader lists the bus, no failure is excused.
        """
        if failure.reason not in DRIVER_STACK_REASONS:
            return False
        if self.inventory is None:
            return None if self.missing() else False
        return all(function.vendor != NVIDIA_VENDOR for function in self.inventory.functions)

    def judged(self, status: ReaderStatus) -> ReaderStatus:
        """Return the status of a lane, with an excused failure turned into `ok`: there is nothing to read.

        Class and message of the error stay: an allocation that expects GPUs on this machine needs them.
        """
        failure = self._failures.get(status.reader)
        if status.state is not ReaderState.FAILED or failure is None or not self.nothing_to_read(failure):
            return status
        return msgspec.structs.replace(
            status,
            state=ReaderState.OK,
            last_success=status.last_attempt,
            failures=0,
        )

    def missing(self) -> tuple[str, ...]:
        """Return `reader/lane` of each lane whose first pass has not ended yet."""
        return tuple(
            f"{reader}/{lane}" for (reader, lane), status in self.statuses.items() if status.state is ReaderState.NEVER
        )

    def _keep(self, outcome: Outcome, done: Round) -> None:
        source = (outcome.status.reader, outcome.status.lane)
        for sample in done.samples:
            lane_sample = LaneSample(sample, outcome.ended)
            if sample.view is None:
                self._machine_samples[source] = lane_sample
            else:
                self._view_samples.setdefault(sample.view.key, {})[source] = lane_sample
        if done.inventory is not None:
            self._was_on_bus |= {function.address for function in done.inventory}
            interval = lane_interval(outcome.status)
            self.inventory = PciInventory(done.inventory, outcome.ended_at, outcome.ended, interval)
        if done.machine is not None:
            self.machine = self._named(done.machine)

    def _drop_removed(self, reader: str, lane: Lane, done: Round) -> None:
        members = frozenset(sample.view.key for sample in done.samples if sample.view is not None)
        for key in self._members.get((reader, lane), frozenset()) - members:
            of_view = self._view_samples.get(key, {})
            for source in [source for source in of_view if source[0] == reader]:
                del of_view[source]
            if not of_view:
                self._view_samples.pop(key, None)
        self._members[reader, lane] = members

    def _drop_renamed(self, reader: str, done: Round) -> None:
        """Drop this reader's samples of a GPU under its previous key: one PCI address has one GPU."""
        names: dict[str | None, str] = {
            sample.view.pci_address: sample.view.key
            for sample in done.samples
            if sample.view is not None and sample.view.kind is ViewKind.GPU and sample.view.pci_address
        }
        for key in list(self._view_samples):
            lanes = self._view_samples[key]
            view = next(iter(lanes.values())).sample.view
            if view is None or view.kind is not ViewKind.GPU or names.get(view.pci_address, key) == key:
                continue
            for source in [source for source in lanes if source[0] == reader]:
                del lanes[source]
            if all(source[0] == EVENTS_READER for source in lanes):
                del self._view_samples[key]

    def _drop_ended_instances(self) -> None:
        """Drop instances that a newer pass over their GPU did not list, even if a part of that pass failed."""
        ended = {key: {source: one.ended for source, one in lanes.items()} for key, lanes in self._view_samples.items()}
        parents = {key: next(iter(lanes.values())).sample.view for key, lanes in self._view_samples.items()}
        for key, view in parents.items():
            if view is not None and view.parent in ended and is_gone(ended[key], ended[view.parent]):
                del self._view_samples[key]

    def _named(self, machine: Machine) -> Machine:
        return msgspec.structs.replace(machine, name=self._name) if self._name else machine


FIRST_PASS_ORDER = (Lane.STATIC, Lane.SLOW, Lane.FAST, Lane.EVENT)
"""Order of lanes that are due together: identity before values."""


class Timetable:
    """Due times of a reader's lanes.

    Each lane is due at the start and then at whole intervals from the start, so a late pass does not shift later
    passes. A due time missed by a long pass is skipped.
    """

    def __init__(self, intervals: Mapping[Lane, float], start: float) -> None:
        """Take each lane's interval in seconds and the start in monotonic seconds."""
        self._intervals = dict(intervals)
        self._start = start
        self._due = {lane: start for lane in FIRST_PASS_ORDER if lane in intervals}

    def next(self) -> tuple[float, Lane]:
        """Return the earliest due time and its lane."""
        lane = min(self._due, key=lambda candidate: self._due[candidate])
        return self._due[lane], lane

    def done(self, lane: Lane, now: float) -> None:
        """Record the end of a pass of the lane."""
        interval = self._intervals[lane]
        self._due[lane] = self._start + interval * (math.floor((now - self._start) / interval) + 1)

    def hasten(self, now: float) -> None:
        """Make the lanes that describe devices due at once."""
        self._due |= {lane: min(due, now) for lane, due in self._due.items() if lane in (Lane.STATIC, Lane.SLOW)}


def without_unnamed(outcome: Outcome, state: AgentState) -> Outcome:
    """Drop MIG devices without a UUID from a pass if another reader lists the MIG devices of that GPU by UUID.

    They are not joined by instance id: ids are reused, and only a new listing shows which device has one now.
    """
    done = outcome.round
    if done is None or not any(_is_unnamed(sample.view) for sample in done.samples):
        return outcome
    named = {
        one.sample.view.parent
        for lanes in state.views().values()
        for (reader, _), one in lanes.items()
        if reader != outcome.status.reader and one.sample.view is not None and one.sample.view.kind is ViewKind.MIG
        if one.sample.view.uuid is not None
    }
    samples = tuple(
        sample
        for sample in done.samples
        if not (_is_unnamed(sample.view) and sample.view is not None and sample.view.parent in named)
    )
    return msgspec.structs.replace(outcome, round=msgspec.structs.replace(done, samples=samples))


def _is_unnamed(view: View | None) -> bool:
    return view is not None and view.kind is ViewKind.MIG and view.uuid is None
