"""What the agent knows: the newest sample of every view, reader and lane, and how each reader is doing.

What one pass of one lane of one reader came to.

When each lane of a reader is due. Pure: the instants are given.

MIG devices that one reader cannot name and another one can: shown once, under their name. Pure.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.fleet.devices import is_gone
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue.metric import Lane
from gpufleet.model.event import RECENT_EVENTS, Event
from gpufleet.model.machine import NVIDIA_VENDOR, Machine, PciFunction
from gpufleet.model.reading import Round, Sample
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.view import View, ViewKind


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One pass, ended.

    Attributes:
        status: how the lane is doing after this pass; names reader and lane.
        round: what was read; after a failure, what could be told all the same, or None.
        failure: why the reader could not work at all, or None when it could.
        ended_at: nanoseconds since 1970 when the pass ended.
        ended: the same by the monotonic clock, in seconds.
        withheld: the reader was not asked, because the devices were let go; it holds none.
    """

    status: ReaderStatus
    round: Round | None
    failure: Absent | None
    ended_at: int
    ended: float
    withheld: bool = False


OF_THE_STACK = frozenset({Reason.NO_LIBRARY, Reason.NO_DRIVER, Reason.NO_SUPPORTED_GPU})
"""What a reader of NVIDIA GPUs says where their library or driver, or all of them, are missing."""

STALE_INTERVALS = 3
"""A sample is stale when its lane has not succeeded for it within this many intervals."""


EVENTS_READER = "events"
"""What `reader` says of readings that the agent makes of events: counts of XIDs."""


class Kept(msgspec.Struct, frozen=True):
    """A sample, and when its pass ended by the monotonic clock."""

    sample: Sample
    ended: float


class Inventory(msgspec.Struct, frozen=True):
    """The PCI display controllers, when they were listed (wall clock and monotonic), and on which lane."""

    functions: tuple[PciFunction, ...]
    at: int
    ended: float
    interval_seconds: float


