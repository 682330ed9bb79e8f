"""Timeline: events and counts of a machine over passes and restarts."""

from pathlib import Path

import msgspec
import pytest

from gpufleet.agent.collect.state import EVENTS_READER as READER
from gpufleet.agent.collect.state import Outcome
from gpufleet.agent.events.event_file import SavedEvents, event_file
from gpufleet.agent.events.timeline import Timeline, status_before
from gpufleet.agent.events.xids import NO_WATCHER
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.reading import Provenance, Round, Value
from gpufleet.model.view import Side, View, ViewKind
from tests.support.passes import World, gpu

LOST = "host_kernel_log_lost_messages_total"


class Machine(World):
    """World with a timeline."""

    def __init__(self, saved: SavedEvents | None = None, boot: str = "boot-1") -> None:
        super().__init__({"nvml": (Lane.FAST,), "dcgm": (Lane.FAST,), "kmsg": (Lane.SLOW, Lane.EVENT)})
        self.state.statuses[READER, Lane.EVENT] = status_before()
        self.timeline = Timeline(self.clock, boot=boot, saved=saved)
        self.passed("nvml", Lane.FAST, self.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": 1.0}))
        self.passed("kmsg", Lane.SLOW, self.sample("kmsg", Lane.SLOW, None, {LOST: 0}))

    def report(self, *events: Event) -> Outcome:
        outcome = self.outcome("kmsg", Lane.EVENT, Round(events=events))
        return self.timeline.take(outcome, self.state)

    def emit_pending(self, everything: bool = True) -> tuple[Event, ...]:
        outcome = self.timeline.emit_pending(self.state, everything=everything)
        if outcome is None or outcome.round is None:
            return ()
        self.state.apply(outcome)
        return outcome.round.events

    def value(self, metric: str) -> object:
        return self.state.views()[gpu(0).key][READER, Lane.EVENT].sample.values[metric]


def without_passes(machine: Machine) -> Machine:
    """Return the machine before the first pass of its readers."""
    machine.state = World({"nvml": (Lane.FAST,), "kmsg": (Lane.SLOW, Lane.EVENT)}).state
    machine.state.statuses[READER, Lane.EVENT] = status_before()
    return machine


def log_event(seq: int, code: int = 79, at: int = 1_700_000_000 * 10**9) -> Event:
    view = View(kind=ViewKind.GPU, side=Side.HOST, pci_address=gpu(0).pci_address)
    return Event(view=view, kind="xid", code=code, at=at, attributes={"sources": "kmsg", "log_seq": str(seq)})


def test_xid_names_the_device_at_its_address() -> None:
    machine = Machine()
    outcome = machine.report(log_event(5))
    assert outcome.round is not None
    assert outcome.round.events == ()  # sent once, when settled
    (event,) = machine.emit_pending()
    assert event.view == gpu(0)
    assert event.attributes == {
        "name": "GPU has fallen off the bus",
        "class": "hardware",
        "action": "reboot_node",
        "sources": "kmsg",
        "log_seq": "5",
    }
    assert list(machine.state.events) == [event]


def test_xid_names_the_newest_device_at_its_address() -> None:
    """The card was swapped, and one of the readers has not run since."""
    machine, other = Machine(), msgspec.structs.replace(gpu(0), uuid="GPU-new")
    machine.passed("dcgm", Lane.FAST, machine.sample("dcgm", Lane.FAST, gpu(0), {"gpu_power_watts": 1.0}))
    machine.clock.advance(10)
    machine.passed("nvml", Lane.FAST, machine.sample("nvml", Lane.FAST, other, {"gpu_power_watts": 1.0}))
    machine.report(log_event(5))
    (event,) = machine.emit_pending()
    assert event.view == other


@pytest.mark.parametrize(
    ("boots", "read", "uuid"),
    [
        (("boot-1", "boot-1"), gpu(0).uuid, gpu(0).uuid),
        (("boot-1", "boot-1"), None, gpu(0).uuid),
        (("boot-1", "boot-1"), "GPU-new", "GPU-new"),
        (("boot-1", "boot-2"), gpu(0).uuid, gpu(0).uuid),
        (("boot-1", "boot-2"), None, None),
        (("boot-1", "boot-2", "boot-2"), None, None),
    ],
    ids=["works", "lost", "exchanged", "works after a boot", "lost after a boot", "lost, second start after a boot"],
)
def test_xid_while_the_agent_was_stopped_is_of_the_gpu_of_the_first_pass(
    boots: tuple[str, ...], read: str | None, uuid: str | None
) -> None:
    """The log is read before the driver. A lost GPU is the one that was read in this boot."""
    saved: SavedEvents | None = None
    for boot in boots:
        machine = Machine(saved, boot=boot)
        if saved is None:
            sample = machine.sample("nvml", Lane.FAST, gpu(0), {"gpu_state": "ok"})
            machine.timeline.take(machine.outcome("nvml", Lane.FAST, Round(samples=(sample,))), machine.state)
        saved = machine.timeline.state_to_save(machine.state)
    without_passes(machine).report(log_event(1))
    machine.clock.advance(10)
    assert machine.emit_pending(everything=False) == ()
    view = msgspec.structs.replace(gpu(0), uuid=read)
    sample = machine.sample("nvml", Lane.FAST, view, {"gpu_state": "lost" if read is None else "ok"})
    machine.timeline.take(machine.outcome("nvml", Lane.FAST, Round(samples=(sample,))), machine.state)
    machine.clock.advance(5)
    assert machine.timeline.due_in() == 0
    (event,) = machine.emit_pending(everything=False)
    assert event.view is not None
    assert (event.view.uuid, event.view.pci_address) == (uuid, gpu(0).pci_address)


def test_xid_waits_15_seconds_for_the_first_pass() -> None:
    machine = without_passes(Machine())
    machine.report(log_event(1))
    machine.clock.advance(14)
    assert machine.emit_pending(everything=False) == ()
    machine.clock.advance(1)
    (event,) = machine.emit_pending(everything=False)
    assert event.view == log_event(1).view


def test_xids_are_counted_by_code_and_zero_means_none() -> None:
    machine = Machine()
    machine.emit_pending()
    assert machine.value("gpu_xid_events_total") == 0
    assert machine.value("gpu_last_xid") == Absent(Reason.NO_DATA, "none since counting began")
    machine.report(log_event(1, 31), log_event(2, 31), log_event(3, 79, at=1_700_000_009 * 10**9))
    machine.emit_pending()
    assert machine.value("gpu_xid_events_total") == 3
    assert (machine.value("gpu_last_xid"), machine.value("gpu_last_xid_timestamp_seconds")) == (79, 1_700_000_009.0)
    assert machine.value("gpu_xid_watched_since_timestamp_seconds") == 1_700_000_000.0
    dims = machine.state.views()[gpu(0).key][READER, Lane.EVENT].sample.dims
    assert [(dim.labels, dim.value) for dim in dims] == [(("31",), 2), (("79",), 1)]


def test_without_event_source_counts_are_absent() -> None:
    machine = Machine()
    why = Absent(Reason.NOT_SUPPORTED, "/dev/kmsg: No such file")
    machine.passed("kmsg", Lane.SLOW, machine.sample("kmsg", Lane.SLOW, None, {LOST: why}))
    machine.emit_pending()
    count = machine.value("gpu_xid_events_total")
    assert isinstance(count, Absent)
    assert count.reason is Reason.NOT_COLLECTED
    watched = {"gpu_driver_events_watched": 1}
    machine.passed("nvml", Lane.FAST, machine.sample("nvml", Lane.FAST, gpu(0), watched))
    machine.emit_pending()
    assert machine.value("gpu_xid_events_total") == 0


def test_event_waits_for_a_second_source() -> None:
    machine = Machine()
    machine.emit_pending()
    machine.report(log_event(1))
    assert machine.emit_pending(everything=False) == ()
    assert 0 < machine.timeline.due_in() <= 2
    machine.clock.advance(2)
    assert len(machine.emit_pending(everything=False)) == 1
    assert 0 < machine.timeline.due_in() <= 60


def test_counts_are_reported_every_minute_without_events() -> None:
    machine = Machine()
    assert machine.timeline.due_in() == 0
    first = machine.timeline.emit_pending(machine.state)
    assert first is not None
    assert first.status.duration_seconds is None
    assert machine.timeline.emit_pending(machine.state) is None
    machine.clock.advance(60)
    assert machine.timeline.emit_pending(machine.state) is not None


def test_restart_repeats_no_event_and_continues_counts(tmp_path: Path) -> None:
    saved = event_file(tmp_path / "agent" / "events.json")
    assert saved.load() is None
    first = Machine()
    first.report(log_event(1), log_event(2, 31))
    first.emit_pending()
    saved.save(first.timeline.state_to_save(first.state))
    second = Machine(saved.load())
    second.report(log_event(1), log_event(2, 31), log_event(3, 48))
    assert [event.code for event in second.emit_pending()] == [48]
    assert second.value("gpu_xid_events_total") == 3


def test_events_held_at_a_kill_are_reported_by_the_next_agent() -> None:
    first = Machine()
    first.report(log_event(1))
    first.emit_pending()
    first.report(log_event(2, 31))
    second = Machine(first.timeline.state_to_save(first.state))
    second.report(log_event(1), log_event(2, 31))
    assert [event.code for event in second.emit_pending()] == [31]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("ok", "ok"), ["gpu_recovered"]),
        (("hung", "ok"), ["gpu_recovered"]),
        (("lost", "ok"), []),
        (("lost", "lost"), []),
    ],
    ids=["recovered", "hung, then recovered", "its reader observes the recovery", "still lost"],
)
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_gpu_that_recovered_while_the_agent_was_stopped(
    boot: str, states: tuple[str, str], expected: list[str]
) -> None:
    first = Machine()
    lost = Event(view=gpu(0), kind="gpu_lost", at=first.clock.now_ns(), attributes={"sources": "nvml"})
    first.report(lost)
    first.emit_pending()
    second = Machine(first.timeline.state_to_save(first.state), boot=boot)
    for lanes in ("dcgm", Lane.FAST), ("kmsg", Lane.EVENT), (READER, Lane.EVENT):
        second.passed(*lanes)
    events: list[Event] = []
    for state in states:
        sample = second.sample("nvml", Lane.FAST, gpu(0), {"gpu_state": state, "gpu_power_watts": 1.0})
        outcome = second.outcome("nvml", Lane.FAST, Round(samples=(sample,)))
        second.state.apply(second.timeline.take(outcome, second.state))
        second.report()
        events += second.emit_pending()
    assert [event.kind for event in events if event.kind == "gpu_recovered"] == expected
    assert all(event.view == gpu(0) and event.attributes == {"sources": "nvml"} for event in events)


