"""The machine's events: taken from every reader, made one where several tell the same, counted, and told once."""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.agent.changes import Changes
from gpufleet.agent.groups import Groups, log_seq
from gpufleet.agent.keeping import Remembered
from gpufleet.agent.outcome import Outcome
from gpufleet.agent.state import EVENTS_READER as READER
from gpufleet.agent.state import State
from gpufleet.agent.xids import XidCounts, explained
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import Lane
from gpufleet.model.catalogue.events import DRIVER_EVENTS, LOG_LOST, RELEASED
from gpufleet.model.event import Event
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.round import Round
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.view import Side, View, ViewKind
from gpufleet.ports import Clock

SAMPLE_SECONDS = 60.0
"""Between samples of the counts while nothing happens."""


def status_before() -> ReaderStatus:
    """Return the status of the timeline before its first pass."""
    return ReaderStatus(reader=READER, lane=Lane.EVENT, state=ReaderState.NEVER, interval_seconds=SAMPLE_SECONDS)


class Timeline:
    """Takes what passes tell, and gives passes of its own: events that are settled, and the counts."""

    def __init__(self, clock: Clock, *, boot: str = "", remembered: Remembered | None = None) -> None:
        """Take the clocks, the id of this boot, and what was remembered over the restart."""
        self._clock = clock
        self._boot = boot
        old = remembered if remembered is not None and boot and remembered.boot == boot else None
        self._xids = old.xids if old else XidCounts(since=clock.now_ns())
        self._seen_seq = old.log_seq if old else -1
        self._changes = Changes(driver=remembered.driver if remembered else "", session=old.session if old else 0)
        self._groups = Groups()
        self._next_sample = clock.monotonic()

    def take(self, outcome: Outcome, state: State) -> Outcome:
        """Take the events of a pass, and what its readings show; return the pass without its events."""
        done = outcome.round
        if done is None:
            return outcome
        now = self._clock.monotonic()
        told = [event for event in done.events if not self._is_known(event)]
        for sample in done.samples:
            if sample.provenance is Provenance.IMPORTED:
                continue  # of another time than our own readings: the two beside each other would look like changes
            told += self._changes.of_machine(sample) if sample.view is None else self._changes.of_device(sample)
        if done.inventory is not None:
            told += self._changes.of_bus(done.inventory, outcome.ended_at)
        for event in told:
            self._groups.take(explained(msgspec.structs.replace(event, view=_resolve(event.view, state))), now)
        if not done.events:
            return outcome
        return msgspec.structs.replace(outcome, round=msgspec.structs.replace(done, events=()))

    def tell(self, event: Event) -> None:
        """Take an event of the agent itself."""
        self._groups.take(event, self._clock.monotonic())

    def due_in(self) -> float:
        """Return the seconds until `settle` has something to give."""
        now = self._clock.monotonic()
        held = self._groups.due_in(now)
        sample = max(0.0, self._next_sample - now)
        return sample if held is None else min(held, sample)

    def settle(self, state: State, *, released: bool | None = None, everything: bool = False) -> Outcome | None:
        """Return a pass with the events that are settled and the counts, or None while there is nothing to tell.

        Args:
            state: what the agent knows.
            released: whether the devices were let go; None where nobody could ask for that.
            everything: hold nothing back, because nothing more will come.
        """
        now, now_ns = self._clock.monotonic(), self._clock.now_ns()
        events = self._groups.settle(now, everything=everything)
        if not events and now < self._next_sample and not everything:
            return None
        self._next_sample = now + SAMPLE_SECONDS
        self._xids.add(events)
        status = msgspec.structs.replace(
            status_before(), state=ReaderState.OK, last_attempt=now_ns, last_success=now_ns
        )
        samples = list(self._samples(state, now_ns))
        if released is not None:
            samples.append(_sample(None, now_ns, {RELEASED: int(released)}))
        done = Round(samples=tuple(samples), events=tuple(events))
        return Outcome(status=status, round=done, failure=None, ended_at=now_ns, ended=now)

    def remembered(self, state: State) -> Remembered:
        """Return what is to survive a restart: of the kernel's log, that everything before what is held was told."""
        held = self._groups.held_log_seq()
        return Remembered(
            boot=self._boot,
            log_seq=self._seen_seq if held is None else held - 1,
            xids=self._xids,
            driver=self._changes.driver,
            session=self._changes.session,
            events=tuple(state.events),
        )

    def _is_known(self, event: Event) -> bool:
        """Whether it is a record of the kernel's log that was taken before: the log is read anew at each start."""
        seq = log_seq(event)
        if seq is None:
            return False
        if seq <= self._seen_seq:
            return True
        self._seen_seq = seq
        return False

    def _samples(self, state: State, at: int) -> Iterable[Sample]:
        log = [kept.sample.values.get(LOG_LOST) for kept in state.machine_samples().values()]
        log_is_read = any(value is not None and not isinstance(value, Absent) for value in log)
        for key, kept in state.views().items():
            others = [one.sample for (reader, _), one in kept.items() if reader != READER]
            view = others[0].view if others else None
            if view is None or view.kind is not ViewKind.GPU or view.side is not Side.HOST:
                continue
            if view.uuid and view.pci_address:
                self._xids.rename(f"{view.kind}/pci/{view.pci_address}", key)
            driver_tells = any(sample.values.get(DRIVER_EVENTS) == 1 for sample in others)
            values, dims = self._xids.values(key, watched=log_is_read or driver_tells)
            yield _sample(view, at, values, dims)


def _sample(
    view: View | None, at: int, values: Mapping[str, Value | Absent], dims: tuple[DimValue, ...] = ()
) -> Sample:
    return Sample(view=view, reader=READER, lane=Lane.EVENT, measured_at=at, values=dict(values), dims=dims)


def _resolve(view: View | None, state: State) -> View | None:
    """Return the view by which the machine's readers know the device now, where the event has only its place."""
    if view is None or view.pci_address is None:
        return view
    for kept in state.views().values():
        for one in kept.values():
            known = one.sample.view
            if known and known.kind is ViewKind.GPU and known.pci_address == view.pci_address and known.uuid:
                return known
    return view
