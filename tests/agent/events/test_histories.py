"""Timeline over random histories of a machine: each failure has its events, and no failure has others."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.agent.collect.state import EVENTS_READER, Outcome
from gpufleet.agent.events.event_file import SavedEvents
from gpufleet.agent.events.timeline import Timeline, status_before
from gpufleet.fleet.device_events import FAILURE_OF_STATE, FAILURES, DeviceStates
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event, EventKind
from gpufleet.model.reading import Round, Sample
from gpufleet.model.status import ReaderState
from tests.support.passes import World, gpu

READERS = ("nvml", "dcgm", "nvidia_smi")
STALE = 6
"""Instants after which the state of a reader does not count: three intervals of two instants."""

LOG_ENDS = STALE + 4
"""Instants after which a loss that only the log has, or that precedes the start, is over if the readers read `ok`.

A reader that stopped can have a state from before the loss."""


@dataclass
class Card:
    """A GPU as it is, and as readers of the present start of the agent read it.

    Attributes:
        state: its state.
        episode: number of its failures.
        failed_at: instant of the last failure.
        is_open: whether the failure may not be over for the readers.
        read: reader to the state and the instant of its last pass.
        was_read: whether a reader of this start observed the failure.
    """

    state: str = "ok"
    episode: int = 0
    failed_at: int = 0
    is_open: bool = False
    read: dict[str, tuple[str, int]] = field(default_factory=dict)
    was_read: bool = False


@dataclass
class Report:
    """An event of a failure or a recovery, or the failure that a pass of a reader shows."""

    number: int
    episode: int
    key: str
    kind: str
    instant: int


class History:
    """Machine with two GPUs, three readers and the kernel log, in instants of 5 s."""

    def __init__(self, *, is_named_in_log: bool) -> None:
        self.is_named_in_log = is_named_in_log
        self.cards = [Card(), Card()]
        self.instant, self.boot = 0, 0
        self.stopped: set[str] = set()
        self.named: dict[str, set[int]] = {reader: set() for reader in READERS}
        self.log: list[Event] = []
        self.saved: SavedEvents | None = None
        self.events: list[Report] = []
        self.observed: list[Report] = []
        self.quiet: list[tuple[int, int]] = []  # GPU and instant without a state that is a failure
        self.world = self._started()

    def fail(self, number: int, state: str) -> None:
        card = self.cards[number]
        if card.is_open:
            return  # no reader would observe two failures
        card.state = state
        card.episode += 1
        card.is_open, card.failed_at = True, self.instant
        if state == "lost":
            self._log(number, EventKind.XID, 79)
            self._log(number, EventKind.GPU_LOST, 0)

    def repair(self, number: int) -> None:
        self.cards[number].state = "ok"

    def stop(self, reader: str) -> None:
        self.stopped.add(reader)

    def start(self, reader: str) -> None:
        """Start a reader; DCGM's engine then knows the UUIDs of GPUs that answer only."""
        self.stopped.discard(reader)
        if reader == "dcgm":
            self.named[reader].clear()

    def restart_agent(self, instants: int) -> None:
        self._emit(everything=True)
        self.instant += instants
        self.world.clock.advance(5 * instants)
        self.world = self._started()

    def reboot(self, instants: int) -> None:
        self.boot += 1
        self.log.clear()
        self.named = {reader: set() for reader in READERS}
        for card in self.cards:
            card.episode += card.is_open
        self.restart_agent(instants)

    def run(self, instants: int) -> None:
        for _ in range(instants):
            self.instant += 1
            self.world.clock.advance(2)
            self._take("kmsg", Lane.EVENT, Round(events=tuple(self.log)))
            for reader in READERS[self.instant % 2 :: 2]:
                self._pass(reader)
            for number, card in enumerate(self.cards):
                states = [state for state, at in card.read.values() if self.instant - at <= STALE]
                failing = any(state in FAILURE_OF_STATE for state in states)
                card.was_read |= failing
                if card.was_read and not failing:
                    self.quiet.append((number, self.instant))
                is_recent = self.instant - max(card.failed_at, self.started_at) < LOG_ENDS
                card.is_open &= failing or is_recent or not states or card.state != "ok"
            self.world.clock.advance(3)
            self._emit()

    def count(self, number: int) -> object:
        lanes = self.world.state.views()[gpu(number).key]
        return lanes[EVENTS_READER, Lane.EVENT].sample.values["gpu_xid_events_total"]

    def _started(self) -> World:
        world = World({"kmsg": (Lane.SLOW, Lane.EVENT), **dict.fromkeys(READERS, (Lane.FAST,))})
        if self.saved is not None:
            world.clock = self.world.clock
            world.state.events.extend(self.saved.events)
        world.state.statuses[EVENTS_READER, Lane.EVENT] = status_before()
        self.started_at = self.instant
        self.timeline = Timeline(world.clock, boot=f"boot-{self.boot}", saved=self.saved)
        self.states = {reader: DeviceStates(reader) for reader in READERS}
        self.named |= {reader: set() for reader in READERS if reader != "dcgm"}
        for card in self.cards:
            card.read, card.was_read = {}, False
        lost = {"host_kernel_log_lost_messages_total": 0}
        world.passed("kmsg", Lane.SLOW, world.sample("kmsg", Lane.SLOW, None, lost))
        return world

    def _log(self, number: int, kind: EventKind, code: int) -> None:
        view = msgspec.structs.replace(gpu(number), uuid=gpu(number).uuid if self.is_named_in_log else None)
        attributes = {"sources": "kmsg", "log_seq": str(len(self.log))}
        self.log.append(
            Event(view=view, kind=kind, code=code, at=self.world.clock.now_ns(), attributes=attributes),
        )

    def _pass(self, reader: str) -> None:
        if reader in self.stopped:
            failed = self.world.outcome(reader, Lane.FAST, None, Absent(Reason.TIMEOUT, ""))
            self.world.state.apply(self.timeline.take(failed, self.world.state))
            return
        samples: list[Sample] = []
        for number, card in enumerate(self.cards):
            if card.state != "lost":
                self.named[reader].add(number)
            uuid = gpu(number).uuid if number in self.named[reader] else None
            view = msgspec.structs.replace(gpu(number), uuid=uuid)
            samples.append(self.world.sample(reader, Lane.FAST, view, {"gpu_state": card.state}))
            card.read[reader] = card.state, self.instant
            if card.state in FAILURE_OF_STATE:
                kind = FAILURE_OF_STATE[card.state]
                self.observed.append(Report(number, card.episode, view.key, kind, self.instant))
        events = tuple(self.states[reader].change_by_samples(samples))
        self._take(reader, Lane.FAST, Round(samples=tuple(samples), events=events))

    def _take(self, reader: str, lane: Lane, done: Round) -> None:
        outcome = self.world.outcome(reader, lane, done)
        self.world.state.apply(self.timeline.take(outcome, self.world.state))

    def _emit(self, *, everything: bool = False) -> None:
        outcome: Outcome | None = self.timeline.emit_pending(self.world.state, everything=everything)
        if outcome is None or outcome.round is None:
            return
        assert outcome.status.state is ReaderState.OK
        self.world.state.apply(outcome)
        for event in outcome.round.events:
            if event.kind == EventKind.XID or event.view is None:
                continue
            number = next(number for number in (0, 1) if gpu(number).pci_address == event.view.pci_address)
            episode = self.cards[number].episode
            self.events.append(Report(number, episode, event.view.key, event.kind, self.instant))
        self.saved = msgspec.json.decode(
            msgspec.json.encode(self.timeline.state_to_save(self.world.state)), type=SavedEvents
        )