@pytest.mark.parametrize("others_passed", [True, False], ids=["after the first passes", "before them"])
def test_recovery_that_a_reader_observes_is_one_event(others_passed: bool) -> None:
    """The reader started while the GPU was lost: it knew the address only."""
    first, unnamed = Machine(), msgspec.structs.replace(gpu(0), uuid=None)
    first.report(Event(view=gpu(0), kind="gpu_lost", at=1, attributes={"sources": "nvml"}))
    first.emit_pending()
    second = Machine(first.timeline.state_to_save(first.state), boot="boot-2")
    others = ("dcgm", Lane.FAST), ("kmsg", Lane.EVENT), (READER, Lane.EVENT)
    for lanes in others if others_passed else ():
        second.passed(*lanes)
    events: list[Event] = []
    for view, state, kind in (unnamed, "lost", "gpu_lost"), (gpu(0), "ok", "gpu_recovered"):
        sample = second.sample("nvml", Lane.FAST, view, {"gpu_state": state})
        shown = Event(view=view, kind=kind, at=second.clock.now_ns(), attributes={"sources": "nvml"})
        outcome = second.outcome("nvml", Lane.FAST, Round(samples=(sample,), events=(shown,)))
        second.state.apply(second.timeline.take(outcome, second.state))
        events += second.emit_pending()
    for lanes in others:
        second.passed(*lanes)
    second.report()
    events += second.emit_pending()
    assert [event.kind for event in events] == ["gpu_lost", "gpu_recovered"]


