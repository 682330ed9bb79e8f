"""Pending report: everything new since the previous batch."""

from gpufleet.agent.collect.assemble import assemble
from gpufleet.agent.publish.batches import PendingReport
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Round, Sample
from gpufleet.model.wire.batch import MachineReport
from tests.support.passes import World, function, gpu


def take(pending: PendingReport, world: World) -> MachineReport:
    now = world.clock.now_ns()
    snapshot = assemble(world.state, now=world.clock.monotonic(), now_ns=now, capabilities={})
    return pending.take(snapshot, now, world.state.judged)


def test_pass_is_sent_once_with_its_events_and_status() -> None:
    world = World({"host": (Lane.SLOW,), "nvml": (Lane.FAST,)})
    pending = PendingReport()
    assert not pending
    sample = world.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": 1.0})
    event = Event(view=gpu(0), kind="hang_started", at=1)
    outcome = world.outcome("nvml", Lane.FAST, Round(samples=(sample,), events=(event,)))
    world.state.apply(outcome)
    pending.add(outcome)
    assert pending
    report = take(pending, world)
    assert report.machine == Machine(name="from-config")
    assert (report.samples, report.events, report.readers) == ((sample,), (event,), (outcome.status,))
    assert report.inventory is None
    assert not pending
    assert take(pending, world).samples == ()


def test_batch_has_every_sample_and_the_newest_status() -> None:
    world = World({"nvml": (Lane.FAST,)})
    pending = PendingReport()
    for watts in (1.0, 2.0):
        world.clock.advance(10)
        pending.add(
            world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), {"gpu_power_watts": watts}))
        )
    pending.add(world.failed("nvml", Lane.FAST, Absent(Reason.TIMEOUT, "slow")))
    report = take(pending, world)
    assert [sample.values["gpu_power_watts"] for sample in report.samples] == [1.0, 2.0]
    assert [status.last_error for status in report.readers] == ["slow"]


def reason_of(sample: Sample) -> Reason:
    power = sample.values["gpu_power_watts"]
    assert isinstance(power, Absent)
    return power.reason


def test_gpus_seen_on_the_bus_only_are_sent_with_the_inventory() -> None:
    world = World({"host": (Lane.SLOW,), "nvml": (Lane.FAST,)})
    pending = PendingReport()
    pending.add(world.failed("nvml", Lane.FAST, Absent(Reason.NO_DRIVER, "Driver Not Loaded")))
    pending.add(world.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"),)))
    first = take(pending, world)
    assert first.inventory == (function(0, "nvidia"),)
    assert [reason_of(sample) for sample in first.samples] == [Reason.NO_DRIVER]
    world.clock.advance(10)
    pending.add(world.failed("nvml", Lane.FAST, Absent(Reason.NO_DRIVER, "Driver Not Loaded")))
    assert take(pending, world).samples == ()
    world.clock.advance(10)
    pending.add(world.failed("nvml", Lane.FAST, Absent(Reason.DRIVER_MISMATCH, "versions differ")))
    (changed,) = take(pending, world).samples
    assert changed.measured_at == world.clock.now_ns()
    assert reason_of(changed) is Reason.DRIVER_MISMATCH
    world.clock.advance(40)
    pending.add(world.passed("host", Lane.SLOW, inventory=(function(0, "nvidia"),)))
    assert len(take(pending, world).samples) == 1
