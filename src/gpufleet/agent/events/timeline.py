"""The event timeline of a machine: events of all readers, grouped, counted, and emitted once."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from gpufleet.agent.collect.assemble import current_readings
from gpufleet.agent.collect.state import EVENTS_READER as READER
from gpufleet.agent.collect.state import AgentState, Outcome
from gpufleet.agent.events.changes import ChangeDetector
from gpufleet.agent.events.event_file import LastPasses, SavedEvents
from gpufleet.agent.events.failures import DeviceFailures, is_failure, is_recovery
from gpufleet.agent.events.groups import HOLD_SECONDS, STATE_SECONDS, EventGroups, log_seq
from gpufleet.agent.events.occupants import Occupants
from gpufleet.agent.events.xids import XidCounts, with_xid_meaning
from gpufleet.fleet.device_events import FAILURE_OF_STATE
from gpufleet.fleet.readings import STATE
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.events import DRIVER_EVENTS, LOG_LOST, RELEASED
from gpufleet.model.device_state import OK
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import DimValue, Provenance, Reading, Round, Sample, Value
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports.clock import Clock

SAMPLE_SECONDS = 60.0
"""Interval between samples of the counts without new events."""


def status_before() -> ReaderStatus:
    """Return the status of the timeline before its first pass."""
    return ReaderStatus(reader=READER, lane=Lane.EVENT, state=ReaderState.NEVER, interval_seconds=SAMPLE_SECONDS)


class Timeline:
    """Takes events from passes and returns passes of its own with due events and XID counts."""

    def __init__(self, clock: Clock, *, boot: str = "", saved: SavedEvents | None = None) -> None:
        """Take the clocks, the id of this boot, and the events saved before the restart."""
        self._clock = clock
        self._boot = boot
        old = saved if saved is not None and boot and saved.boot == boot else None
        self._xids = old.xids if old else XidCounts(since=clock.now_ns())
        self._seen_seq = old.log_seq if old else -1
        self._occupants = Occupants(saved.occupants if saved else {}, boot=boot)
        self._changes = ChangeDetector(
            self._occupants,
            driver=saved.driver if saved else "",
            session=old.session if old else 0,
            session_at=old.last.session_at if old else 0,
            failed_at=old.last.driver_failed_at if old else 0,
            energies=old.last.energies if old else {},
        )
        self._groups = EventGroups()
        self._failures = DeviceFailures()
        self._unended = _unended_failures(saved, self._occupants) if saved else {}
        for one in self._unended.values() if old else ():
            if one.event.at >= self._xids.since:  # of this boot
                self._failures.restore(one.view, one.event, one.failed_at)
        self._next_sample = clock.monotonic()
        self._counted: set[str] = set()  # view keys at the last sample of the counts, and of devices read since

    def take(self, outcome: Outcome, state: AgentState) -> Outcome:
        """Take the events of a pass and those that its readings show; return the pass without events."""
        done = outcome.round
        if outcome.failure is not None and not outcome.withheld:
            self._changes.energies.fail(outcome.failure.reason, outcome.ended_at, outcome.status.reader)
        if done is None:
            return outcome
        now = self._clock.monotonic()
        own = [one for one in done.samples if one.provenance is not Provenance.IMPORTED]
        new = {one.view.key for one in own if one.view is not None} - self._counted
        if new:
            self._counted |= new
            self._next_sample = now

        def is_failed(key: str) -> bool | None:
            return _is_failed(key, state, now)

        found = [event for event in done.events if not self._is_known(event)]
        for sample in own:  # imported values are from other times: beside our own readings they would look like changes
            self._occupants.note(sample)
            found += self._changes.of_machine(sample) if sample.view is None else self._changes.of_device(sample)
        if done.inventory is not None:
            found += self._changes.of_bus(done.inventory, outcome.ended_at)
        for sample in own:
            if sample.view is not None and sample.view.key in new:
                self._name(self._occupants.named(sample.view))
        if not state.missing():
            self._groups.unnamed_seconds = HOLD_SECONDS
        for event in found:
            view = _resolve(event.view, state)
            if event.kind == EventKind.XID and view is not None:
                view = self._occupants.named(view)
            self._group(with_xid_meaning(msgspec.structs.replace(event, view=view)), now, is_failed)
        self._end(self._failures.expire(is_failed), now)
        for sample in done.samples:
            self._resume(sample, state, now)
        self._end(self._recovered_between(state, now, outcome.ended_at), now)
        if not done.events:
            return outcome
        return msgspec.structs.replace(outcome, round=msgspec.structs.replace(done, events=()))

    def add(self, event: Event) -> None:
        """Add an event of the agent itself."""
        self._groups.take(event, self._clock.monotonic())

    def due_in(self) -> float:
        """Return the seconds until `emit_pending` has a pass."""
        now = self._clock.monotonic()
        held = self._groups.due_in(now)
        sample = max(0.0, self._next_sample - now)
        return sample if held is None else min(held, sample)

    def emit_pending(
        self, state: AgentState, *, released: bool | None = None, everything: bool = False
    ) -> Outcome | None:
        """Return a pass with the due events and the counts, or None if there are none.

        Args:
            state: the agent's state.
            released: whether the devices are released; None if this agent supports no release.
            everything: emit held groups too, because the agent stops.
        """
        now, now_ns = self._clock.monotonic(), self._clock.now_ns()
        events = self._groups.emit_pending(now, everything=everything)
        if not events and now < self._next_sample and not everything:
            return None
        self._next_sample = now + SAMPLE_SECONDS
        self._xids.add(events)
        status = msgspec.structs.replace(
            status_before(), state=ReaderState.OK, last_attempt=now_ns, last_success=now_ns
        )
        self._counted = set(state.views())
        samples = list(self._samples(state, now_ns))
        if released is not None:
            samples.append(_sample(None, now_ns, {RELEASED: int(released)}))
        done = Round(samples=tuple(samples), events=tuple(events))
        return Outcome(status=status, round=done, failure=None, ended_at=now_ns, ended=now)

    def state_to_save(self, state: AgentState) -> SavedEvents:
        """Return the content of the event file. Kernel log records before the oldest held one count as emitted."""
        held = self._groups.held_log_seq()
        return SavedEvents(
            boot=self._boot,
            log_seq=self._seen_seq if held is None else held - 1,
            xids=self._xids,
            driver=self._changes.driver,
            session=self._changes.session,
            last=LastPasses(
                session_at=self._changes.session_at,
                driver_failed_at=self._changes.failed_at,
                failed_at={key: one.failed_at for key, one in self._unended.items()} | self._failures.failed_at,
                energies=self._changes.energies.last,
            ),
            events=tuple(state.events),
            occupants=self._occupants.known,
        )

    def _group(self, event: Event, now: float, is_failed: Callable[[str], bool | None]) -> None:
        if is_recovery(event):
            self._end(self._failures.recover(event), now)
            return
        is_repeated = False
        if is_failure(event):
            if event.view is not None:
                self._name(event.view)
            is_repeated = self._failures.is_repeated(event, is_failed)
            if event.view is not None and not is_repeated and log_seq(event) is not None:
                self._unended[event.view.key] = _Unended(event.view, event)
        self._groups.take(event, now, is_repeated=is_repeated)

    def _name(self, view: View) -> None:
        """Name the device of held events, and of their failures, that had its address only."""
        if self._groups.name(view):
            self._failures.name(view)

    def _resume(self, sample: Sample, state: AgentState, now: float) -> None:
        """Add the event of a failure that a sample shows, if no known failure of the device has one."""
        shown, view = sample.values.get(STATE), _resolve(sample.view, state)
        if sample.provenance is Provenance.IMPORTED or view is None or not isinstance(shown, str):
            return
        if shown in FAILURE_OF_STATE:
            self._drop_unended(view)  # the reader will observe the recovery
        event = self._failures.resume(view, shown, sample.measured_at, sample.reader)
        if event is not None:
            self._groups.take(event, now)

    def _end(self, recoveries: Iterable[Event], now: float) -> None:
        """Add the events of recoveries: they end the failures of their devices, whatever observed those."""
        for event in recoveries:
            if event.view is not None:
                self._drop_unended(event.view)
            self._groups.take(event, now)

    def _drop_unended(self, failed: View) -> None:
        """Drop a device from the failures without a reader. A reader may know a lost GPU by its address only."""
        for key, one in list(self._unended.items()):
            at_address = failed.pci_address is not None and one.view.pci_address == failed.pci_address
            if key == failed.key or at_address:
                del self._unended[key]

    def _recovered_between(self, state: AgentState, now: float, at: int) -> list[Event]:
        """Return the events of devices whose failure no reader of this start observed, and that work now.

        To reset a GPU, an operator stops the agent: no reader observes the recovery. A failure in the kernel log can be
        over before the driver answers again.
        """
        events: list[Event] = []
        for key, one in list(self._unended.items()) if self._unended and not state.missing() else ():
            view, failure = one.view, one.event
            if self._occupants.is_replaced(view, failure.at):
                del self._unended[key]
                continue
            known = _resolve(view, state) or view
            shown = (current_readings(known.key, state, now) or {}).get(STATE)
            if shown is None or shown.value != OK or not _is_after(shown, failure):
                continue  # gone, or without an answer: it may be back later
            del self._unended[key]
            recovery = Event(view=known, kind=EventKind.GPU_RECOVERED, at=at, attributes={"sources": shown.reader})
            self._failures.restore(known, failure, one.failed_at)  # it can be of another boot
            events += self._failures.recover(recovery)
        return events

    def _is_known(self, event: Event) -> bool:
        """Return whether the event is a known kernel log record: each start reads the log from the beginning."""
        seq = log_seq(event)
        if seq is None:
            return False
        if seq <= self._seen_seq:
            return True
        self._seen_seq = seq
        return False

    def _samples(self, state: AgentState, at: int) -> Iterable[Sample]:
        log = [one.sample.values.get(LOG_LOST) for one in state.machine_samples().values()]
        log_is_read = any(value is not None and not isinstance(value, Absent) for value in log)
        for lanes in state.views().values():
            others = [one.sample for (reader, _), one in lanes.items() if reader != READER]
            view = others[0].view if others else None
            if view is None or view.kind is not ViewKind.GPU or view.side is not Side.HOST:
                continue
            self._xids.place(view)
            is_watched = log_is_read or any(sample.values.get(DRIVER_EVENTS) == 1 for sample in others)
            values, dims = self._xids.values(view, watched=is_watched)
            if not is_watched:  # the page of an exporter can have them, or a better reason
                values = {
                    name: value for name, value in values.items() if not any(name in one.values for one in others)
                }
            if values:
                yield _sample(view, at, values, dims)


class _Unended(NamedTuple):
    """A failure without a recovery that no reader of this start has observed.

    Attributes:
        view: the device.
        event: its event.
        failed_at: last observation of the failure before the agent's start, nanoseconds since 1970; 0 if unknown.
    """

    view: View
    event: Event
    failed_at: int = 0


def _unended_failures(saved: SavedEvents, occupants: Occupants) -> dict[str, _Unended]:
    """Return the devices with a failure that no later event ended, by view key.

    A GPU that a later start knew by its address only has one failure. One that had no UUID can have it once it works.
    """
    failed: dict[str, _Unended] = {}
    for event in saved.events:  # in order of time
        view = event.view
        if view is None:
            continue
        key = occupants.key(view, event.at)
        if is_failure(event):
            before = failed.get(key)
            observed_at = max(saved.last.failed_at.get(one, 0) for one in (key, view.unnamed_key))
            named = before.view if before is not None and view.uuid is None else view
            failed[key] = _Unended(named, event, observed_at)
        elif is_recovery(event):
            failed.pop(key, None)
            failed.pop(view.unnamed_key, None)
    return failed


def _is_after(shown: Reading, failure: Event) -> bool:
    """Return whether a reading proves that a loss in the kernel log is over. Readers observe it later than the log."""
    if log_seq(failure) is None or shown.measured_at is None:
        return True
    return shown.measured_at >= to_datetime(failure.at + int(STATE_SECONDS * NANOS))


def _sample(
    view: View | None, at: int, values: Mapping[str, Value | Absent], dims: tuple[DimValue, ...] = ()
) -> Sample:
    return Sample(view=view, reader=READER, lane=Lane.EVENT, measured_at=at, values=dict(values), dims=dims)


def _is_failed(key: str, state: AgentState, now: float) -> bool | None:
    """Return whether the state of a device is a failure, None for a device that is gone or has no state yet."""
    reading = (current_readings(key, state, now) or {}).get(STATE)
    return None if reading is None else reading.value not in (None, OK)


def _resolve(view: View | None, state: AgentState) -> View | None:
    """Return the view with the UUID of the device if the event has only its PCI address.

    After a swap of cards, a slow reader still shows the earlier card: the newest sample counts.
    """
    if view is None or view.pci_address is None or (view.kind is ViewKind.GPU and view.uuid is not None):
        return view
    samples = [one.sample for lanes in state.views().values() for one in lanes.values()]
    named = [
        (one.measured_at, known)
        for one in samples
        if (known := one.view) and known.kind is ViewKind.GPU and known.uuid and known.pci_address == view.pci_address
    ]
    return max(named, key=lambda one: one[0])[1] if named else view