@pytest.mark.parametrize("uuid", [gpu(0).uuid, None], ids=["by UUID", "by address"])
@pytest.mark.parametrize(("boot", "repeated"), [("boot-1", []), ("boot-2", ["gpu_lost"])])
def test_loss_before_a_restart_is_not_repeated(boot: str, repeated: list[str], uuid: str | None) -> None:
    """After a boot it is reported again: the boot has not repaired the GPU."""
    first = Machine()
    first.report(Event(view=gpu(0), kind="gpu_lost", at=first.clock.now_ns(), attributes={"sources": "nvml"}))
    first.emit_pending()
    second = Machine(first.timeline.state_to_save(first.state), boot=boot)
    assert gpu(0).key in second.state.views(), "a lane without states has passed"
    found: list[list[str]] = []
    unnamed = msgspec.structs.replace(gpu(0), uuid=uuid)
    for view, state, kind in (
        (unnamed, "lost", "gpu_lost"),
        (gpu(0), "ok", "gpu_recovered"),
        (gpu(0), "lost", "gpu_lost"),
    ):
        second.clock.advance(60)
        sample = second.sample("nvml", Lane.FAST, view, {"gpu_state": state})
        shown = Event(view=view, kind=kind, at=second.clock.now_ns(), attributes={"sources": "nvml"})
        outcome = second.outcome("nvml", Lane.FAST, Round(samples=(sample,), events=(shown,)))
        second.state.apply(second.timeline.take(outcome, second.state))
        found.append([event.kind for event in second.emit_pending()])
    assert found == [repeated, ["gpu_recovered"], ["gpu_lost"]]


