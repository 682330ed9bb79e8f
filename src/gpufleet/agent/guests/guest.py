"""One virtual machine: its readers' loops, what is known of it, and how it is doing."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence

import msgspec

from gpufleet.agent.collect.assemble import Assembler
from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import STALE_INTERVALS, Outcome, State, Timetable
from gpufleet.agent.guests.health import AWAITED, NO_WAY, Stamps, Standing, judge
from gpufleet.agent.guests.sources import Found
from gpufleet.agent.guests.ways import HEARD, FirstAnswer, Link, Way
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import OK, REMOVED, Machine, MachineKind
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.model.snapshot import Guest
from gpufleet.model.status import ReaderState, ReaderStatus
from gpufleet.model.view import ViewKind
from gpufleet.model.wire.batch import MachineReport
from gpufleet.ports.clock import Clock

READER = "guests"
"""What `reader` says of readings that the agent makes of the virtual machine."""

BOOT_SECONDS = 600.0
"""How long a virtual machine that was never heard of is awaited, and asked more often."""

EAGER_SECONDS, PATIENT_SECONDS, EAGER_FOR_SECONDS = 1.0, 5.0, 60.0
"""Between passes while it is awaited: at first, and after `EAGER_FOR_SECONDS`."""

MAX_PENDING = 200
"""Samples, and events, that wait for a batch; the oldest go first."""

MAX_VIEWS = 512
"""Devices that are remembered: one that shows others every time starts anew."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a virtual machine is reached by.

    Attributes:
        links: every channel that is kept open.
        gpus: ways to its GPUs, the preferred first.
        host: ways to its processor, memory and network.
    """

    links: tuple[Link, ...]
    gpus: tuple[Way, ...]
    host: tuple[Way, ...]


class GuestWatch:
    """Reads one virtual machine until cancelled. Nothing that it does or says costs another one."""

    def __init__(
        self,
        found: Found,
        access: Access,
        *,
        intervals: Mapping[Lane, float],
        clock: Clock,
        changed: Callable[[], None],
        collects: bool,
        spread: bool,
    ) -> None:
        """Take the parts.

        Args:
            found: who it is, and who told of it.
            access: how it is reached.
            intervals: seconds between passes by lane.
            clock: the clocks.
            changed: hears that there is something new.
            collects: whether samples wait for a batch.
            spread: whether it begins at its own instant of the fast interval, beside many that begin now.
        """
        self.found, self.guest = found, found.guest
        guest = found.guest
        self._access, self._clock, self._changed, self._collects = access, clock, changed, collects
        self._intervals = intervals
        self._began = clock.monotonic()
        self._stamps = Stamps(seen=clock.now_ns())
        self._delay = _place(guest.uid) * intervals[Lane.FAST] if spread else 0.0
        self._gpus = FirstAnswer("gpus", access.gpus, clock, wants_devices=True, opened=self._opened)
        self._host = FirstAnswer("host", access.host, clock, wants_devices=False, opened=self._opened)
        self._loops = [
            self._loop(reader, ways) for reader, ways in ((self._gpus, access.gpus), (self._host, access.host)) if ways
        ]
        self._standing = AWAITED if access.gpus else NO_WAY
        self._heard = self._began
        self._shown: tuple[str, ...] = ()
        self._names: dict[str, str] = {}
        self._pending: deque[Sample] = deque(maxlen=MAX_PENDING)
        self._events: deque[Event] = deque(maxlen=MAX_PENDING)
        self._statuses: dict[tuple[str, Lane], ReaderStatus] = {}
        self._told: Standing | None = None
        self._told_at = self._began
        self._document: Guest | None = None
        self._assembled = self._began
        self._assembler, self._changes = Assembler(), 0
        self._start_anew()
        self._tell()

    @property
    def standing(self) -> Standing:
        """How it is doing."""
        return self._standing

    async def run(self) -> None:
        """Run until cancelled, then hang up."""
        try:
            await asyncio.sleep(self._delay)
            async with asyncio.TaskGroup() as tasks:
                for loop in self._loops:
                    tasks.create_task(self._keep(loop), name=f"{loop.reader.name} of {self.guest.title}")
        finally:
            for reader in (self._gpus, self._host):
                await reader.close()
            for link in self._access.links:
                await link.close()

    def document(self, hypervisor: str) -> Generator[None, None, Guest]:
        """Return what snapshots show of it; made anew after a change, and as readings grow old."""
        now = self._clock.monotonic()
        if self._document is None or now - self._assembled >= self._intervals[Lane.FAST]:
            changes = self._changes
            found = yield from self._assembler.steps(self._state, now=now, now_ns=self._clock.now_ns(), capabilities={})
            made = Guest(
                machine=self.machine(hypervisor),
                namespace=self.guest.namespace,
                name=self.guest.name,
                vm_uuid=self.guest.uid,
                allocation=self.guest.allocation,
                state=self._standing.state,
                detail=self._standing.detail,
                found_by=self.found.by,
                ways=tuple(dict.fromkeys((*self._gpus.tried, *self._host.tried))),
                devices=found.devices,
                host=found.host,
                readers=found.readers,
            )
            if changes != self._changes:
                return made  # what came while it was made is in the next one
            self._document, self._assembled = made, now
        return self._document

    def machine(self, hypervisor: str) -> Machine:
        """Return who it is: what was dialled."""
        return Machine(name=self.guest.title, kind=MachineKind.GUEST, system_uuid=self.guest.uid, hypervisor=hypervisor)

    def take(self, hypervisor: str) -> MachineReport | None:
        """Return what is new since the last time, or None."""
        if not self._pending and not self._statuses:
            return None
        report = MachineReport(
            machine=self.machine(hypervisor),
            samples=tuple(self._pending),
            events=tuple(self._events),
            readers=tuple(self._statuses.values()),
        )
        self._pending.clear()
        self._events.clear()
        self._statuses = {}
        return report

    def farewell(self, hypervisor: str) -> MachineReport:
        """Return the last word: it is read no more."""
        self._standing = Standing(REMOVED, "its agent was told to read it no more")
        sample = self._own_sample()
        return MachineReport(machine=self.machine(hypervisor), samples=(sample,))

    def _loop(self, reader: FirstAnswer, ways: Sequence[Way]) -> ReaderLoop:
        return ReaderLoop(
            reader,
            intervals=self._intervals,
            timeout_seconds=reader.pass_seconds,
            clock=self._clock,
            report=self._take,
        )

    async def _keep(self, loop: ReaderLoop) -> None:
        await self._await_first(loop)
        start = self._clock.monotonic()
        timetable = Timetable({lane: self._intervals[lane] for lane in loop.reader.lanes}, start)
        while True:
            due, lane = timetable.next()
            await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
            self._take(await loop.run_pass(lane))
            timetable.done(lane, self._clock.monotonic())

    async def _await_first(self, loop: ReaderLoop) -> None:
        """Ask often until it gives something, so that it is known when it was ready."""
        while True:
            outcome = await loop.run_pass(Lane.FAST)
            self._take(outcome)
            waited = self._clock.monotonic() - self._began
            if outcome.failure is None or waited > BOOT_SECONDS:
                return
            await asyncio.sleep(EAGER_SECONDS if waited < EAGER_FOR_SECONDS else PATIENT_SECONDS)

    def _opened(self) -> None:
        if self._stamps.channel_open is None:
            self._stamps.channel_open = self._clock.now_ns()

    def _take(self, outcome: Outcome) -> None:
        events = outcome.round.events if outcome.round is not None else ()
        known = self._state.statuses[outcome.status.reader, outcome.status.lane].state
        if outcome.status.lane is Lane.EVENT and known is outcome.status.state and not events:
            return  # nothing happened, and nobody waits to hear it
        if max(len(self._state.views()), len(self._names)) > MAX_VIEWS:
            self._start_anew()
        self._state.apply(outcome)
        self._statuses[outcome.status.reader, outcome.status.lane] = outcome.status
        if self._collects and outcome.round is not None:
            self._pending += outcome.round.samples
            self._events += events
        answered = outcome.failure is None or outcome.failure.reason in HEARD
        if answered and self._stamps.first_answer is None:
            self._stamps.first_answer = outcome.ended_at
        if outcome.status.reader == self._gpus.name:
            self._judge(outcome)
        self._tell()
        self._document = None
        self._changes += 1
        self._changed()

    def _judge(self, outcome: Outcome) -> None:
        """Judge by the fast lane; names of products come on the static one."""
        if outcome.round is not None and outcome.failure is None:
            self._names |= _names_of(outcome.round)
        if outcome.status.lane is not Lane.FAST:
            return
        if outcome.failure is None or outcome.failure.reason in HEARD:
            self._heard = outcome.ended
        if outcome.round is not None and outcome.failure is None:
            self._shown = _gpus_of(outcome.round)
            if self._stamps.driver_ready is None:
                self._stamps.driver_ready = outcome.ended_at
        self._standing = judge(
            self.guest,
            outcome.failure,
            {key: self._names.get(key, "") for key in self._shown},
            before=self._standing,
            awaited=self._stamps.first_answer is None and outcome.ended - self._began <= BOOT_SECONDS,
            late=outcome.ended - self._heard > STALE_INTERVALS * self._intervals[Lane.FAST],
        )

    def _tell(self) -> None:
        """Make a sample of how it is doing: after a change, and once a fast interval."""
        now = self._clock.monotonic()
        sample = self._own_sample()
        self._state.apply(self._own_outcome(sample, now))
        if self._collects and (self._told != self._standing or now - self._told_at >= self._intervals[Lane.FAST]):
            self._pending.append(sample)
            self._told, self._told_at = self._standing, now

    def _own_sample(self) -> Sample:
        expected = self.guest.gpus if self.guest.gpus is not None else sum(self.guest.gpu_types.values()) or None
        not_told = Absent(Reason.NOT_COLLECTED, "not told")
        heard = self._standing.state in (OK, Reason.GPU_COUNT_DIFFERS)
        values: dict[str, Value | Absent] = {
            "guest_state": str(self._standing.state),
            "guest_problem": self._standing.detail,
            "guest_way": self._gpus.chosen or Absent(Reason.NO_DATA, "none answers"),
            "guest_allocation": self.guest.allocation or not_told,
            "guest_gpus": len(self._shown) if heard else Absent(Reason.NO_DATA, "its GPUs are not read"),
            "guest_expected_gpus": not_told if expected is None else expected,
            **self._stamps.readings(),
        }
        return Sample(view=None, reader=READER, lane=Lane.FAST, measured_at=self._clock.now_ns(), values=values)

    def _own_outcome(self, sample: Sample, now: float) -> Outcome:
        at = sample.measured_at
        status = msgspec.structs.replace(self._own_status(), state=ReaderState.OK, last_attempt=at, last_success=at)
        return Outcome(status=status, round=Round(samples=(sample,)), failure=None, ended_at=at, ended=now)

    def _own_status(self) -> ReaderStatus:
        return ReaderStatus(
            reader=READER, lane=Lane.FAST, state=ReaderState.NEVER, interval_seconds=self._intervals[Lane.FAST]
        )

    def _start_anew(self) -> None:
        statuses = [status for loop in self._loops for status in loop.statuses]
        self._state = State(self.machine(""), [*statuses, self._own_status()])
        self._names = {}


def _gpus_of(done: Round) -> tuple[str, ...]:
    """Return the keys of a pass's GPUs."""
    keys = (one.view.key for one in done.samples if one.view is not None and one.view.kind is ViewKind.GPU)
    return tuple(dict.fromkeys(keys))


def _names_of(done: Round) -> dict[str, str]:
    """Return what a pass tells of products, by key."""
    told = ((one.view, one.values.get("gpu_name")) for one in done.samples)
    return {view.key: name for view, name in told if view is not None and isinstance(name, str)}


def _place(uid: str) -> float:
    """Return where in an interval a virtual machine begins, from 0 to 1: always the same."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / 2**32