ACTIONS = st.one_of(
    st.tuples(st.just("fail"), st.integers(0, 1), st.sampled_from(["lost", "error"])),
    st.tuples(st.just("repair"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["stop", "start"]), st.sampled_from(READERS)),
    st.tuples(st.sampled_from(["restart_agent", "reboot"]), st.integers(0, 8)),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 9), ACTIONS), max_size=7))
def test_failures_have_their_events_and_no_others(
    is_named_in_log: bool, steps: list[tuple[int, tuple[str, int]]]
) -> None:
    history = History(is_named_in_log=is_named_in_log)
    history.run(4)
    for instants, (action, *arguments) in steps:
        getattr(history, action)(*arguments)
        history.run(instants)
    for number in 0, 1:
        history.repair(number)
    for reader in READERS:
        history.start(reader)
    history.run(16)
    for number in 0, 1:
        _check(history, number)
        assert history.count(number) == sum(
            event.kind == EventKind.XID and event.view.pci_address == gpu(number).pci_address
            for event in history.log
            if event.view is not None
        )


def _check(history: History, number: int) -> None:
    events = [event for event in history.events if event.number == number]
    for seen in history.observed:
        kinds = FAILURES if seen.kind == EventKind.GPU_FAILED else {seen.kind}
        assert seen.number != number or any(
            event.kind in kinds and event.episode == seen.episode for event in events
        ), f"no event of {seen}"
    last: dict[tuple[str, str], Report] = {}
    is_failed = False
    for event in events:
        if event.kind == EventKind.GPU_RECOVERED:
            assert is_failed, f"nothing failed before {event}"
            is_failed = False
            last.clear()
        elif event.kind in FAILURES:
            is_failed = True
            known = last.get((event.key, event.kind))
            was_quiet = known is not None and any(
                one == number and known.instant <= at <= event.instant for one, at in history.quiet
            )
            assert known is None or known.episode != event.episode or was_quiet, f"{event} repeats {known}"
            last[event.key, event.kind] = event
    assert not is_failed, f"no recovery after {events[-1]}"