@pytest.mark.parametrize("uuid", [None, gpu(0).uuid])
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_reset_between_two_agents_was_after_the_last_pass_with_the_loss(boot: str, uuid: str | None) -> None:
    """An operator stopped the agent for 300 s to reset a GPU that had been lost for 120 s."""
    first = Machine()
    view = msgspec.structs.replace(gpu(0), uuid=uuid)
    lost = Event(view=view, kind="gpu_lost", at=first.clock.now_ns(), attributes={"sources": "nvml"})
    for seconds, events in (0, (lost,)), (120, ()):
        first.clock.advance(seconds)
        sample = first.sample("nvml", Lane.FAST, view, {"gpu_state": "lost"})
        outcome = first.outcome("nvml", Lane.FAST, Round(samples=(sample,), events=events))
        first.state.apply(first.timeline.take(outcome, first.state))
        first.emit_pending()
    saved = first.timeline.state_to_save(first.state)
    saved = Timeline(first.clock, boot=boot, saved=saved).state_to_save(first.state)  # stopped before its first pass
    second = Machine(saved, boot=boot)
    second.clock.advance(420)
    for lanes in ("dcgm", Lane.FAST), ("kmsg", Lane.EVENT), (READER, Lane.EVENT):
        second.passed(*lanes)
    second.passed("nvml", Lane.FAST, second.sample("nvml", Lane.FAST, gpu(0), {"gpu_state": "ok"}))
    second.report()
    assert [(event.kind, event.code) for event in second.emit_pending()] == [("gpu_recovered", 300)]


@pytest.mark.parametrize(("boot", "expected"), [("boot-1", [("gpu_reset", 300)]), ("boot-2", [])])
def test_reset_between_two_agents_shows_by_the_energy(boot: str, expected: list[tuple[str, int]]) -> None:
    """The GPU answered until an operator stopped the agent for 300 s to reset it."""

    def read(machine: Machine, joules: float) -> tuple[Event, ...]:
        sample = machine.sample("nvml", Lane.FAST, gpu(0), {"gpu_energy_joules_total": joules})
        outcome = machine.outcome("nvml", Lane.FAST, Round(samples=(sample,)))
        machine.state.apply(machine.timeline.take(outcome, machine.state))
        return machine.emit_pending()

    first = Machine()
    assert read(first, 500.0) == ()
    second = Machine(first.timeline.state_to_save(first.state), boot=boot)
    second.clock.advance(300)
    assert [(event.kind, event.code) for event in read(second, 3.0)] == expected


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("unreadable", "unreadable"), [("gpu_recovered", 0), ("gpu_reset", 300)]),
        (("hung", "hung"), [("gpu_reset", 300)]),
        (("lost", "lost"), [("gpu_recovered", 300), ("gpu_reset", 300)]),
        (("unreadable", "lost"), [("gpu_recovered", 300), ("gpu_reset", 300)]),
    ],
)
def test_reset_after_a_restart_in_the_fault(states: tuple[str, str], expected: list[tuple[str, int]]) -> None:
    """The agent was restarted while a GPU failed, and knew its address only. To reset it, it was stopped for 300 s."""
    unnamed = msgspec.structs.replace(gpu(0), uuid=None)
    working: tuple[View, str, int, Value | Absent] = (gpu(0), "ok", 0, 500.0)
    failing = [
        (view, state, 60, Absent(Reason.DRIVER_ERROR)) for view, state in zip((gpu(0), unnamed), states, strict=True)
    ]
    saved, now = None, 0
    found: list[Event] = []
    for of_start in [working, failing[0]], [failing[1]] * 2, [(gpu(0), "ok", 300, 3.0)]:
        machine, reader = Machine(saved), DeviceStates("nvml")
        machine.clock.advance(now)
        machine.state.events.extend(saved.events if saved else ())
        for lanes in ("dcgm", Lane.FAST), ("kmsg", Lane.EVENT), (READER, Lane.EVENT):
            machine.passed(*lanes)
        for view, state, seconds, joules in of_start:
            machine.clock.advance(seconds)
            now += seconds
            values = {"gpu_state": state, "gpu_energy_joules_total": joules}
            sample = machine.sample("nvml", Lane.FAST, view, values)
            events = tuple(reader.change_by_samples([sample]))
            outcome = machine.outcome("nvml", Lane.FAST, Round(samples=(sample,), events=events))
            machine.state.apply(machine.timeline.take(outcome, machine.state))
            machine.report()
            found += machine.emit_pending()
        saved = machine.timeline.state_to_save(machine.state)
    ends = sorted((event.kind, event.code) for event in found if event.kind in ("gpu_recovered", "gpu_reset"))
    assert ends == expected


