"""Freshness of a fleet after single events: states and coverage as in `docs/freshness.md`, on a fake clock."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.model.liveness import State
from gpufleet.model.time import to_datetime
from tests.hub.liveness.fake_clock_hub import INTERVAL, FakeClockHub, Node


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeClockHub]:
    hub = FakeClockHub(tmp_path, "local", "other")
    yield hub
    hub.end()


def nodes(count: int, cluster: str = "local") -> list[Node]:
    return [Node(f"node-{number}", cluster) for number in range(count)]


def state(record: ClusterRecord) -> State:
    assert record.freshness is not None
    return record.freshness.liveness.state


async def state_of(hub: FakeClockHub, node: Node) -> State:
    return (await hub.sender(node)).liveness.state


async def test_cluster_without_reports_was_never_seen(hub: FakeClockHub) -> None:
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.liveness == msgspec.structs.replace(
        record.freshness.liveness, state=State.NEVER_SEEN, unseen_seconds=None, partial=(), suspect=()
    )
    assert record.freshness.complete_up_to is None
    assert record.coverage is not None
    assert (record.coverage.expected, record.coverage.summary) == (None, "0, expected: unknown")


async def test_cluster_becomes_late_stale_and_lost_in_turn(hub: FakeClockHub) -> None:
    stopped, reporting = nodes(3), nodes(2, "other")
    await hub.advance(INTERVAL, [*stopped, *reporting])
    seen = []
    for at, until in ((70, 70), (80, 10), (295, 215), (305, 10), (3595, 3290), (3605, 10)):
        await hub.advance(until, reporting)
        seen.append((at, state(await hub.cluster())))
        assert state(await hub.cluster("other")) is State.LIVE
    assert seen == [
        (70, State.LIVE), (80, State.LATE), (295, State.LATE), (305, State.STALE), (3595, State.STALE),
        (3605, State.LOST),
    ]  # fmt: skip
    fleet = await hub.overview.fleet()
    assert (fleet.states, fleet.senders) == (
        {State.LIVE: 1, State.LOST: 1},
        {State.LIVE: 2, State.LOST: 3},
    )
    assert (fleet.gpus_reporting, fleet.gpus_expected) == (4, 10)
    assert fleet.summary == "4 of 10 GPUs report; 1 of 2 clusters are live"
    await hub.take(stopped[0].body(hub.clock))
    assert state(await hub.cluster()) is State.LIVE


async def test_stale_node_makes_its_cluster_partial(hub: FakeClockHub) -> None:
    every = nodes(4)
    await hub.advance(INTERVAL, every)
    await hub.advance(400, every[:3])
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.liveness.state is State.LIVE
    assert record.freshness.senders == record.freshness.machines == {State.LIVE: 3, State.STALE: 1}
    assert record.freshness.liveness.partial == (
        "1 of 4 senders are not live",
        "1 of 4 machines are not live",
        "GPUs reporting: 6 of 8 expected by nvml",
    )
    assert await state_of(hub, every[3]) is State.STALE


async def test_half_of_a_registered_cluster_is_partial(hub: FakeClockHub) -> None:
    hub.registry.put_cluster("local", ClusterSpec(expected={"H200": 8}), to_datetime(hub.clock.now_ns()))
    half = nodes(2)
    await hub.advance(2 * INTERVAL, half)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.coverage is not None
    assert record.freshness.liveness.state is State.LIVE
    assert record.freshness.liveness.partial == ("GPUs reporting: 4 of 8 expected by registration",)
    assert (record.coverage.sources.registration, record.coverage.sources.nvml, record.coverage.sources.pci) == (
        8,
        4,
        None,
    )


async def test_restarted_agent_stays_live(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    await hub.advance(40)
    node.machine = msgspec.structs.replace(node.machine, boot_id="boot-2")
    await hub.take(node.body(hub.clock))
    sender = await hub.sender(node)
    assert (sender.liveness.state, sender.liveness.suspect, sender.missing) == (State.LIVE, (), 0)


async def test_wiped_spool_starts_an_epoch_and_stays_missing(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    node.seq += 3  # three batches of the wiped spool
    await hub.take(node.body(hub.clock))
    node.epoch, node.seq = "f" * 32, 0
    await hub.advance(INTERVAL, [node])
    sender = await hub.sender(node)
    assert (sender.liveness.state, sender.missing, len(sender.epochs)) == (State.LIVE, 3, 2)
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert freshness.missing_batches == 3


@pytest.mark.parametrize("by", [3600.0, -3600.0])
async def test_clock_step_makes_a_sender_suspect_not_stale(hub: FakeClockHub, by: float) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    node.ahead = by
    await hub.advance(2 * INTERVAL, [node])
    assert await state_of(hub, node) is State.LIVE
    await hub.advance(20 * INTERVAL, [node])
    sender = await hub.sender(node)
    assert sender.liveness.state is State.LIVE
    assert sender.clock_ahead_seconds == pytest.approx(by, abs=1)
    assert sender.liveness.suspect == (f"its clock is 3600 s {'ahead of' if by > 0 else 'behind'} the hub's",)
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert freshness.clock_ahead_seconds == pytest.approx(by, abs=1)


@pytest.mark.parametrize("by", [3600.0, -3600.0])
async def test_hub_clock_step_makes_no_sender_stale(hub: FakeClockHub, by: float) -> None:
    every = nodes(3)
    await hub.advance(INTERVAL, every)
    hub.clock.step(by)
    for node in every:
        node.ahead = -by  # the nodes' clocks are right
    assert state(await hub.cluster()) is State.LIVE
    await hub.advance(20 * INTERVAL, every)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.machines == {State.LIVE: 3}
    assert (await hub.overview.fleet()).hub.clock_behind_seconds == pytest.approx(-by, abs=1)


async def test_outage_of_the_hub_makes_no_sender_stale(hub: FakeClockHub) -> None:
    every, gone = nodes(3), Node("gone")
    await hub.advance(INTERVAL, [*every, gone])
    await hub.advance(INTERVAL, every)
    hub.restart_after(3600)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.senders == {State.LIVE: 4}
    assert record.freshness.liveness.unverified
    await hub.advance(INTERVAL, every)
    assert not (await hub.sender(every[0])).liveness.unverified
    assert (await hub.sender(gone)).liveness.unverified
    assert await state_of(hub, gone) is State.LIVE
    await hub.advance(60, every)  # enough time for a report of the missing node
    assert not (await hub.sender(gone)).liveness.unverified
    assert await state_of(hub, gone) is State.LATE
    assert (await hub.cluster()).freshness.senders == {State.LIVE: 3, State.LATE: 1}  # type: ignore[union-attr]


async def test_stale_sender_stays_stale_over_a_hub_restart(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    await hub.advance(600)
    assert await state_of(hub, node) is State.STALE
    hub.restart_after(10)
    assert await state_of(hub, node) is State.STALE


async def test_frozen_or_full_hub_makes_no_sender_stale(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    hub.clock.advance(1800)  # the process was stopped
    assert await state_of(hub, node) is State.LIVE
    for _ in range(60):
        hub.ingest_clock.note_rejected()  # its log is full
        await hub.advance(20)
    assert hub.ingest_clock.is_not_ingesting
    assert await state_of(hub, node) is State.LIVE
    assert hub.ingest_clock.not_ingesting_seconds == pytest.approx(3000, abs=10)
    await hub.advance(60)  # no batch is rejected from here on
    await hub.advance(80)
    assert await state_of(hub, node) is State.LATE


@pytest.mark.parametrize("by", [0.0, -7200.0, 86400.0])
async def test_unavailable_store_makes_no_machine_stale(hub: FakeClockHub, by: float) -> None:
    every = nodes(2)
    await hub.advance(INTERVAL, every)
    hub.flushes = False
    await hub.advance(600, every)
    hub.clock.step(by)  # while the store is unavailable
    await hub.advance(600, every)
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert freshness.machines == freshness.senders == {State.LIVE: 2}
    hub.restart_after(60)  # with the unflushed batches in its log
    assert (await hub.cluster()).freshness.senders == {State.LIVE: 2}  # type: ignore[union-attr]


async def test_backlog_of_a_day_closes_its_gap(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    cut = node.now(hub.clock)
    hub.clock.advance(4)
    missed = []
    for _ in range(24):
        hub.clock.advance(3600)
        missed.append(node.body(hub.clock))
    node.oldest_unsent = cut / 1e9
    await hub.take(node.body(hub.clock))  # the newest batch first
    sender = await hub.sender(node)
    assert (sender.liveness.state, sender.missing, sender.complete_up_to) == (State.LIVE, 24, to_datetime(cut))
    assert sender.liveness.partial == (
        f"99 batches are queued at it, the oldest since {to_datetime(cut):%Y-%m-%d %H:%M:%S}Z",
    )
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert freshness.complete_up_to == to_datetime(cut)
    assert freshness.liveness.partial == ("batches are queued at node-0",)
    await hub.take(*missed)
    node.oldest_unsent = None
    await hub.take(node.body(hub.clock))
    sender = await hub.sender(node)
    assert (sender.missing, sender.complete_up_to) == (0, to_datetime(hub.clock.now_ns()))
    assert sender.liveness.partial == ()
    (machine,) = hub.registry.machine_freshness()
    points = hub.store.series(
        "local", machine.id, ["gpu_power_watts"], cut - 1, hub.clock.now_ns() + 1, 3600 * 10**9
    ).points
    assert len(points["gpu/GPU-0", "gpu_power_watts"]) == 25  # each at its own timestamp


async def test_dead_sender_without_backlog_keeps_no_watermark(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    cut = node.now(hub.clock)
    missed = []
    for _ in range(20):
        hub.clock.advance(60)
        missed.append(node.body(hub.clock))
    node.oldest_unsent, node.queued = cut / 1e9, len(missed)
    await hub.take(node.body(hub.clock))
    came = hub.clock.now_ns()
    await hub.take(*reversed(missed[1:]), missed[1])  # one batch twice
    sender = await hub.sender(node)
    assert (sender.complete_up_to, sender.queue_records, sender.missing) == (to_datetime(cut), 1, 1)
    await hub.take(missed[0])
    sender = await hub.sender(node)
    assert (sender.complete_up_to, sender.queue_records, sender.missing) == (to_datetime(came), 0, 0)
    await hub.advance(600)
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert (freshness.complete_up_to, freshness.queued_batches) == (to_datetime(came), 0)
    assert not any(detail.startswith("batches are queued") for detail in freshness.liveness.partial)


async def test_relay_backlog_is_not_the_backlog_of_the_sender(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node], relayed=True)
    cut = node.now(hub.clock)
    relay_backlog = [node.body(hub.clock) for _ in range(5)]
    hub.clock.advance(3)
    node.oldest_unsent, node.queued = cut / 1e9, 5
    await hub.take(node.body(hub.clock), *relay_backlog, relayed=True)
    sender = await hub.sender(node)
    assert (sender.complete_up_to, sender.queue_records) == (to_datetime(cut), 5)


async def test_backlog_excludes_batches_after_the_heartbeat(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    cut = node.now(hub.clock)
    queued = node.body(hub.clock)
    node.oldest_unsent, node.queued = cut / 1e9, 1
    beat = node.body(hub.clock)
    node.sends_heartbeat = False
    later, latest = node.body(hub.clock), node.body(hub.clock)
    await hub.take(beat, latest, later)
    assert (await hub.sender(node)).complete_up_to == to_datetime(cut)
    await hub.take(queued)
    assert (await hub.sender(node)).complete_up_to == to_datetime(node.now(hub.clock))


async def test_backlog_alone_does_not_make_a_relayed_sender_live(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(3 * INTERVAL, [node], relayed=True)
    backlog = []
    for _ in range(60):
        hub.clock.advance(4)
        _ = hub.ingest_clock.seconds
        backlog.append(node.body(hub.clock))
    for _ in range(200):  # the sender ends, and its relay is offline for longer
        hub.clock.advance(4)
        _ = hub.ingest_clock.seconds
    await hub.take(*backlog, relayed=True)
    assert await state_of(hub, node) is State.STALE
    assert (await hub.sender(node)).liveness.unseen_seconds == pytest.approx(800, abs=5)


async def test_relay_backlog_has_the_age_of_its_arrival_there(hub: FakeClockHub) -> None:
    """These are the first batches of a sender, so no other batch shows their delay."""
    (node,) = nodes(1)
    backlog = [node.body(hub.clock)]
    await hub.advance(INTERVAL)
    backlog.append(node.body(hub.clock))
    await hub.advance(600)  # the sender ends before the relay reaches the hub
    await hub.take(*backlog, relayed=True, waited=600)
    for _ in range(2):
        assert await state_of(hub, node) is State.STALE
        assert (await hub.sender(node)).liveness.unseen_seconds == pytest.approx(600, abs=1)
        assert (await hub.sender(node)).clock_ahead_seconds == pytest.approx(0, abs=1)
        record = await hub.cluster()
        assert record.coverage is not None
        assert record.coverage.reporting == 0
        hub.restart_after(1)
    await hub.advance(INTERVAL, [node], relayed=True)
    assert await state_of(hub, node) is State.LIVE
    record = await hub.cluster()
    assert record.coverage is not None
    assert record.coverage.reporting > 0


@pytest.mark.parametrize("set_forward", [3_600.0, 50 * 365 * 86_400.0])
async def test_fast_relay_clock_ages_and_loses_nothing(hub: FakeClockHub, set_forward: float) -> None:
    """Batches seem to have waited at a relay whose clock was wrong when it started."""
    (node,) = nodes(1)
    for waited in (0.0, set_forward, 0.0):
        hub.clock.advance(INTERVAL)
        await hub.take(node.body(hub.clock), relayed=True, waited=waited)
        assert await state_of(hub, node) is State.LIVE
        assert (await hub.sender(node)).clock_ahead_seconds == pytest.approx(0, abs=1)
        record = await hub.cluster()
        assert record.coverage is not None
        assert record.coverage.reporting > 0
    rows = [len(block.machine) for _, batches in hub.store.writes for one in batches for block in one.batch.samples]
    assert rows == [node.gpus] * 3


async def test_lost_sender_does_not_hold_back_the_watermark(hub: FakeClockHub) -> None:
    every = nodes(2)
    await hub.advance(INTERVAL, every)
    died = hub.clock.now_ns()
    await hub.advance(1800, every[:1])
    record = await hub.cluster()
    assert record.freshness is not None
    assert (record.freshness.complete_up_to, record.freshness.not_waited_for) == (to_datetime(died), 0)
    await hub.advance(1860, every[:1])
    record = await hub.cluster()
    assert record.freshness is not None
    assert (record.freshness.complete_up_to, record.freshness.not_waited_for) == (to_datetime(hub.clock.now_ns()), 1)


async def test_cloned_machine_makes_sender_and_machines_suspect(hub: FakeClockHub) -> None:
    one, clone = Node("node-0"), Node("node-0")
    await hub.advance(INTERVAL, [one])
    clone.seq, clone.ahead = one.seq - 1, 1.0
    await hub.take(clone.body(hub.clock))  # a known number with another content
    sender = await hub.sender(one)
    assert sender.liveness.suspect == (
        "two machines number their batches under its epoch: number 1 came with another content",
    )
    clone.name, clone.epoch, clone.seq = "node-1", "e" * 32, 0
    clone.machine = msgspec.structs.replace(clone.machine, name="node-1", boot_id="boot-other")
    await hub.take(clone.body(hub.clock), one.body(hub.clock))
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert freshness.liveness.suspect[-1] == "evidence of 2 machines contradicts another machine's"


async def test_retired_machine_is_not_expected_until_it_reports(hub: FakeClockHub) -> None:
    every = nodes(2)
    await hub.advance(INTERVAL, every)
    await hub.advance(400, every[:1])
    (gone,) = [one for one in hub.registry.machine_freshness() if one.sender == "node-1"]
    hub.registry.retire_machine(gone.id, hub.clock.now_ns())
    hub.restart_after(1)  # the retirement survives
    await hub.advance(INTERVAL, every[:1])
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.machines == record.freshness.senders == {State.LIVE: 1, State.RETIRED: 1}
    assert record.freshness.liveness.partial == ()
    assert record.coverage is not None
    assert record.coverage.summary == "2 of 2 expected by nvml"
    await hub.advance(INTERVAL, every)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.machines == {State.LIVE: 2}


async def test_closed_cluster_is_retired_and_in_no_total(hub: FakeClockHub) -> None:
    hub.registry.put_cluster("third", ClusterSpec(expected={"H200": 64}), to_datetime(hub.clock.now_ns()))
    hub.registry.close_cluster("third", to_datetime(hub.clock.now_ns()))
    await hub.advance(INTERVAL, nodes(1))
    fleet = await hub.overview.fleet()
    assert fleet.states == {State.NEVER_SEEN: 1, State.LIVE: 1, State.RETIRED: 1}
    assert (fleet.gpus_reporting, fleet.gpus_expected, fleet.not_counted) == (2, 2, ("other",))


async def test_unreachable_target_is_stale_like_an_agent(hub: FakeClockHub) -> None:
    target = Node("exporter/dcgm/gpu-1")
    target.answered_at = hub.clock.now_ns()
    await hub.take(target.body(hub.clock))
    assert await state_of(hub, target) is State.LIVE
    seen = []
    for until in (60, 30, 180, 60, 3240, 60):
        await hub.advance(until, [target])  # every scrape fails
        seen.append((await state_of(hub, target), (await machine_states(hub))))
    assert [sender for sender, _ in seen] == [machine for _, machine in seen]
    assert [one for one, _ in seen] == [
        State.LIVE, State.LATE, State.LATE, State.STALE, State.STALE, State.LOST,
    ]  # fmt: skip
    record = await hub.sender(target)
    assert record.liveness.unseen_seconds is not None
    assert abs(record.liveness.unseen_seconds - 3630) < INTERVAL
    assert record.age_seconds < INTERVAL  # the importer's reports are recent
    assert record.last_seen_at == to_datetime(target.answered_at)
    target.answered_at = hub.clock.now_ns()
    await hub.take(target.body(hub.clock))
    assert (await state_of(hub, target), await machine_states(hub)) == (State.LIVE, State.LIVE)


async def test_target_stays_stale_over_a_restart(hub: FakeClockHub) -> None:
    target = Node("exporter/dcgm/gpu-1")
    target.answered_at = hub.clock.now_ns()
    await hub.take(target.body(hub.clock))
    await hub.advance(330, [target])
    assert await state_of(hub, target) is State.STALE
    hub.restart_after(5)
    target.epoch = target.epoch[::-1]
    target.seq = 0
    await hub.take(target.body(hub.clock))
    record = await hub.sender(target)
    assert record.liveness.state is State.STALE
    assert record.liveness.unseen_seconds is not None
    assert record.liveness.unseen_seconds >= 330 - INTERVAL


@pytest.mark.parametrize("by", [-3600.0, 3600.0])
async def test_hub_clock_step_changes_no_target_state(hub: FakeClockHub, by: float) -> None:
    answers, stale = Node("exporter/dcgm/gpu-1"), Node("exporter/dcgm/gpu-2")
    answers.answered_at = stale.answered_at = hub.clock.now_ns()
    await hub.take(answers.body(hub.clock), stale.body(hub.clock))
    await hub.advance(330, [stale])
    hub.clock.step(by)
    for _ in range(3):
        await hub.advance(INTERVAL, [stale])
        answers.answered_at = hub.clock.now_ns()
        await hub.take(answers.body(hub.clock))
        assert await state_of(hub, answers) is State.LIVE
        assert await state_of(hub, stale) is State.STALE


async def test_target_that_never_answered_was_never_seen(hub: FakeClockHub) -> None:
    target = Node("exporter/dcgm/gpu-1")
    target.answered_at = 0
    await hub.advance(100, [target])
    record = await hub.sender(target)
    assert (record.liveness.state, record.liveness.unseen_seconds) == (State.NEVER_SEEN, None)
    assert record.last_seen_at is None
    assert (record.version, record.queue_records, record.dropped_total) == ("", None, None)
    assert record.complete_up_to is None
    assert state(await hub.cluster()) is State.NEVER_SEEN


async def test_removed_target_leaves_the_agent_machine_live(hub: FakeClockHub) -> None:
    agent, target = nodes(1)[0], Node("exporter/dcgm/node-0")
    target.machine, target.answered_at = agent.machine, hub.clock.now_ns()
    await hub.advance(400, [agent, target])
    assert await state_of(hub, target) is State.STALE
    assert await machine_states(hub) is State.LIVE


async def machine_states(hub: FakeClockHub) -> State:
    """Return the state of the only machine."""
    record = await hub.cluster()
    assert record.freshness is not None
    ((found, count),) = record.freshness.machines.items()
    assert count == 1
    return found


async def test_restart_loop_after_an_outage_ages_no_sender(hub: FakeClockHub) -> None:
    every = nodes(3)
    await hub.advance(INTERVAL, every)
    hub.restart_after(3600)
    for _ in range(10):  # the hub ends before any sender retries
        await hub.advance(5)
        hub.restart_after(20)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.senders == record.freshness.machines == {State.LIVE: 3}
    assert record.freshness.liveness.unverified
    unseen = record.freshness.liveness.unseen_seconds
    assert unseen is not None
    assert unseen == pytest.approx(50, abs=1)  # the time of ingesting


async def test_outage_before_a_restart_ages_no_sender(hub: FakeClockHub) -> None:
    (node,) = nodes(1)
    await hub.advance(INTERVAL, [node])
    hub.clock.advance(1800)  # the process was stopped
    await hub.advance(5)
    hub.restart_after(5)
    assert await state_of(hub, node) is State.LIVE


@pytest.mark.parametrize("by", [86400.0, -86400.0, 30 * 365 * 86400.0])
async def test_corrected_hub_clock_ages_no_sender_over_a_restart(hub: FakeClockHub, by: float) -> None:
    every, gone = nodes(3), Node("gone")
    hub.clock.step(by)
    await hub.advance(INTERVAL, [*every, gone])
    hub.clock.step(-by)
    await hub.advance(3 * INTERVAL, every)
    hub.restart_after(60)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.senders == {State.LIVE: 3, State.LATE: 1}
    assert (await hub.sender(gone)).liveness.unseen_seconds == pytest.approx(90, abs=1)


async def test_late_cluster_stays_late_over_an_outage_of_the_hub(
    hub: FakeClockHub,
) -> None:
    every = nodes(2)
    await hub.advance(INTERVAL, every)
    await hub.advance(100)
    hub.restart_after(300)
    seen = []
    for seconds in (0, 70, 10, 110, 20):
        await hub.advance(seconds)
        liveness = (await hub.cluster()).freshness.liveness  # type: ignore[union-attr]
        assert liveness.unseen_seconds is not None
        seen.append((liveness.state, liveness.unverified, round(liveness.unseen_seconds / 10) * 10))
    assert seen == [
        (State.LATE, True, 100), (State.LATE, True, 100), (State.LATE, False, 180), (State.LATE, False, 290),
        (State.STALE, False, 310),
    ]  # fmt: skip
    await hub.take(every[0].body(hub.clock))
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.senders == {State.LIVE: 1, State.STALE: 1}
    assert not record.freshness.liveness.unverified
