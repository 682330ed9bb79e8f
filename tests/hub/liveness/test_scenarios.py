"""What happens to fleets, on a jumping clock: states and coverage are as `docs/freshness.md` says at every step."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpufleet.model.cluster import ClusterRecord, ClusterSpec
from gpufleet.model.liveness import State
from gpufleet.model.time import to_datetime
from tests.hub.liveness.hub_in_time import INTERVAL, HubInTime, Node


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubInTime]:
    hub = HubInTime(tmp_path, "local", "other")
    yield hub
    hub.end()


def nodes(count: int, cluster: str = "local") -> list[Node]:
    return [Node(f"node-{number}", cluster) for number in range(count)]


def state(record: ClusterRecord) -> State:
    assert record.freshness is not None
    return record.freshness.liveness.state


async def state_of(hub: HubInTime, node: Node) -> State:
    return (await hub.sender(node)).liveness.state


async def test_a_cluster_that_nobody_spoke_of_was_never_seen(hub: HubInTime) -> None:
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.liveness == msgspec.structs.replace(
        record.freshness.liveness, state=State.NEVER_SEEN, unseen_seconds=None, partial=(), suspect=()
    )
    assert record.freshness.complete_up_to is None
    assert record.coverage is not None
    assert (record.coverage.expected, record.coverage.summary) == (None, "0, expected: unknown")


async def test_cluster_becomes_late_stale_and_lost_in_turn(hub: HubInTime) -> None:
    silent, speaking = nodes(3), nodes(2, "other")
    await hub.lets_pass(INTERVAL, [*silent, *speaking])
    seen = []
    for at, until in ((70, 70), (80, 10), (295, 215), (305, 10), (3595, 3290), (3605, 10)):
        await hub.lets_pass(until, speaking)
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
    await hub.take(silent[0].body(hub.clock))
    assert state(await hub.cluster()) is State.LIVE


async def test_a_node_that_falls_silent_makes_its_cluster_partial(hub: HubInTime) -> None:
    every = nodes(4)
    await hub.lets_pass(INTERVAL, every)
    await hub.lets_pass(400, every[:3])
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


async def test_half_a_cluster_is_held_against_its_registration(hub: HubInTime) -> None:
    hub.registry.put_cluster("local", ClusterSpec(expected={"H200": 8}), to_datetime(hub.clock.now_ns()))
    half = nodes(2)
    await hub.lets_pass(2 * INTERVAL, half)
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


async def test_an_agent_that_starts_again_was_never_gone(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    await hub.lets_pass(40)
    node.machine = msgspec.structs.replace(node.machine, boot_id="boot-2")
    await hub.take(node.body(hub.clock))
    sender = await hub.sender(node)
    assert (sender.liveness.state, sender.liveness.suspect, sender.missing) == (State.LIVE, (), 0)


async def test_wiped_spool_starts_an_epoch_and_stays_missing(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    node.seq += 3  # they were in the spool, and one after them arrived
    await hub.take(node.body(hub.clock))
    node.epoch, node.seq = "f" * 32, 0
    await hub.lets_pass(INTERVAL, [node])
    sender = await hub.sender(node)
    assert (sender.liveness.state, sender.missing, len(sender.epochs)) == (State.LIVE, 3, 2)
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert freshness.missing_batches == 3


@pytest.mark.parametrize("by", [3600.0, -3600.0])
async def test_clock_step_makes_a_sender_suspect_not_stale(hub: HubInTime, by: float) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    node.off = by
    await hub.lets_pass(2 * INTERVAL, [node])
    assert await state_of(hub, node) is State.LIVE
    await hub.lets_pass(20 * INTERVAL, [node])
    sender = await hub.sender(node)
    assert sender.liveness.state is State.LIVE
    assert sender.clock_ahead_seconds == pytest.approx(by, abs=1)
    assert sender.liveness.suspect == (f"its clock is 3600 s {'ahead of' if by > 0 else 'behind'} the hub's",)
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert freshness.clock_ahead_seconds == pytest.approx(by, abs=1)


@pytest.mark.parametrize("by", [3600.0, -3600.0])
async def test_the_hub_s_clock_that_was_set_makes_nobody_silent(hub: HubInTime, by: float) -> None:
    every = nodes(3)
    await hub.lets_pass(INTERVAL, every)
    hub.clock.step(by)
    for node in every:
        node.off = -by  # theirs are right
    assert state(await hub.cluster()) is State.LIVE
    await hub.lets_pass(20 * INTERVAL, every)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.machines == {State.LIVE: 3}
    assert (await hub.overview.fleet()).hub.clock_behind_seconds == pytest.approx(-by, abs=1)


async def test_an_hour_in_which_the_hub_was_down_is_nobody_s_silence(hub: HubInTime) -> None:
    every, gone = nodes(3), Node("gone")
    await hub.lets_pass(INTERVAL, [*every, gone])
    await hub.lets_pass(INTERVAL, every)
    hub.is_down_for(3600)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.senders == {State.LIVE: 4}
    assert record.freshness.liveness.unverified
    await hub.lets_pass(INTERVAL, every)
    assert not (await hub.sender(every[0])).liveness.unverified
    assert (await hub.sender(gone)).liveness.unverified
    assert await state_of(hub, gone) is State.LIVE
    await hub.lets_pass(60, every)  # it had time to speak, and did not
    assert not (await hub.sender(gone)).liveness.unverified
    assert await state_of(hub, gone) is State.LATE
    assert (await hub.cluster()).freshness.senders == {State.LIVE: 3, State.LATE: 1}  # type: ignore[union-attr]


async def test_who_was_silent_before_the_hub_went_down_is_so_after_it(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    await hub.lets_pass(600)
    assert await state_of(hub, node) is State.STALE
    hub.is_down_for(10)
    assert await state_of(hub, node) is State.STALE


async def test_frozen_or_full_hub_makes_no_sender_stale(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    hub.clock.advance(1800)  # the process was stopped
    assert await state_of(hub, node) is State.LIVE
    for _ in range(60):
        hub.ingest_clock.note_rejected()  # its log is full
        await hub.lets_pass(20)
    assert hub.ingest_clock.is_not_ingesting
    assert await state_of(hub, node) is State.LIVE
    assert hub.ingest_clock.not_ingesting_seconds == pytest.approx(3000, abs=10)
    await hub.lets_pass(60)  # nobody was turned away any more
    await hub.lets_pass(80)
    assert await state_of(hub, node) is State.LATE


@pytest.mark.parametrize("by", [0.0, -7200.0, 86400.0])
async def test_a_store_that_takes_nothing_makes_no_machine_silent(hub: HubInTime, by: float) -> None:
    every = nodes(2)
    await hub.lets_pass(INTERVAL, every)
    hub.flushes = False
    await hub.lets_pass(600, every)
    hub.clock.step(by)  # the hub's clock is set meanwhile
    await hub.lets_pass(600, every)
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert freshness.machines == freshness.senders == {State.LIVE: 2}
    hub.is_down_for(60)  # with all of that in its log
    assert (await hub.cluster()).freshness.senders == {State.LIVE: 2}  # type: ignore[union-attr]


async def test_a_day_of_backlog_closes_its_gap_and_moves_the_watermark(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    cut = node.now(hub.clock)
    hub.clock.advance(4)
    missed = []
    for _ in range(24):
        hub.clock.advance(3600)
        missed.append(node.body(hub.clock))
    node.oldest_unsent = cut / 1e9
    await hub.take(node.body(hub.clock))  # the newest goes first
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
    assert len(points["gpu/GPU-0", "gpu_power_watts"]) == 25  # each at its own time


async def test_dead_sender_without_backlog_keeps_no_watermark(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    cut = node.now(hub.clock)
    missed = []
    for _ in range(20):
        hub.clock.advance(60)
        missed.append(node.body(hub.clock))
    node.oldest_unsent, node.queued = cut / 1e9, len(missed)
    await hub.take(node.body(hub.clock))
    came = hub.clock.now_ns()
    await hub.take(*reversed(missed[1:]), missed[1])  # and one of them twice
    sender = await hub.sender(node)
    assert (sender.complete_up_to, sender.queue_records, sender.missing) == (to_datetime(cut), 1, 1)
    await hub.take(missed[0])
    sender = await hub.sender(node)
    assert (sender.complete_up_to, sender.queue_records, sender.missing) == (to_datetime(came), 0, 0)
    await hub.lets_pass(600)
    freshness = (await hub.cluster()).freshness
    assert freshness is not None
    assert (freshness.complete_up_to, freshness.queued_batches) == (to_datetime(came), 0)
    assert not any(words.startswith("batches wait") for words in freshness.liveness.partial)


async def test_relay_backlog_is_not_the_backlog_of_the_sender(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node], relayed=True)
    cut = node.now(hub.clock)
    at_the_relay = [node.body(hub.clock) for _ in range(5)]
    hub.clock.advance(3)
    node.oldest_unsent, node.queued = cut / 1e9, 5
    await hub.take(node.body(hub.clock), *at_the_relay, relayed=True)
    sender = await hub.sender(node)
    assert (sender.complete_up_to, sender.queue_records) == (to_datetime(cut), 5)


async def test_backlog_excludes_batches_after_the_heartbeat(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    cut = node.now(hub.clock)
    waits = node.body(hub.clock)
    node.oldest_unsent, node.queued = cut / 1e9, 1
    beat = node.body(hub.clock)
    node.beats = False
    later, latest = node.body(hub.clock), node.body(hub.clock)
    await hub.take(beat, latest, later)
    assert (await hub.sender(node)).complete_up_to == to_datetime(cut)
    await hub.take(waits)
    assert (await hub.sender(node)).complete_up_to == to_datetime(node.now(hub.clock))


async def test_backlog_alone_does_not_make_a_relayed_sender_live(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(3 * INTERVAL, [node], relayed=True)
    waiting = []
    for _ in range(60):
        hub.clock.advance(4)
        _ = hub.ingest_clock.seconds
        waiting.append(node.body(hub.clock))
    for _ in range(200):  # it dies, and its relay is cut off for longer
        hub.clock.advance(4)
        _ = hub.ingest_clock.seconds
    await hub.take(*waiting, relayed=True)
    assert await state_of(hub, node) is State.STALE
    assert (await hub.sender(node)).liveness.unseen_seconds == pytest.approx(800, abs=5)


async def test_what_waited_at_a_relay_is_of_when_it_came_there(hub: HubInTime) -> None:
    """The first words of a sender, of which no other tells how long they were on their way."""
    (node,) = nodes(1)
    waiting = [node.body(hub.clock)]
    await hub.lets_pass(INTERVAL)
    waiting.append(node.body(hub.clock))
    await hub.lets_pass(600)  # it dies, and the relay reaches the hub only now
    await hub.take(*waiting, relayed=True, waited=600)
    for _ in range(2):
        assert await state_of(hub, node) is State.STALE
        assert (await hub.sender(node)).liveness.unseen_seconds == pytest.approx(600, abs=1)
        assert (await hub.sender(node)).clock_ahead_seconds == pytest.approx(0, abs=1)
        record = await hub.cluster()
        assert record.coverage is not None
        assert record.coverage.reporting == 0
        hub.is_down_for(1)
    await hub.lets_pass(INTERVAL, [node], relayed=True)
    assert await state_of(hub, node) is State.LIVE
    record = await hub.cluster()
    assert record.coverage is not None
    assert record.coverage.reporting > 0


@pytest.mark.parametrize("set_forward", [3_600.0, 50 * 365 * 86_400.0])
async def test_fast_relay_clock_ages_and_loses_nothing(hub: HubInTime, set_forward: float) -> None:
    """As when it starts without a clock of its own: what it took before it was told the time seems to have waited."""
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


async def test_a_dead_sender_is_not_waited_for(hub: HubInTime) -> None:
    every = nodes(2)
    await hub.lets_pass(INTERVAL, every)
    died = hub.clock.now_ns()
    await hub.lets_pass(1800, every[:1])
    record = await hub.cluster()
    assert record.freshness is not None
    assert (record.freshness.complete_up_to, record.freshness.not_waited_for) == (to_datetime(died), 0)
    await hub.lets_pass(1860, every[:1])
    record = await hub.cluster()
    assert record.freshness is not None
    assert (record.freshness.complete_up_to, record.freshness.not_waited_for) == (to_datetime(hub.clock.now_ns()), 1)


async def test_a_cloned_machine_makes_sender_and_machines_suspect(hub: HubInTime) -> None:
    one, clone = Node("node-0"), Node("node-0")
    await hub.lets_pass(INTERVAL, [one])
    clone.seq, clone.off = one.seq - 1, 1.0
    await hub.take(clone.body(hub.clock))  # its number with another content
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


async def test_retired_machine_is_not_expected_until_it_reports(hub: HubInTime) -> None:
    every = nodes(2)
    await hub.lets_pass(INTERVAL, every)
    await hub.lets_pass(400, every[:1])
    (gone,) = [one for one in hub.registry.machine_freshness() if one.sender == "node-1"]
    hub.registry.retire_machine(gone.id, hub.clock.now_ns())
    hub.is_down_for(1)  # it is kept
    await hub.lets_pass(INTERVAL, every[:1])
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.machines == record.freshness.senders == {State.LIVE: 1, State.RETIRED: 1}
    assert record.freshness.liveness.partial == ()
    assert record.coverage is not None
    assert record.coverage.summary == "2 of 2 expected by nvml"
    await hub.lets_pass(INTERVAL, every)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.machines == {State.LIVE: 2}


async def test_a_closed_cluster_is_retired_and_in_no_total(hub: HubInTime) -> None:
    hub.registry.put_cluster("third", ClusterSpec(expected={"H200": 64}), to_datetime(hub.clock.now_ns()))
    hub.registry.close_cluster("third", to_datetime(hub.clock.now_ns()))
    await hub.lets_pass(INTERVAL, nodes(1))
    fleet = await hub.overview.fleet()
    assert fleet.states == {State.NEVER_SEEN: 1, State.LIVE: 1, State.RETIRED: 1}
    assert (fleet.gpus_reporting, fleet.gpus_expected, fleet.not_counted) == (2, 2, ("other",))


async def test_unreachable_target_is_stale_like_an_agent(
    hub: HubInTime,
) -> None:
    target = Node("exporter/dcgm/gpu-1")
    target.answered_at = hub.clock.now_ns()
    await hub.take(target.body(hub.clock))
    assert await state_of(hub, target) is State.LIVE
    seen = []
    for until in (60, 30, 180, 60, 3240, 60):
        await hub.lets_pass(until, [target])  # the hub asks again and again, and says that nobody answers
        seen.append((await state_of(hub, target), (await machine_states(hub))))
    assert [one for one, _ in seen] == [one for _, one in seen]  # the machine is what its target is
    assert [one for one, _ in seen] == [
        State.LIVE, State.LATE, State.LATE, State.STALE, State.STALE, State.LOST,
    ]  # fmt: skip
    record = await hub.sender(target)
    assert record.liveness.unseen_seconds is not None
    assert abs(record.liveness.unseen_seconds - 3630) < INTERVAL
    assert record.age_seconds < INTERVAL  # its words are new, and not its own
    target.answered_at = hub.clock.now_ns()
    await hub.take(target.body(hub.clock))
    assert (await state_of(hub, target), await machine_states(hub)) == (State.LIVE, State.LIVE)


async def test_target_stays_stale_over_a_restart(hub: HubInTime) -> None:
    target = Node("exporter/dcgm/gpu-1")
    target.answered_at = hub.clock.now_ns()
    await hub.take(target.body(hub.clock))
    await hub.lets_pass(330, [target])
    assert await state_of(hub, target) is State.STALE
    hub.is_down_for(5)
    target.epoch = target.epoch[::-1]
    target.seq = 0
    await hub.take(target.body(hub.clock))
    record = await hub.sender(target)
    assert record.liveness.state is State.STALE
    assert record.liveness.unseen_seconds is not None
    assert record.liveness.unseen_seconds >= 330 - INTERVAL


@pytest.mark.parametrize("by", [-3600.0, 3600.0])
async def test_hub_clock_step_changes_no_target_state(hub: HubInTime, by: float) -> None:
    answers, silent = Node("exporter/dcgm/gpu-1"), Node("exporter/dcgm/gpu-2")
    answers.answered_at = silent.answered_at = hub.clock.now_ns()
    await hub.take(answers.body(hub.clock), silent.body(hub.clock))
    await hub.lets_pass(330, [silent])
    hub.clock.step(by)
    for _ in range(3):
        await hub.lets_pass(INTERVAL, [silent])
        answers.answered_at = hub.clock.now_ns()
        await hub.take(answers.body(hub.clock))
        assert await state_of(hub, answers) is State.LIVE
        assert await state_of(hub, silent) is State.STALE


async def test_a_target_that_never_answered_was_never_seen(hub: HubInTime) -> None:
    target = Node("exporter/dcgm/gpu-1")
    target.answered_at = 0
    await hub.lets_pass(100, [target])
    record = await hub.sender(target)
    assert (record.liveness.state, record.liveness.unseen_seconds) == (State.NEVER_SEEN, None)
    assert record.complete_up_to is None
    assert state(await hub.cluster()) is State.NEVER_SEEN


async def test_removed_target_leaves_the_agent_machine_live(hub: HubInTime) -> None:
    agent, target = nodes(1)[0], Node("exporter/dcgm/node-0")
    target.machine, target.answered_at = agent.machine, hub.clock.now_ns()
    await hub.lets_pass(400, [agent, target])
    assert await state_of(hub, target) is State.STALE
    assert await machine_states(hub) is State.LIVE


async def machine_states(hub: HubInTime) -> State:
    """Return the state of the only machine."""
    record = await hub.cluster()
    assert record.freshness is not None
    ((found, count),) = record.freshness.machines.items()
    assert count == 1
    return found


async def test_restart_loop_after_an_outage_ages_no_sender(hub: HubInTime) -> None:
    every = nodes(3)
    await hub.lets_pass(INTERVAL, every)
    hub.is_down_for(3600)
    for _ in range(10):  # it dies before anybody has tried again
        await hub.lets_pass(5)
        hub.is_down_for(20)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.senders == record.freshness.machines == {State.LIVE: 3}
    assert record.freshness.liveness.unverified
    silent = record.freshness.liveness.unseen_seconds
    assert silent is not None
    assert silent == pytest.approx(50, abs=1)  # in which it could hear


async def test_outage_before_a_restart_ages_no_sender(hub: HubInTime) -> None:
    (node,) = nodes(1)
    await hub.lets_pass(INTERVAL, [node])
    hub.clock.advance(1800)  # the process was stopped
    await hub.lets_pass(5)
    hub.is_down_for(5)
    assert await state_of(hub, node) is State.LIVE


@pytest.mark.parametrize("by", [86400.0, -86400.0, 30 * 365 * 86400.0])
async def test_corrected_hub_clock_ages_no_sender_over_a_restart(hub: HubInTime, by: float) -> None:
    every, gone = nodes(3), Node("gone")
    hub.clock.step(by)
    await hub.lets_pass(INTERVAL, [*every, gone])
    hub.clock.step(-by)
    await hub.lets_pass(3 * INTERVAL, every)
    hub.is_down_for(60)
    record = await hub.cluster()
    assert record.freshness is not None
    assert record.freshness.senders == {State.LIVE: 3, State.LATE: 1}
    assert (await hub.sender(gone)).liveness.unseen_seconds == pytest.approx(90, abs=1)


async def test_late_cluster_stays_late_over_an_outage_of_the_hub(
    hub: HubInTime,
) -> None:
    every = nodes(2)
    await hub.lets_pass(INTERVAL, every)
    await hub.lets_pass(100)
    hub.is_down_for(300)
    seen = []
    for seconds in (0, 70, 10, 110, 20):
        await hub.lets_pass(seconds)
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
