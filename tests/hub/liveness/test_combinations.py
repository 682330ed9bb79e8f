"""What happens to fleets at once, or one after another: states and coverage at every step, on a jumping clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.liveness import ClusterFreshness, Expected, State
from gpufleet.model.time import to_datetime
from tests.hub.liveness.hub_in_time import INTERVAL, HubInTime, Node

DAY = 86400.0
YEAR = 365 * DAY


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubInTime]:
    hub = HubInTime(tmp_path, "local", "other")
    yield hub
    hub.end()


async def fresh(hub: HubInTime, cluster: str = "local") -> ClusterFreshness:
    found = (await hub.cluster(cluster)).freshness
    assert found is not None
    return found


async def coverage(hub: HubInTime, cluster: str = "local") -> str:
    found = (await hub.cluster(cluster)).coverage
    assert found is not None
    return found.summary


async def test_relay_backlog_revives_no_dead_sender(hub: HubInTime) -> None:
    every, direct = [Node(f"behind-{number}") for number in range(6)], Node("direct")
    await hub.lets_pass(3 * INTERVAL, every, relayed=True)
    await hub.lets_pass(INTERVAL, [direct])
    waiting: list[bytes] = []
    seen = []
    for seconds in (50, 240, 3240):  # the relay is dead, and what the senders make waits
        left = float(seconds)
        while left > 0:
            await hub.lets_pass(min(INTERVAL, left), [direct])
            if hub.clock.monotonic() < 1000 + 600:  # half of them die after ten minutes
                waiting += [one.body(hub.clock) for one in every]
            else:
                waiting += [one.body(hub.clock) for one in every[3:]]
            left -= INTERVAL
        found = await fresh(hub)
        seen.append((found.liveness.state, found.senders, await coverage(hub)))
    assert seen == [
        (State.LIVE, {State.LIVE: 1, State.LATE: 6}, "14 of 14 expected by nvml"),
        (State.LIVE, {State.LIVE: 1, State.STALE: 6}, "2 of 14 expected by nvml"),
        (State.LIVE, {State.LIVE: 1, State.STALE: 6}, "2 of 14 expected by nvml"),
    ]
    await hub.lets_pass(2 * INTERVAL, [direct])
    assert (await fresh(hub)).senders == {State.LIVE: 1, State.LOST: 6}
    newest = [one.body(hub.clock) for one in every[3:]]
    await hub.take(*newest, *reversed(waiting), relayed=True)  # it is back
    found = await fresh(hub)
    assert found.senders == found.machines == {State.LIVE: 4, State.STALE: 3}
    assert found.missing_batches == 0
    assert (await fresh(hub)).liveness.partial[:2] == (
        "3 of 7 senders are not live",
        "3 of 7 machines are not live",
    )


@pytest.mark.parametrize("by", [3600.0, DAY, 30 * YEAR])
@pytest.mark.parametrize("relayed", [False, True])
async def test_clock_steps_of_a_sender_never_make_it_stale(hub: HubInTime, by: float, relayed: bool) -> None:
    (node,) = [Node("node-0")]
    other = Node("node-1")
    await hub.lets_pass(2 * INTERVAL, [node, other], relayed=relayed)
    for off, suspect in ((by, True), (0.0, False), (-by, True), (0.0, False)):
        node.off = off
        for _ in range(10):
            await hub.lets_pass(INTERVAL, [node, other], relayed=relayed)
            found = await hub.sender(node)
            assert found.liveness.state is State.LIVE
            assert found.liveness.unseen_seconds is not None
            assert found.liveness.unseen_seconds < INTERVAL
            assert (await fresh(hub)).machines == {State.LIVE: 2}
        assert bool(found.liveness.suspect) is suspect
        assert found.clock_ahead_seconds == pytest.approx(off, abs=1)
        assert (await fresh(hub)).complete_up_to == to_datetime(hub.clock.now_ns() + int(min(0.0, off) * 1e9))


@pytest.mark.parametrize("relayed", [False, True])
async def test_alternating_epochs_belong_to_one_sender(hub: HubInTime, relayed: bool) -> None:
    node = Node("node-0")
    disk, memory = (node.epoch, 0), ("f" * 32, 0)
    for off in (0.0, DAY, 0.0, DAY, 0.0):  # its disk refuses at times, and takes again
        node.off = off
        (node.epoch, node.seq) = memory if off else disk
        for _ in range(5):
            await hub.lets_pass(INTERVAL, [node], relayed=relayed)
            assert (await hub.sender(node)).liveness.state is State.LIVE
        if off:
            memory = (node.epoch, node.seq)
        else:
            disk = (node.epoch, node.seq)
    hub.is_down_for(100)
    assert (await hub.sender(node)).liveness.state is State.LIVE


async def test_new_epoch_with_corrected_clock_is_live(hub: HubInTime) -> None:
    node = Node("node-0")
    node.off = DAY
    await hub.lets_pass(3 * INTERVAL, [node], relayed=True)
    node.off, node.epoch, node.seq = 0.0, "f" * 32, 0
    for _ in range(5):
        await hub.lets_pass(INTERVAL, [node], relayed=True)
        assert (await hub.sender(node)).liveness.state is State.LIVE


async def test_backlog_does_not_revive_a_sender_after_a_clock_step(
    hub: HubInTime,
) -> None:
    node = Node("node-0")
    node.off = DAY
    await hub.lets_pass(3 * INTERVAL, [node], relayed=True)
    node.off = 0.0
    await hub.lets_pass(3 * INTERVAL, [node], relayed=True)
    waiting = []
    for _ in range(10):
        await hub.lets_pass(INTERVAL)
        waiting.append(node.body(hub.clock))
    await hub.lets_pass(900)
    await hub.take(*reversed(waiting), relayed=True)
    assert (await hub.sender(node)).liveness.state is State.STALE


async def test_moved_sender_is_stale_in_its_old_cluster_until_retired(
    hub: HubInTime,
) -> None:
    stays, moves, there = Node("node-0"), Node("node-1"), Node("node-2", "other")
    await hub.lets_pass(3 * INTERVAL, [stays, moves, there])
    moves.cluster = "other"  # its spool goes with it, and its numbers go on
    await hub.lets_pass(400, [stays, moves, there])
    assert (await fresh(hub)).senders == {State.LIVE: 1, State.STALE: 1}
    there_now = await fresh(hub, "other")
    assert (there_now.senders, there_now.missing_batches) == ({State.LIVE: 2}, 0)  # the old one has those from before
    assert await coverage(hub) == "2 of 4 expected by nvml"
    assert await coverage(hub, "other") == "4 of 4 expected by nvml"
    (mark,) = [one for one in hub.registry.machine_freshness("local") if one.sender == "node-1"]
    hub.registry.retire_machine(mark.id, hub.clock.now_ns())
    found = await fresh(hub)
    assert (found.senders, found.liveness.partial) == ({State.LIVE: 1, State.RETIRED: 1}, ())
    assert await coverage(hub) == "2 of 2 expected by nvml"


async def test_watermark_is_that_of_the_slowest_sender(hub: HubInTime) -> None:
    every = [Node(f"node-{number}") for number in range(8)]
    await hub.lets_pass(INTERVAL, every)
    since = hub.clock.now_ns()
    every[7].oldest_unsent = since / 1e9
    await hub.lets_pass(20 * INTERVAL, every)
    found = await fresh(hub)
    assert (found.complete_up_to, found.not_waited_for) == (to_datetime(since), 0)
    assert found.liveness.partial == ("batches are queued at node-7",)
    assert (await hub.sender(every[6])).complete_up_to == to_datetime(hub.clock.now_ns())
    assert (await hub.overview.fleet()).complete_up_to == to_datetime(since)
    hub.is_down_for(600)
    assert (await fresh(hub)).complete_up_to == to_datetime(since)
    every[7].oldest_unsent = None
    await hub.lets_pass(INTERVAL, every)
    found = await fresh(hub)
    assert (found.complete_up_to, found.liveness.partial) == (to_datetime(hub.clock.now_ns()), ())


async def test_cluster_of_one_sender_has_the_state_of_that_sender(hub: HubInTime) -> None:
    (node,) = [Node("node-0")]
    assert (await fresh(hub)).liveness.state is State.NEVER_SEEN
    await hub.lets_pass(INTERVAL, [node])
    seen = []
    for seconds in (0, 74, 2, 223, 2, 3298, 2):
        await hub.lets_pass(seconds)
        found = await fresh(hub)
        seen.append((found.liveness.state, found.senders, found.machines, await coverage(hub)))
    full, none = "2 of 2 expected by nvml", "0 of 2 expected by nvml"
    assert seen == [
        (state, {state: 1}, {state: 1}, words)
        for state, words in (
            (State.LIVE, full), (State.LIVE, full), (State.LATE, full), (State.LATE, none), (State.STALE, none),
            (State.STALE, none), (State.LOST, none),
        )
    ]  # fmt: skip
    assert (await hub.overview.fleet()).summary == "0 of 2 GPUs report; 0 of 2 clusters are live"
    await hub.take(node.body(hub.clock))
    found = await fresh(hub)
    assert (found.liveness.state, found.liveness.partial) == (State.LIVE, ())


@pytest.mark.parametrize(
    ("said", "best"),
    [
        (Expected(registration=10, pci=9, nvml=8, kubernetes=7), (10, "registration")),
        (Expected(registration=1, pci=9, nvml=8, kubernetes=7), (1, "registration")),
        (Expected(registration=0, pci=9), (0, "registration")),
        (Expected(pci=9, nvml=8, kubernetes=7), (9, "pci")),
        (Expected(pci=7, nvml=8, kubernetes=7), (8, "nvml")),
        (Expected(pci=7, nvml=8, kubernetes=9), (9, "kubernetes")),
        (Expected(pci=8, nvml=8, kubernetes=8), (8, "pci")),
        (Expected(nvml=8, kubernetes=8), (8, "nvml")),
        (Expected(kubernetes=7), (7, "kubernetes")),
        (Expected(pci=0), (0, "pci")),
        (Expected(), None),
    ],
)
def test_expected_gpus_prefer_registration_then_the_largest(said: Expected, best: tuple[int, str] | None) -> None:
    assert said.best() == best


async def test_more_gpus_than_registered_are_not_missing(hub: HubInTime) -> None:
    hub.registry.put_cluster("local", ClusterSpec(expected={"H200": 1, "L40S": 1}), to_datetime(hub.clock.now_ns()))
    await hub.lets_pass(2 * INTERVAL, [Node("node-0"), Node("node-1")])
    assert await coverage(hub) == "4 of 2 expected by registration"
    assert (await fresh(hub)).liveness.partial == ()


@pytest.mark.parametrize("off", [-56 * YEAR + 1, 200 * YEAR])
async def test_clock_off_by_years_breaks_no_answer(hub: HubInTime, off: float) -> None:
    wild, node = Node("node-0"), Node("node-1")
    wild.off = off
    await hub.lets_pass(2 * INTERVAL, [wild, node])
    found = await fresh(hub)
    assert found.senders == {State.LIVE: 2}
    assert found.clock_ahead_seconds == pytest.approx(off, abs=1)
    assert (await hub.sender(wild)).liveness.suspect
    assert (await hub.overview.fleet()).summary.startswith("2 of ") or off < 0
    hub.is_down_for(60)
    assert (await fresh(hub)).senders == {State.LIVE: 2}


@pytest.mark.parametrize("by", [-3600.0, -DAY, -YEAR])
async def test_stale_gpus_do_not_report_after_the_hub_clock_moved_back(hub: HubInTime, by: float) -> None:
    speaks, silent = Node("node-0"), Node("node-1")
    await hub.lets_pass(2 * INTERVAL, [speaks, silent])
    hub.clock.step(by)
    await hub.lets_pass(400, [speaks])
    found = await fresh(hub)
    assert found.machines == found.senders == {State.LIVE: 1, State.STALE: 1}
    assert await coverage(hub) == "2 of 4 expected by nvml"


@pytest.mark.parametrize("by", [-DAY, DAY])
async def test_retirement_after_a_hub_clock_step_holds(hub: HubInTime, by: float) -> None:
    stays, goes = Node("node-0"), Node("node-1")
    await hub.lets_pass(2 * INTERVAL, [stays, goes])
    hub.clock.step(by)
    await hub.lets_pass(2 * INTERVAL, [stays])
    (mark,) = [one for one in hub.registry.machine_freshness() if one.sender == "node-1"]
    hub.registry.retire_machine(mark.id, hub.clock.now_ns())
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.RETIRED: 1}
    assert await coverage(hub) == "2 of 2 expected by nvml"
    hub.is_down_for(10)
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.RETIRED: 1}
    await hub.lets_pass(INTERVAL, [stays, goes])  # it comes back
    found = await fresh(hub)
    assert found.machines == found.senders == {State.LIVE: 2}
    assert await coverage(hub) == "4 of 4 expected by nvml"


async def test_machine_retired_by_a_fast_hub_clock_comes_back(hub: HubInTime) -> None:
    stays, goes = Node("node-0"), Node("node-1")
    hub.clock.step(DAY)
    await hub.lets_pass(2 * INTERVAL, [stays, goes])
    (mark,) = [one for one in hub.registry.machine_freshness() if one.sender == "node-1"]
    hub.registry.retire_machine(mark.id, hub.clock.now_ns())
    hub.clock.step(-DAY)
    await hub.lets_pass(2 * INTERVAL, [stays])
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.RETIRED: 1}
    await hub.lets_pass(INTERVAL, [stays, goes])
    assert (await fresh(hub)).machines == {State.LIVE: 2}


async def test_retired_machine_is_not_revived_by_backlog(hub: HubInTime) -> None:
    stays, goes = Node("node-0"), Node("node-1")
    await hub.lets_pass(2 * INTERVAL, [stays, goes])
    hub.flushes = False
    await hub.lets_pass(INTERVAL, [stays, goes])
    await hub.lets_pass(300, [stays])
    (mark,) = [one for one in hub.registry.machine_freshness() if one.sender == "node-1"]
    hub.registry.retire_machine(mark.id, hub.clock.now_ns())
    hub.flushes = True
    await hub.lets_pass(INTERVAL, [stays])
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.RETIRED: 1}
    await hub.lets_pass(INTERVAL, [stays, goes])
    assert (await fresh(hub)).machines == {State.LIVE: 2}


async def test_guest_becomes_stale_after_a_hub_clock_step(hub: HubInTime) -> None:
    node, twin = Node("node-0"), Node("node-0")
    twin.machine = Node("guest").machine  # the same agent speaks of it
    twin.epoch = node.epoch

    async def both(seconds: float, *, guest: bool) -> None:
        for _ in range(int(seconds // INTERVAL)):
            await hub.lets_pass(INTERVAL, [node])
            if guest:
                twin.seq = node.seq
                await hub.take(twin.body(hub.clock))
                node.seq = twin.seq

    await both(120, guest=True)
    hub.clock.step(-DAY)
    await both(60, guest=True)
    assert (await fresh(hub)).machines == {State.LIVE: 2}
    await both(400, guest=False)
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.STALE: 1}


@pytest.mark.parametrize("by", [0.0, DAY, -DAY])
async def test_outage_of_the_hub_makes_no_machine_lost(hub: HubInTime, by: float) -> None:
    node = Node("node-0")
    await hub.lets_pass(2 * INTERVAL, [node])
    hub.clock.step(by)
    hub.is_down_for(3600)
    node.tells = False  # its heartbeat comes before its next look at the machine
    await hub.take(node.body(hub.clock))
    assert (await fresh(hub)).machines == {State.LIVE: 1}
    (judged,) = [hub.overview.instant().machine(one) for one in hub.registry.machine_freshness()]
    assert judged.unseen_seconds is not None
    assert judged.unseen_seconds < 5
    await hub.lets_pass(400, [node])  # a heart that beats, and nothing else
    assert (await fresh(hub)).machines == {State.STALE: 1}
    assert (await fresh(hub)).senders == {State.LIVE: 1}