def test_exporters_absence_of_xids_stays_if_this_agent_watches_no_source() -> None:
    """The exporter's own agent watches the kernel log, and has seen no XID."""
    machine = Machine()
    unread = machine.sample("kmsg", Lane.SLOW, None, {LOST: Absent(Reason.NOT_PERMITTED)})
    machine.passed("kmsg", Lane.SLOW, unread)
    none_yet = Absent(Reason.NO_DATA, "none since counting began")
    sample = machine.sample("dcgm", Lane.EVENT, gpu(1), {"gpu_last_xid": none_yet, "gpu_xid_events_total": 0})
    sample = msgspec.structs.replace(sample, provenance=Provenance.IMPORTED)
    machine.passed("dcgm", Lane.EVENT, sample)
    machine.emit_pending()
    assert machine.value("gpu_last_xid") == NO_WATCHER
    values = machine.state.views()[gpu(1).key][READER, Lane.EVENT].sample.values
    assert values.keys() == {"gpu_last_xid_timestamp_seconds", "gpu_xid_watched_since_timestamp_seconds"}


@pytest.mark.parametrize(
    ("why", "withheld", "code"),
    [(Reason.TIMEOUT, False, 60), (Reason.READER_FAILED, False, 600), (Reason.TIMEOUT, True, 600)],
)
def test_reset_was_after_the_last_pass_that_got_no_answer(why: Reason, withheld: bool, code: int) -> None:
    """The engine hung, was stopped, or the GPUs were released."""
    machine = Machine()

    def read(joules: float) -> None:
        sample = machine.sample("dcgm", Lane.FAST, gpu(1), {"gpu_energy_joules_total": joules})
        machine.timeline.take(machine.outcome("dcgm", Lane.FAST, Round(samples=(sample,))), machine.state)

    read(500.0)
    machine.clock.advance(540)
    failed = machine.outcome("dcgm", Lane.FAST, failure=Absent(why))
    machine.timeline.take(msgspec.structs.replace(failed, withheld=withheld), machine.state)
    machine.clock.advance(60)
    read(3.0)
    assert [(event.kind, event.code) for event in machine.emit_pending()] == [("gpu_reset", code)]


def test_loss_before_a_boot_is_reported_after_a_restart() -> None:
    """The agent was restarted after the boot before a reader had passed."""
    first = Machine()
    lost = Event(view=gpu(0), kind="gpu_lost", at=first.clock.now_ns(), attributes={"sources": "nvml"})
    first.report(lost)
    first.emit_pending()
    saved = first.timeline.state_to_save(first.state)
    for _ in range(2):
        first.clock.advance(60)
        timeline = Timeline(first.clock, boot="boot-2", saved=saved)
        saved = timeline.state_to_save(first.state)
    sample = first.sample("nvml", Lane.FAST, gpu(0), {"gpu_state": "lost"})
    shown = msgspec.structs.replace(lost, at=first.clock.now_ns())
    timeline.take(first.outcome("nvml", Lane.FAST, Round(samples=(sample,), events=(shown,))), first.state)
    outcome = timeline.emit_pending(first.state, everything=True)
    assert outcome is not None
    assert outcome.round is not None
    assert [event.kind for event in outcome.round.events] == ["gpu_lost"]


