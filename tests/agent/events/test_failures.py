"""Failures of devices that several readers observe: one failure and one recovery."""

import msgspec
import pytest

from gpufleet.agent.events.timeline import Timeline
from gpufleet.fleet.device_events import DeviceStates
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.reading import Round
from gpufleet.model.time import NANOS
from tests.support.passes import World, gpu


class Failing(World):
    """Machine whose readers report states, and the events of their changes."""

    def __init__(self) -> None:
        super().__init__({"nvml": (Lane.FAST,), "dcgm": (Lane.FAST,), "kmsg": (Lane.EVENT,)})
        self.timeline = Timeline(self.clock)
        self.states = {reader: DeviceStates(reader) for reader in ("nvml", "dcgm")}
        self.gpu = gpu(0)
        self.newest: tuple[Event, ...] = ()

    def read(self, seconds: float, **states: str) -> list[tuple[str, str]]:
        """Let readers report states after some seconds; return kind and sources of the events."""
        self.clock.advance(seconds)
        for reader, state in states.items():
            samples = (self.sample(reader, Lane.FAST, self.gpu, {"gpu_state": state}),)
            events = tuple(self.states[reader].change_by_samples(samples))
            self.state.apply(
                self.timeline.take(self.outcome(reader, Lane.FAST, Round(samples=samples, events=events)), self.state)
            )
        return self.due()

    def log_loss(self, number: int = 1, ago: float = 0) -> list[tuple[str, str]]:
        """Let the kernel log report a loss some seconds ago; return kind and sources of the events."""
        logged = {"sources": "kmsg", "log_seq": str(number)}
        at = self.clock.now_ns() - int(ago * NANOS)
        lost = Event(view=self.gpu, kind="gpu_lost", at=at, attributes=logged)
        outcome = self.outcome("kmsg", Lane.EVENT, Round(events=(lost,)))
        self.state.apply(self.timeline.take(outcome, self.state))
        return self.due()

    def due(self) -> list[tuple[str, str]]:
        outcome = self.timeline.emit_pending(self.state, everything=True)
        assert outcome is not None
        assert outcome.round is not None
        self.newest = outcome.round.events
        return [(event.kind, event.attributes.get("sources", "")) for event in outcome.round.events]


def test_loss_that_two_readers_observe_is_one_event() -> None:
    machine = Failing()
    assert machine.read(10, dcgm="lost", nvml="ok") == [("gpu_lost", "dcgm")]
    assert machine.read(60, dcgm="lost", nvml="lost") == []
    assert machine.read(60, dcgm="lost", nvml="ok") == []
    assert machine.read(60, dcgm="ok", nvml="ok") == [("gpu_recovered", "dcgm,nvml")]
    assert machine.read(10, dcgm="ok", nvml="lost") == [("gpu_lost", "nvml")]


def test_recovery_after_a_loss_in_the_kernel_log_is_an_event() -> None:
    """The agent started after the loss: the driver names the GPU once it has recovered, the log always."""
    machine = Failing()
    logged = Event(
        view=gpu(0), kind="gpu_lost", at=machine.clock.now_ns(), attributes={"sources": "kmsg", "log_seq": "1"}
    )
    machine.timeline.take(machine.outcome("kmsg", Lane.EVENT, Round(events=(logged,))), machine.state)
    machine.gpu = msgspec.structs.replace(gpu(0), uuid=None)
    assert ("gpu_lost", "kmsg") in machine.read(10, nvml="lost")
    machine.gpu = gpu(0)
    assert machine.read(10, nvml="ok") + machine.read(10, nvml="ok") == [("gpu_recovered", "nvml")]


