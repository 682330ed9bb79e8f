"""The watch over one virtual machine: its reader loops, state and health."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Generator, Mapping

import msgspec

from gpufleet.agent.collect.assemble import Assembler
from gpufleet.agent.collect.schedule import ReaderLoop
from gpufleet.agent.collect.state import AgentState, Outcome, Timetable
from gpufleet.agent.events.changes import EnergyCounters
from gpufleet.agent.events.occupants import Occupants
from gpufleet.agent.guests.access_paths import GUEST_ANSWERED_REASONS, AccessPath, FailoverReader, Link
from gpufleet.agent.guests.health import AWAITING_ANSWER, NO_ACCESS_PATH, GuestHealth, ReadinessTimes, judge_health
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import OK, REMOVED, Machine, MachineKind, state_of
from gpufleet.model.reading import Round, Sample, Value
from gpufleet.model.snapshot import Guest
from gpufleet.model.status import MISSED_PASSES, ReaderState, ReaderStatus
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind
from gpufleet.model.wire.batch import MachineReport
from gpufleet.ports.clock import Clock
from gpufleet.ports.guests import DiscoveredGuest

READER = "guests"
"""Reader name of readings that the agent makes about the virtual machine itself."""

PROBE_ATTEMPT_SECONDS = 120.0
"""Time limit of a performance probe over one access path."""

PROBE_INTERVAL_SECONDS = 120.0
"""Maximum interval at which it is checked whether a probe is due, such as after a boot."""

BOOT_WAIT_SECONDS = 600.0
"""How long a virtual machine that never answered counts as booting and is polled more often."""

EAGER_SECONDS, PATIENT_SECONDS, EAGER_FOR_SECONDS = 1.0, 5.0, 60.0
"""Interval between passes while a guest boots: at first, and after `EAGER_FOR_SECONDS`."""

MAX_PENDING = 200
"""Maximum samples, and events, that are queued for a batch. The oldest are dropped."""

MAX_VIEWS = 512
"""Maximum devices that are kept. The state is reset beyond it: a guest may send new devices each time."""


class GuestAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Connections and access paths into a virtual machine.

    Attributes:
        links: channels that are kept open.
        gpus: access paths to its GPUs in order of preference.
        host: access paths to its processor, memory and network.
        probe: access paths for its performance probe; empty if it is not enabled.
    """

    links: tuple[Link, ...]
    gpus: tuple[AccessPath, ...]
    host: tuple[AccessPath, ...]
    probe: tuple[AccessPath, ...] = ()


class EarlierPasses:
    """Earlier passes over the GPUs of a guest. They survive its watch: a restart can be what repairs a GPU.

    Attributes:
        states: their states.
        occupants: the GPUs by their address in the guest.
        energies: their energy counters.
    """

    def __init__(self) -> None:
        self.states = DeviceStates(READER)
        self.occupants = Occupants()
        self.energies = EnergyCounters(self.occupants)


