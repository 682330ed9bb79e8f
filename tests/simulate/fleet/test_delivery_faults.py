"""Faults of delivery and identity: numbers, times and evidence in the batches of the agents."""

from collections.abc import Iterator

from gpufleet.codecs.batch import decode, to_rows
from gpufleet.model.catalogue import Lane
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import Batch
from gpufleet.simulate.fleet.agents import AgentTiming, SimulatedAgent, create_agents
from gpufleet.simulate.fleet.faults import parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec

START = 1_795_000_000 * NANOS


def agents_with(faults: str) -> list[SimulatedAgent]:
    fleet = Fleet(FleetSpec(nodes=2, gpus=2, faults=parse_faults(faults, START)))
    return create_agents(fleet, AgentTiming(start=START, interval=30.0, at_once=True))


def sent(agent: SimulatedAgent, minutes: float) -> Iterator[tuple[float, list[Batch]]]:
    """Yield the second of each pass, and the batches that can be sent then."""
    while agent.next_at < START + minutes * 60 * NANOS:
        at = agent.next_at
        agent.collect()
        bodies = [agent.take(oldest=True).content for _ in range(len(agent.waiting))]
        yield (at - START) / NANOS, [to_rows(decode(body)) for body in bodies]


def test_delayed_batches_arrive_at_the_end_and_are_not_queued() -> None:
    agent = agents_with("delayed-batches=3@+2m/5m:c1/n1")[0]
    every = dict(sent(agent, 10))
    assert [len(every[at]) for at in (90, 120, 150, 180, 210)] == [1, 0, 0, 0, 1]
    assert [one.seq for one in every[420]] == [5, 6, 7, 15]
    heartbeats = [one.heartbeat for batches in every.values() for one in batches if one.heartbeat is not None]
    assert {one.queue_records for one in heartbeats} == {0}


def test_stuck_batches_are_reported_as_queued_until_the_end() -> None:
    agent = agents_with("stuck-batches=3@+2m/5m:c1/n1")[0]
    every = dict(sent(agent, 10))
    (during,), (after,) = every[300], every[450]
    assert during.heartbeat is not None
    assert (during.heartbeat.queue_records, during.heartbeat.oldest_unsent) == (3, START + 120 * NANOS)
    assert len(every[420]) == 4
    assert after.heartbeat is not None
    assert (after.heartbeat.queue_records, after.heartbeat.oldest_unsent) == (0, None)


def test_late_data_is_older_than_its_batch_and_never_goes_back() -> None:
    agent = agents_with("late-data=90@+2m/5m:c1/n1")[0]
    delays, measured = {}, []
    for at, (batch,) in sent(agent, 10):
        newest = max(sample.measured_at for report in batch.reports for sample in report.samples)
        delays[at] = (batch.sent_at - newest) / NANOS
        measured.append(newest)
    assert [delays[at] for at in (90, 120, 150, 180, 390, 420)] == [0, 30, 60, 90, 90, 0]
    assert measured == sorted(measured)


def test_holder_that_came_as_late_data_ends_is_reported() -> None:
    agent = agents_with("late-data=90@+2m/5m:c1/n1,held-parked@+345s/10m:c1/n1/g0")[0]
    every = dict(sent(agent, 10))
    users = [{one.holder.user for one in every[at][0].reports[0].holdings} for at in (390, 420)]
    assert ["mallory" in found for found in users] == [False, True]


def test_second_agent_reports_the_same_boot_under_another_name() -> None:
    first, _, second = agents_with("duplicate-agent@+2m/5m:c1/n1")
    (own,) = next(iter(sent(first, 1)))[1]
    others = [one for _, batches in sent(second, 10) for one in batches]
    assert (first.name, second.name) == ("sim-1-n0001", "sim-1-n0001-second")
    assert {one.reports[0].machine for one in others} == {own.reports[0].machine}
    assert len(others) == 10
    assert {one.epoch for one in others}.isdisjoint({own.epoch})


def test_copies_of_a_spool_take_epochs_of_their_own() -> None:
    original, _, *copies = agents_with("cloned-spool@+2m/1m:c1/n1,cloned-spool@+5m/1m:c1/n1")
    before = dict(sent(original, 6))[0][0].epoch
    epochs = []
    for one in copies:
        while not one.waiting:
            one.collect()
        one.renew(one.take())
        epochs.append(decode(one.take().content).epoch)
    assert len({before, *epochs}) == 3


def test_static_readings_are_sent_at_once_after_a_change() -> None:
    agent = agents_with("driver-drift@+2m/5m:c1/n1")[0]
    static = [
        at
        for at, batches in sent(agent, 9)
        if any(sample.lane is Lane.STATIC for one in batches for report in one.reports for sample in report.samples)
    ]
    assert static == [0, 120, 420]