def test_recovery_before_a_restart_is_not_repeated() -> None:
    first = Machine()
    unnamed = msgspec.structs.replace(gpu(0), uuid=None)
    failed, recovered = [
        Event(view=view, kind=kind, at=at, attributes={"sources": "nvml"})
        for at, (kind, view) in enumerate((("gpu_lost", unnamed), ("gpu_recovered", gpu(0))), 1)
    ]
    saved = msgspec.structs.replace(first.timeline.state_to_save(first.state), events=(failed, recovered))
    second = Machine(saved)
    for lanes in ("dcgm", Lane.FAST), ("kmsg", Lane.EVENT), (READER, Lane.EVENT):
        second.passed(*lanes)
    second.passed("nvml", Lane.FAST, second.sample("nvml", Lane.FAST, gpu(0), {"gpu_state": "ok"}))
    second.report()
    assert second.emit_pending() == ()


def test_worse_failure_of_an_unnamed_card_is_not_repeated_by_restarts() -> None:
    """The card did not answer. Later the agent was restarted, and the driver knew the card by its address only."""
    events: tuple[Event, ...] = ()
    found: list[list[str]] = []
    unnamed = msgspec.structs.replace(gpu(0), uuid=None)
    saved = Machine().timeline.state_to_save(Machine().state)
    for view, kind, state in (gpu(0), "gpu_failed", "unreadable"), *[(unnamed, "gpu_lost", "lost")] * 3:
        machine = Machine(msgspec.structs.replace(saved, events=events))
        machine.clock.advance(len(found) * 60)
        sample = machine.sample("nvml", Lane.FAST, view, {"gpu_state": state})
        shown = Event(view=view, kind=kind, at=machine.clock.now_ns(), attributes={"sources": "nvml"})
        machine.passed("nvml", Lane.FAST, sample)
        machine.timeline.take(
            machine.outcome("nvml", Lane.FAST, Round(samples=(sample,), events=(shown,))), machine.state
        )
        emitted = machine.emit_pending()
        events += tuple(emitted)
        found.append([event.kind for event in emitted])
    assert found == [["gpu_failed"], ["gpu_lost"], [], []]


@pytest.mark.parametrize(
    ("uuid", "expected"),
    [(gpu(0).uuid, ["gpu_recovered"]), ("GPU-new", [])],
    ids=["the same card", "another card"],
)
def test_replacement_of_an_unnamed_card_is_no_recovery(uuid: str, expected: list[str]) -> None:
    """The card did not answer after a boot, and works or is another one after the next. Then the agent is restarted."""
    saved: SavedEvents | None = None
    found: list[list[str]] = []
    for boot, uuid_read, state in (1, gpu(0).uuid, "ok"), (2, None, "lost"), (3, uuid, "ok"), (3, uuid, "ok"):
        machine = Machine(saved, boot=f"boot-{boot}")
        machine.clock.advance(len(found) * 60)
        machine.state.events.extend(saved.events if saved else ())
        for lanes in ("dcgm", Lane.FAST), ("kmsg", Lane.EVENT), (READER, Lane.EVENT):
            machine.passed(*lanes)
        read = msgspec.structs.replace(gpu(0), uuid=uuid_read)
        sample = machine.sample("nvml", Lane.FAST, read, {"gpu_state": state})
        outcome = machine.outcome("nvml", Lane.FAST, Round(samples=(sample,)))
        machine.state.apply(outcome)
        machine.timeline.take(outcome, machine.state)
        machine.report()
        found.append([event.kind for event in machine.emit_pending()])
        saved = machine.timeline.state_to_save(machine.state)
    assert found == [[], ["gpu_lost"], expected, []]


def test_new_boot_starts_new_counts() -> None:
    first = Machine()
    first.report(log_event(7))
    first.emit_pending()
    second = Machine(first.timeline.state_to_save(first.state), boot="boot-2")
    second.report(log_event(1, 31))
    assert [event.code for event in second.emit_pending()] == [31]
    assert second.value("gpu_xid_events_total") == 1