class GuestWatch:
    """Reads one virtual machine until cancelled. Its failures do not affect other machines."""

    def __init__(
        self,
        found: DiscoveredGuest,
        access: GuestAccess,
        *,
        intervals: Mapping[Lane, float],
        clock: Clock,
        on_change: Callable[[], None],
        collects: bool,
        spread: bool,
        earlier: EarlierPasses,
    ) -> None:
        """Take the parts.

        Args:
            found: the virtual machine and its source.
            access: connections and access paths into it.
            intervals: seconds between passes by lane.
            clock: wall and monotonic time.
            on_change: called after each change.
            collects: whether samples are collected for a batch.
            spread: start at the guest's own phase of the fast interval, because many guests start now.
            earlier: the passes of an earlier watch of it.
        """
        self.found, self.guest = found, found.guest
        guest = found.guest
        self._access, self._clock, self._on_change, self._collects = access, clock, on_change, collects
        self._intervals = intervals
        self._started = clock.monotonic()
        self._times = ReadinessTimes(seen=clock.now_ns())
        self._delay = _phase(guest.uid) * intervals[Lane.FAST] if spread else 0.0
        self._gpus = FailoverReader("gpus", access.gpus, clock, requires_devices=True, on_open=self._record_open)
        self._host = FailoverReader("host", access.host, clock, requires_devices=False, on_open=self._record_open)
        self._probe = FailoverReader(
            "probe",
            access.probe,
            clock,
            requires_devices=False,
            on_open=self._record_open,
            attempt_seconds=PROBE_ATTEMPT_SECONDS,
            lanes=(Lane.STATIC,),
        )
        self._loops = [
            self._loop(reader) for reader, paths in ((self._gpus, access.gpus), (self._host, access.host)) if paths
        ]
        self._probe_seconds = min(intervals[Lane.STATIC], PROBE_INTERVAL_SECONDS)
        probe_intervals = {Lane.STATIC: self._probe_seconds}
        self._probe_loop = self._loop(self._probe, probe_intervals) if access.probe else None
        self._answered = asyncio.Event()
        self._health = _first_health(found, access)
        self._judged_at: int | None = None  # start of the pass that gave the health; None before a first one
        self._answered_at = self._started
        self._gpu_keys: tuple[str, ...] = ()
        self._names: dict[str, str] = {}
        self._pending: deque[Sample] = deque(maxlen=MAX_PENDING)
        self._events: deque[Event] = deque(maxlen=MAX_PENDING)
        self.earlier = earlier
        self._statuses: dict[tuple[str, Lane], ReaderStatus] = {}
        self._reported: GuestHealth | None = None
        self._reported_at = self._started
        self._document: Guest | None = None
        self._assembled = self._started
        self._assembler, self._changes = Assembler(), 0
        self._reset_state()
        self._report_health()

    @property
    def health(self) -> GuestHealth:
        """The guest's current health."""
        return self._health

    async def run(self) -> None:
        """Run until cancelled, then close all connections."""
        try:
            await asyncio.sleep(self._delay)
            async with asyncio.TaskGroup() as tasks:
                for loop in self._loops:
                    tasks.create_task(self._run_loop(loop), name=f"{loop.reader.name} of {self.guest.title}")
                if self._probe_loop is not None:
                    tasks.create_task(self._run_probe(self._probe_loop), name=f"probe of {self.guest.title}")
                if not self._loops:
                    tasks.create_task(self._repeat_health(), name=f"health of {self.guest.title}")
        finally:
            for reader in (self._gpus, self._host, self._probe):
                await reader.close()
            for link in self._access.links:
                await link.close()

    def document(self, hypervisor: str) -> Generator[None, None, Guest]:
        """Return the guest's part of a snapshot. It is rebuilt after a change and each fast interval."""
        now = self._clock.monotonic()
        if self._document is None or now - self._assembled >= self._intervals[Lane.FAST]:
            changes = self._changes
            found = yield from self._assembler.steps(self._state, now=now, now_ns=self._clock.now_ns(), capabilities={})
            document = Guest(
                machine=self.machine(hypervisor),
                namespace=self.guest.namespace,
                name=self.guest.name,
                vm_uuid=self.guest.uid,
                allocation=self.guest.allocation,
                state=self._health.state,
                detail=self._health.detail,
                excluded=self.found.details.unread is not None,
                found_by=self.found.by,
                labels=self.found.details.labels,
                access_paths=tuple(dict.fromkeys((*self._gpus.reports, *self._host.reports))),
                devices=found.devices,
                host=found.host,
                readers=found.readers,
            )
            if changes != self._changes:
                return document  # changes during assembly are in the next document
            self._document, self._assembled = document, now
        return self._document

    def machine(self, hypervisor: str) -> Machine:
        """Return the guest's identity: that of the virtual machine that was dialled."""
        return Machine(name=self.guest.title, kind=MachineKind.GUEST, system_uuid=self.guest.uid, hypervisor=hypervisor)

    def take(self, hypervisor: str) -> MachineReport | None:
        """Return the new samples, events and statuses since the last call, or None."""
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

    def removal_report(self, hypervisor: str) -> MachineReport:
        """Return the final report: the guest is no longer read."""
        self._health, self._judged_at = GuestHealth(REMOVED, "its agent does not list it any more"), None
        sample = self._own_sample()
        return MachineReport(machine=self.machine(hypervisor), samples=(sample,))

    async def _run_probe(self, loop: ReaderLoop) -> None:
        """Probe after the guest's first answer, and check after each interval whether the probe is due again."""
        await self._answered.wait()
        while True:
            self._apply(await loop.run_pass(Lane.STATIC))
            await asyncio.sleep(self._probe_seconds)

    def _loop(self, reader: FailoverReader, intervals: Mapping[Lane, float] | None = None) -> ReaderLoop:
        return ReaderLoop(
            reader,
            intervals=intervals or self._intervals,
            timeout_seconds=reader.pass_seconds,
            clock=self._clock,
            report=self._apply,
        )

    async def _run_loop(self, loop: ReaderLoop) -> None:
        await self._await_first_answer(loop)
        start = self._clock.monotonic()
        timetable = Timetable({lane: self._intervals[lane] for lane in loop.reader.lanes}, start)
        while True:
            due, lane = timetable.next()
            await asyncio.sleep(max(0.0, due - self._clock.monotonic()))
            outcome = await loop.run_pass(lane)
            self._apply(outcome)
            timetable.done(lane, self._clock.monotonic())
            if loop.lists_recreated(outcome):
                timetable.hasten(self._clock.monotonic())

    async def _repeat_health(self) -> None:
        """Report the health of a guest without access paths, once per fast interval."""
        while True:
            await asyncio.sleep(self._intervals[Lane.FAST])
            self._report_health()
            self._document = None
            self._changes += 1
            self._on_change()

    async def _await_first_answer(self, loop: ReaderLoop) -> None:
        """Poll often until the first answer, so that the readiness times are precise."""
        while True:
            outcome = await loop.run_pass(Lane.FAST)
            self._apply(outcome)
            waited = self._clock.monotonic() - self._started
            if outcome.failure is None or waited > BOOT_WAIT_SECONDS:
                return
            await asyncio.sleep(EAGER_SECONDS if waited < EAGER_FOR_SECONDS else PATIENT_SECONDS)

    def _record_open(self) -> None:
        if self._times.channel_open is None:
            self._times.channel_open = self._clock.now_ns()

    def _apply(self, outcome: Outcome) -> None:
        events = self._events_of(outcome.round) if outcome.round is not None else ()
        known = self._state.statuses[outcome.status.reader, outcome.status.lane].state
        if outcome.status.lane is Lane.EVENT and known is outcome.status.state and not events:
            return  # no event and no change of state
        if outcome.failure is not None and outcome.status.reader == self._gpus.name:
            self.earlier.energies.fail(outcome.failure.reason, outcome.ended_at)
        if max(len(self._state.views()), len(self._names)) > MAX_VIEWS:
            self._reset_state()
        self._state.apply(outcome)
        self._statuses[outcome.status.reader, outcome.status.lane] = outcome.status
        if self._collects and outcome.round is not None:
            self._pending += outcome.round.samples
            self._events += events
        answered = outcome.failure is None or outcome.failure.reason in GUEST_ANSWERED_REASONS
        if answered and self._times.first_answer is None:
            self._times.first_answer = outcome.ended_at
            self._answered.set()
        if outcome.status.reader == self._gpus.name:
            self._judge(outcome)
        self._report_health()
        self._document = None
        self._changes += 1
        self._on_change()

    def _events_of(self, done: Round) -> tuple[Event, ...]:
        """Return the XIDs of a pass, and the failures, recoveries and resets of GPUs that its readings show.

        The states are compared across access paths: a GPU that another path reads does not fail again.
        """
        readers = {sample.view.key: sample.reader for sample in done.samples if sample.view is not None}
        changes = [
            msgspec.structs.replace(event, attributes={**event.attributes, "sources": readers[event.view.key]})
            for event in self.earlier.states.change_by_samples(done.samples)
            if event.view is not None
        ]
        for sample in done.samples:
            self.earlier.occupants.note(sample)
        resets = [event for sample in done.samples if (event := self.earlier.energies.reset(sample)) is not None]
        return (*done.events, *changes, *resets)

    def _judge(self, outcome: Outcome) -> None:
        """Derive the health from the fast lane. Product names come on the static lane."""
        if outcome.round is not None and outcome.failure is None:
            self._names |= _names_of(outcome.round)
        if outcome.status.lane is not Lane.FAST:
            return
        if outcome.failure is None or outcome.failure.reason in GUEST_ANSWERED_REASONS:
            self._answered_at = outcome.ended
        if outcome.round is not None and outcome.failure is None:
            self._gpu_keys = _gpus_of(outcome.round)
            if self._times.driver_ready is None:
                self._times.driver_ready = outcome.ended_at
        health = judge_health(
            self.guest,
            outcome.failure,
            {key: self._names.get(key, "") for key in self._gpu_keys},
            before=self._health,
            is_booting=self._times.first_answer is None and outcome.ended - self._started <= BOOT_WAIT_SECONDS,
            is_late=outcome.ended - self._answered_at > MISSED_PASSES * self._intervals[Lane.FAST],
        )
        if health is not self._health:  # a lost pass does not make the health of an earlier one newer
            self._health, self._judged_at = health, outcome.status.last_attempt

    def _report_health(self) -> None:
        """Add a sample of the guest's health after a change, and once per fast interval."""
        now = self._clock.monotonic()
        sample = self._own_sample()
        self._state.apply(self._own_outcome(sample, now))
        if self._collects and (self._reported != self._health or now - self._reported_at >= self._intervals[Lane.FAST]):
            self._pending.append(sample)
            self._reported, self._reported_at = self._health, now

    def _own_sample(self) -> Sample:
        """Return a sample of the time of the report, by which a hub knows that the guest is still supervised.

        The state can be older while a pass hangs, and has a time of its own.
        """
        now = self._clock.now_ns()
        expected = self.guest.gpus if self.guest.gpus is not None else sum(self.guest.gpu_types.values()) or None
        not_configured = Absent(Reason.NOT_COLLECTED, "not configured")
        gpus_known = self._health.state in (OK, Reason.GPU_COUNT_DIFFERS)
        values: dict[str, Value | Absent] = {
            "guest_state": str(self._health.state),
            "guest_state_timestamp_seconds": (now if self._judged_at is None else self._judged_at) / NANOS,
            "guest_problem": self._health.detail,
            "guest_access_path": self._gpus.chosen or Absent(Reason.NO_DATA, "no access path answers"),
            "guest_allocation": self.guest.allocation or not_configured,
            "guest_gpus": len(self._gpu_keys) if gpus_known else Absent(Reason.NO_DATA, "its GPUs cannot be read"),
            "guest_expected_gpus": not_configured if expected is None else expected,
            "guest_hugepages": self._hugepages(),
            **self._times.readings(),
        }
        return Sample(view=None, reader=READER, lane=Lane.FAST, measured_at=now, values=values)

    def _hugepages(self) -> int | Absent:
        known = self.found.details.hugepages
        return Absent(Reason.NOT_COLLECTED, "not found by libvirt or KubeVirt") if known is None else int(known)

    def _own_outcome(self, sample: Sample, now: float) -> Outcome:
        at = sample.measured_at
        status = msgspec.structs.replace(self._own_status(), state=ReaderState.OK, last_attempt=at, last_success=at)
        return Outcome(status=status, round=Round(samples=(sample,)), failure=None, ended_at=at, ended=now)

    def _own_status(self) -> ReaderStatus:
        return ReaderStatus(
            reader=READER, lane=Lane.FAST, state=ReaderState.NEVER, interval_seconds=self._intervals[Lane.FAST]
        )

    def _reset_state(self) -> None:
        loops = [*self._loops, *([self._probe_loop] if self._probe_loop is not None else [])]
        statuses = [status for loop in loops for status in loop.statuses]
        self._state = AgentState(self.machine(""), [*statuses, self._own_status()])
        self._names = {}


def _first_health(found: DiscoveredGuest, access: GuestAccess) -> GuestHealth:
    unread = found.details.unread
    if unread is not None:
        return GuestHealth(state_of(unread.reason), unread.detail)
    return AWAITING_ANSWER if access.gpus else NO_ACCESS_PATH


def _gpus_of(result: Round) -> tuple[str, ...]:
    """Return the keys of a pass's GPUs."""
    keys = (
        sample.view.key for sample in result.samples if sample.view is not None and sample.view.kind is ViewKind.GPU
    )
    return tuple(dict.fromkeys(keys))


def _names_of(result: Round) -> dict[str, str]:
    """Return product names by key."""
    named = ((sample.view, sample.values.get("gpu_name")) for sample in result.samples)
    return {view.key: name for view, name in named if view is not None and isinstance(name, str)}


def _phase(uid: str) -> float:
    """Return a guest's constant phase within an interval, from 0 to 1."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / 2**32