@pytest.mark.parametrize("order", [("log", "nvml", "dcgm"), ("nvml", "log", "dcgm"), ("nvml", "dcgm", "log")])
def test_loss_before_the_start_is_one_event(order: tuple[str, ...]) -> None:
    """The driver knows the address only. The log and an engine that has run since before the loss know the UUID."""
    world = Failing()
    unnamed, at = msgspec.structs.replace(gpu(0), uuid=None), world.clock.now_ns()
    logged = {"sources": "kmsg", "log_seq": "1"}
    for name in order:
        reader, view = ("kmsg" if name == "log" else name), (unnamed if name == "nvml" else gpu(0))
        lost = Event(view=view, kind="gpu_lost", at=at - 3600 * 10**9, attributes=logged)
        if name != "log":
            lost = msgspec.structs.replace(lost, at=at, attributes={"sources": name})
        samples = () if name == "log" else (world.sample(reader, Lane.FAST, view, {"gpu_state": "lost"}),)
        lane = Lane.EVENT if name == "log" else Lane.FAST
        done = Round(samples=samples, events=(lost,))
        world.state.apply(world.timeline.take(world.outcome(reader, lane, done), world.state))
    assert [kind for kind, _ in world.read(0)] == ["gpu_lost"]
    assert [event.view for event in world.newest] == [gpu(0)]


def test_second_loss_in_the_kernel_log_is_an_event() -> None:
    machine = Failing()
    for number in 1, 2:
        machine.clock.advance(3600)
        assert machine.log_loss(number) == [("gpu_lost", "kmsg")]


@pytest.mark.parametrize("state", ["lost", "error"])
def test_loss_in_the_kernel_log_long_before_a_pass_is_one(state: str) -> None:
    """The interval is longer than the window of a group, or the calls of the pass hang."""
    machine = Failing()
    assert machine.read(10, dcgm="ok", nvml="ok") == []
    assert machine.log_loss() == [("gpu_lost", "kmsg")]
    assert machine.read(25, nvml=state) == []
    assert machine.read(10, nvml="ok") == [("gpu_recovered", "nvml")]
    assert machine.read(60, dcgm="ok", nvml="ok") == []


def test_recovery_that_only_the_kernel_log_precedes_is_one_event() -> None:
    """The driver hung from the loss until the reset."""
    machine = Failing()
    assert machine.read(10, dcgm="ok", nvml="ok") == []
    machine.clock.advance(5)
    assert machine.log_loss() == [("gpu_lost", "kmsg")]
    assert machine.read(5, nvml="ok") == [], "too early: the values can be from before the loss"
    for _ in range(6):
        machine.read(10, nvml="hung")
    assert machine.read(10, nvml="ok") == [("hang_ended", "")]
    assert machine.read(10, nvml="ok") == [("gpu_recovered", "nvml")]
    assert machine.read(10, nvml="ok") == []
    assert machine.read(10, nvml="lost") == [("gpu_lost", "nvml")]


def test_error_beside_a_loss_is_no_event() -> None:
    machine = Failing()
    assert machine.read(10, dcgm="lost") == [("gpu_lost", "dcgm")]
    assert machine.read(60, dcgm="lost", nvml="error") == []
    assert machine.read(10, dcgm="lost", nvml="ok") == []
    assert machine.read(10, dcgm="lost", nvml="error") == []
    assert machine.read(10, dcgm="ok", nvml="ok") == [("gpu_recovered", "dcgm,nvml")]
    assert [event.code for event in machine.newest] == [10], "seconds since the last pass in which it was lost"


@pytest.mark.parametrize("ago", [0, 1800])
@pytest.mark.parametrize(("state", "seconds"), [("ok", None), ("error", 10), ("hung", 20)])
def test_reset_was_at_some_time_after_a_loss_in_the_kernel_log(state: str, seconds: int | None, ago: int) -> None:
    machine = Failing()
    machine.log_loss(ago=ago)
    machine.read(20, dcgm="ok", nvml=state)
    codes: list[int] = []
    for _ in range(2):
        machine.read(10, nvml="ok")
        codes += [event.code for event in machine.newest if event.kind == "gpu_recovered"]
    assert codes == [seconds or ago + 30]


@pytest.mark.parametrize(("failure", "code"), [("lost", 600), ("reset_required", 600), ("error", 0)])
@pytest.mark.parametrize("last", ["lost", "hung"])
def test_reset_was_at_some_time_after_the_last_pass_without_an_answer(failure: str, code: int, last: str) -> None:
    """An operator released the GPUs for 10 min to reset one."""
    machine = Failing()
    machine.read(10, nvml=failure)
    machine.read(10, nvml=failure if last == "lost" else last)
    machine.read(600, nvml="ok")
    assert [event.code for event in machine.newest if event.kind == "gpu_recovered"] == [code]