class State:
    """Changes only by `apply`; everything else looks."""

    def __init__(
        self,
        machine: Machine,
        statuses: Iterable[ReaderStatus],
        *,
        name: str | None = None,
        events: Iterable[Event] = (),
    ) -> None:
        """Start knowing nothing but the machine's name and which lanes there will be.

        Args:
            machine: evidence until a reader brings better.
            statuses: one for each lane of each reader.
            name: what to call the machine instead of its host name.
            events: the newest events before, the oldest first.
        """
        self._name = name
        self.machine = self._named(machine)
        self.statuses: dict[tuple[str, Lane], ReaderStatus] = {(s.reader, s.lane): s for s in statuses}
        self.inventory: Inventory | None = None
        self.events: deque[Event] = deque(events, maxlen=RECENT_EVENTS)
        self._kept: dict[str, dict[tuple[str, Lane], Kept]] = {}
        self._machine_kept: dict[tuple[str, Lane], Kept] = {}
        self._was_on_bus: set[str] = set()
        self._members: dict[tuple[str, Lane], frozenset[str]] = {}
        self._failures: dict[str, Absent | None] = {}

    def apply(self, outcome: Outcome) -> None:
        """Take in what a pass came to."""
        status = outcome.status
        self.statuses[status.reader, status.lane] = status
        if status.lane is not Lane.EVENT or outcome.failure is not None:
            # A pass over events asks nothing: that it went well does not say that the reader works.
            self._failures[status.reader] = outcome.failure
        if outcome.round is not None:
            self.events += outcome.round.events
            self._forget_renamed(status.reader, outcome.round)
            self._keep(outcome, outcome.round)
            self._forget_gone_instances()
            if outcome.failure is None and not outcome.round.errors:
                self._forget_the_gone(status.reader, status.lane, outcome.round)

    def left_the_bus(self, address: str) -> bool:
        """Whether the bus showed a function at this address once, and its newest list does not."""
        return (
            self.inventory is not None
            and address in self._was_on_bus
            and all(function.address != address for function in self.inventory.functions)
        )

    def views(self) -> dict[str, dict[tuple[str, Lane], Kept]]:
        """Return view key to what is kept of it, by reader and lane."""
        return self._kept

    def machine_samples(self) -> dict[tuple[str, Lane], Kept]:
        """Return what is kept of the machine itself, by reader and lane."""
        return self._machine_kept

    def is_stale(self, reader: str, lane: Lane, ended: float, now: float) -> bool:
        """Whether a pass of the lane that ended then is too old to speak for now (both monotonic)."""
        return now - ended > STALE_INTERVALS * self.statuses[reader, lane].interval_seconds

    def why_not(self, reader: str) -> Absent | None:
        """Return why a reader gives nothing: not there, not begun, or its newest pass failed; None when it works."""
        states = [status.state for (name, _), status in self.statuses.items() if name == reader]
        if not states:
            return Absent(Reason.NOT_COLLECTED, f"the {reader} reader is not enabled")
        if all(state is ReaderState.NEVER for state in states):
            return Absent(Reason.NOT_COLLECTED, f"the {reader} reader has not completed a pass yet")
        return self._failures.get(reader)

    def excuses(self, failure: Absent) -> bool | None:
        """Whether a reader failed for want of what this machine has no need of: there is no NVIDIA GPU on its PCI bus.

        None while the bus may still be listed for the first time. A bus that is not listed excuses nothing.
        """
        if failure.reason not in OF_THE_STACK:
            return False
        if self.inventory is None:
            return None if self.missing() else False
        return all(function.vendor != NVIDIA_VENDOR for function in self.inventory.functions)

    def judged(self, status: ReaderStatus) -> ReaderStatus:
        """Return how a lane is doing, where a failure that this machine excuses is none: there is nothing to read."""
        failure = self._failures.get(status.reader)
        if status.state is not ReaderState.FAILED or failure is None or not self.excuses(failure):
            return status
        return msgspec.structs.replace(
            status,
            state=ReaderState.OK,
            last_success=status.last_attempt,
            failures=0,
            error_class="",
            last_error="",
        )

    def missing(self) -> tuple[str, ...]:
        """Return `reader/lane` of every lane that has not ended its first pass, whatever that pass came to."""
        return tuple(
            f"{reader}/{lane}" for (reader, lane), status in self.statuses.items() if status.state is ReaderState.NEVER
        )

    def _keep(self, outcome: Outcome, done: Round) -> None:
        source = (outcome.status.reader, outcome.status.lane)
        for sample in done.samples:
            kept = Kept(sample, outcome.ended)
            if sample.view is None:
                self._machine_kept[source] = kept
            else:
                self._kept.setdefault(sample.view.key, {})[source] = kept
        if done.inventory is not None:
            self._was_on_bus |= {function.address for function in done.inventory}
            self.inventory = Inventory(done.inventory, outcome.ended_at, outcome.ended, outcome.status.interval_seconds)
        if done.machine is not None:
            self.machine = self._named(done.machine)

    def _forget_the_gone(self, reader: str, lane: Lane, done: Round) -> None:
        members = frozenset(sample.view.key for sample in done.samples if sample.view is not None)
        for key in self._members.get((reader, lane), frozenset()) - members:
            of_view = self._kept.get(key, {})
            for source in [source for source in of_view if source[0] == reader]:
                del of_view[source]
            if not of_view:
                self._kept.pop(key, None)
        self._members[reader, lane] = members

    def _forget_renamed(self, reader: str, done: Round) -> None:
        """Forget what this reader told of a GPU under another name: at one place on the bus there is one."""
        names: dict[str | None, str] = {
            sample.view.pci_address: sample.view.key
            for sample in done.samples
            if sample.view is not None and sample.view.kind is ViewKind.GPU and sample.view.pci_address
        }
        for key in list(self._kept):
            kept = self._kept[key]
            view = next(iter(kept.values())).sample.view
            if view is None or view.kind is not ViewKind.GPU or names.get(view.pci_address, key) == key:
                continue
            for source in [source for source in kept if source[0] == reader]:
                del kept[source]
            if all(source[0] == EVENTS_READER for source in kept):
                del self._kept[key]

    def _forget_gone_instances(self) -> None:
        """Forget instances that a newer pass over their GPU did not list, also where part of the pass failed."""
        ended = {key: {source: one.ended for source, one in kept.items()} for key, kept in self._kept.items()}
        parents = {key: next(iter(kept.values())).sample.view for key, kept in self._kept.items()}
        for key, view in parents.items():
            if view is not None and view.parent in ended and is_gone(ended[key], ended[view.parent]):
                del self._kept[key]

    def _named(self, machine: Machine) -> Machine:
        return msgspec.structs.replace(machine, name=self._name) if self._name else machine


FIRST_PASS_ORDER = (Lane.STATIC, Lane.SLOW, Lane.FAST, Lane.EVENT)
"""Lanes that are due together run in this order: identity before what changes."""


class Timetable:
    """Every lane is due at once, and then at whole intervals from the start: late passes do not move later ones.

    An instant that is missed, because a pass took longer than its interval, is not made up for.
    """

    def __init__(self, intervals: Mapping[Lane, float], start: float) -> None:
        """Take the seconds between passes of each lane, and the start by the monotonic clock."""
        self._intervals = dict(intervals)
        self._start = start
        self._due = {lane: start for lane in FIRST_PASS_ORDER if lane in intervals}

    def next(self) -> tuple[float, Lane]:
        """Return the earliest instant at which a lane is due, and that lane."""
        lane = min(self._due, key=lambda candidate: self._due[candidate])
        return self._due[lane], lane

    def done(self, lane: Lane, now: float) -> None:
        """Say that a pass of the lane ended at `now`."""
        interval = self._intervals[lane]
        self._due[lane] = self._start + interval * (math.floor((now - self._start) / interval) + 1)


def without_unnamed(outcome: Outcome, state: State) -> Outcome:
    """Return a pass without MIG devices that have no UUID, of GPUs whose MIG devices another reader tells by UUID.

    They are not joined by their instance ids: those are reused, and whose they are now only a new list can tell.
    """
    done = outcome.round
    if done is None or not any(_is_unnamed(sample.view) for sample in done.samples):
        return outcome
    named = {
        one.sample.view.parent
        for kept in state.views().values()
        for (reader, _), one in kept.items()
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