def test_counts_of_an_address_move_to_its_identified_device() -> None:
    machine = Machine()
    empty_world = World({"nvml": (Lane.FAST,)})
    machine.timeline.take(machine.outcome("kmsg", Lane.EVENT, Round(events=(log_event(1),))), empty_world.state)
    machine.emit_pending()
    machine.emit_pending()
    assert machine.value("gpu_xid_events_total") == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_gpu_known_by_its_address_has_the_xids_of_its_uuid(restarts: bool) -> None:
    """The agent started after the loss: the driver does not name the GPU, but the kernel log does."""
    machine = Machine()
    machine.report(msgspec.structs.replace(log_event(1), view=gpu(0)))
    machine.emit_pending()
    if restarts:
        machine = Machine(machine.timeline.state_to_save(machine.state))
    unnamed = msgspec.structs.replace(gpu(0), uuid=None)
    machine.passed("nvml", Lane.FAST, machine.sample("nvml", Lane.FAST, unnamed, {"gpu_state": "lost"}))
    machine.emit_pending()
    values = machine.state.views()[unnamed.key][READER, Lane.EVENT].sample.values
    assert (values["gpu_xid_events_total"], values["gpu_last_xid"]) == (1, 79)


def test_gpu_known_by_its_address_has_no_xids_of_the_card_before() -> None:
    """The card with the XID was replaced, and the agent was restarted while the new card was lost."""
    first = Machine()
    first.report(msgspec.structs.replace(log_event(1), view=gpu(0)))
    first.emit_pending()
    replaced = msgspec.structs.replace(gpu(0), uuid="GPU-new")
    first.passed("nvml", Lane.FAST, first.sample("nvml", Lane.FAST, replaced, {"gpu_state": "ok"}))
    first.emit_pending()
    machine = Machine(first.timeline.state_to_save(first.state))
    unnamed = msgspec.structs.replace(gpu(0), uuid=None)
    machine.passed("nvml", Lane.FAST, machine.sample("nvml", Lane.FAST, unnamed, {"gpu_state": "lost"}))
    machine.emit_pending()
    values = machine.state.views()[unnamed.key][READER, Lane.EVENT].sample.values
    assert values["gpu_xid_events_total"] == 0


def test_removed_device_has_no_counts() -> None:
    machine = Machine()
    machine.emit_pending()
    machine.passed("nvml", Lane.FAST)
    machine.emit_pending()
    assert machine.state.views() == {}


def test_gpu_has_its_counts_once_it_is_read() -> None:
    """The first counts are due before the first passes of the readers have ended."""
    machine = Machine()
    machine.emit_pending()
    machine.clock.advance(1)

    def read_second_gpu() -> None:
        samples = (machine.sample("nvml", Lane.FAST, gpu(1), {"gpu_state": "ok"}),)
        outcome = machine.outcome("nvml", Lane.FAST, Round(samples=samples))
        machine.state.apply(machine.timeline.take(outcome, machine.state))

    read_second_gpu()
    assert machine.timeline.due_in() == 0
    machine.emit_pending(everything=False)
    values = machine.state.views()[gpu(1).key][READER, Lane.EVENT].sample.values
    assert values["gpu_xid_events_total"] == 0
    read_second_gpu()
    assert machine.timeline.due_in() > 0


def test_scraped_reading_beside_a_local_one_is_no_change() -> None:
    """Scraped values are older: a lower energy counter of an exporter is not a GPU reset."""
    machine = Machine()

    def report(reader: str, joules: float, provenance: Provenance) -> None:
        sample = machine.sample(reader, Lane.FAST, gpu(0), {"gpu_energy_joules_total": joules})
        sample = msgspec.structs.replace(sample, provenance=provenance)
        machine.timeline.take(machine.outcome(reader, Lane.FAST, Round(samples=(sample,))), machine.state)

    report("nvml", 100.0, Provenance.HOST_LOCAL_PROBE)
    report("exporter/dcgm", 90.0, Provenance.IMPORTED)
    assert not machine.emit_pending()
    report("nvml", 50.0, Provenance.HOST_LOCAL_PROBE)
    assert [event.kind for event in machine.emit_pending()] == ["gpu_reset"]