def test_loss_by_the_address_counts_for_the_gpu_that_is_named_with_an_error() -> None:
    machine = Failing()
    named = machine.gpu
    machine.gpu = msgspec.structs.replace(named, uuid=None)
    assert machine.read(10, nvml="reset_required") == [("gpu_reset_required", "nvml")]
    machine.gpu = named
    machine.read(10, nvml="error")
    machine.read(10, nvml="ok")
    assert [(event.kind, event.code) for event in machine.newest] == [("gpu_recovered", 10)]


def test_worse_failure_of_another_reader_is_an_event() -> None:
    machine = Failing()
    assert machine.read(10, nvml="error") == [("gpu_failed", "nvml")]
    assert machine.read(60, dcgm="lost") == [("gpu_lost", "dcgm")]


def test_recovery_does_not_wait_for_a_reader_that_stopped() -> None:
    machine = Failing()
    assert machine.read(10, dcgm="lost", nvml="lost") == [("gpu_lost", "dcgm,nvml")]
    assert machine.read(10, nvml="ok") == []
    assert machine.read(10, nvml="ok") == []
    assert machine.read(10, nvml="ok") == []
    assert machine.read(10, nvml="ok") == [("gpu_recovered", "nvml")]


def test_recovery_is_no_second_event_of_a_reader_that_returns() -> None:
    """DCGM is stopped for the reset of a GPU."""
    machine = Failing()
    assert machine.read(10, dcgm="lost", nvml="lost") == [("gpu_lost", "dcgm,nvml")]
    for _ in range(3):
        assert machine.read(10, nvml="ok") == []
    assert machine.read(10, nvml="ok") == [("gpu_recovered", "nvml")]
    assert machine.read(60, dcgm="ok", nvml="ok") == []
    assert machine.read(10, dcgm="lost", nvml="lost") == [("gpu_lost", "dcgm,nvml")]


def test_recovery_after_a_removal_from_the_bus_is_one_event() -> None:
    """The GPU was removed from the bus and found again by a rescan. DCGM was stopped for it."""
    machine = Failing()
    assert machine.read(10, dcgm="lost", nvml="lost") == [("gpu_lost", "dcgm,nvml")]
    for reader in "nvml", "dcgm":
        machine.passed(reader, Lane.FAST)
    assert machine.read(10, nvml="ok") == [("gpu_recovered", "nvml")]
    assert machine.read(60, dcgm="ok", nvml="ok") == []


def test_reader_that_returns_with_its_loss_is_an_event() -> None:
    machine = Failing()
    assert machine.read(10, dcgm="lost", nvml="lost") == [("gpu_lost", "dcgm,nvml")]
    for _ in range(3):
        assert machine.read(10, nvml="ok") == []
    assert machine.read(10, nvml="ok") == [("gpu_recovered", "nvml")]
    assert machine.read(10, dcgm="lost", nvml="ok") == [("gpu_lost", "dcgm")]
    assert machine.read(10, dcgm="lost", nvml="ok") == []
    assert machine.read(10, dcgm="ok", nvml="ok") == [("gpu_recovered", "dcgm")]


def test_loss_after_that_of_a_reader_that_stopped_is_an_event() -> None:
    machine = Failing()
    assert machine.read(10, dcgm="lost", nvml="ok") == [("gpu_lost", "dcgm")]
    for _ in range(4):
        assert machine.read(10, nvml="ok") == []
    assert machine.read(10, nvml="lost") == [("gpu_lost", "nvml")]
    assert machine.read(10, nvml="ok") == [("gpu_recovered", "nvml")]


@pytest.mark.parametrize("state", ["error", "lost"])
def test_failure_soon_after_a_recovery_is_an_event(state: str) -> None:
    """Another reader observes the second failure within the window of the first one."""
    machine = Failing()
    (failed,) = machine.read(10, nvml=state)
    assert machine.read(2, dcgm="ok") == []
    assert machine.read(8, nvml="ok") == [("gpu_recovered", "nvml")]
    assert machine.read(2, dcgm=state) == [(failed[0], "dcgm")]
    assert machine.read(2, nvml=state) == []
    assert machine.read(2, nvml="ok", dcgm="ok") == [("gpu_recovered", "dcgm,nvml")]
