"""Freshness of a fleet after combined events: states and coverage at every step, on a fake clock."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.model.cluster import ClusterSpec
from gpufleet.model.liveness import ClusterFreshness, ExpectedGpus, State
from gpufleet.model.time import to_datetime
from tests.hub.liveness.fake_clock_hub import INTERVAL, FakeClockHub, Node

DAY = 86400.0
YEAR = 365 * DAY


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeClockHub]:
    hub = FakeClockHub(tmp_path, "local", "other")
    yield hub
    hub.end()


async def fresh(hub: FakeClockHub, cluster: str = "local") -> ClusterFreshness:
    found = (await hub.cluster(cluster)).freshness
    assert found is not None
    return found


async def coverage(hub: FakeClockHub, cluster: str = "local") -> str:
    found = (await hub.cluster(cluster)).coverage
    assert found is not None
    return found.summary


async def test_relay_backlog_revives_no_dead_sender(hub: FakeClockHub) -> None:
    every, direct = [Node(f"behind-{number}") for number in range(6)], Node("direct")
    await hub.advance(3 * INTERVAL, every, relayed=True)
    await hub.advance(INTERVAL, [direct])
    backlog: list[bytes] = []
    seen = []
    for seconds in (50, 240, 3240):  # the relay is down and batches queue at the senders
        left = float(seconds)
        while left > 0:
            await hub.advance(min(INTERVAL, left), [direct])
            if hub.clock.monotonic() < 1000 + 600:  # half of the senders end after ten minutes
                backlog += [one.body(hub.clock) for one in every]
            else:
                backlog += [one.body(hub.clock) for one in every[3:]]
            left -= INTERVAL
        found = await fresh(hub)
        seen.append((found.liveness.state, found.senders, await coverage(hub)))
    assert seen == [
        (State.LIVE, {State.LIVE: 1, State.LATE: 6}, "14 of 14 expected by nvml"),
        (State.LIVE, {State.LIVE: 1, State.STALE: 6}, "2 of 14 expected by nvml"),
        (State.LIVE, {State.LIVE: 1, State.STALE: 6}, "2 of 14 expected by nvml"),
    ]
    await hub.advance(2 * INTERVAL, [direct])
    assert (await fresh(hub)).senders == {State.LIVE: 1, State.LOST: 6}
    newest = [one.body(hub.clock) for one in every[3:]]
    await hub.take(*newest, *reversed(backlog), relayed=True)  # the relay is back
    found = await fresh(hub)
    assert found.senders == found.machines == {State.LIVE: 4, State.STALE: 3}
    assert found.missing_batches == 0
    assert (await fresh(hub)).liveness.partial[:2] == (
        "3 of 7 senders are not live",
        "3 of 7 machines are not live",
    )


@pytest.mark.parametrize("by", [3600.0, DAY, 30 * YEAR])
@pytest.mark.parametrize("relayed", [False, True])
async def test_clock_steps_of_a_sender_never_make_it_stale(hub: FakeClockHub, by: float, relayed: bool) -> None:
    (node,) = [Node("node-0")]
    other = Node("node-1")
    await hub.advance(2 * INTERVAL, [node, other], relayed=relayed)
    for ahead, suspect in ((by, True), (0.0, False), (-by, True), (0.0, False)):
        node.ahead = ahead
        for _ in range(10):
            await hub.advance(INTERVAL, [node, other], relayed=relayed)
            found = await hub.sender(node)
            assert found.liveness.state is State.LIVE
            assert found.liveness.unseen_seconds is not None
            assert found.liveness.unseen_seconds < INTERVAL
            assert (await fresh(hub)).machines == {State.LIVE: 2}
        assert bool(found.liveness.suspect) is suspect
        assert found.clock_ahead_seconds == pytest.approx(ahead, abs=1)
        assert (await fresh(hub)).complete_up_to == to_datetime(hub.clock.now_ns() + int(min(0.0, ahead) * 1e9))


@pytest.mark.parametrize("relayed", [False, True])
async def test_alternating_epochs_belong_to_one_sender(hub: FakeClockHub, relayed: bool) -> None:
    node = Node("node-0")
    disk, memory = (node.epoch, 0), ("f" * 32, 0)
    for ahead in (0.0, DAY, 0.0, DAY, 0.0):  # its disk fails at times
        node.ahead = ahead
        (node.epoch, node.seq) = memory if ahead else disk
        for _ in range(5):
            await hub.advance(INTERVAL, [node], relayed=relayed)
            assert (await hub.sender(node)).liveness.state is State.LIVE
        if ahead:
            memory = (node.epoch, node.seq)
        else:
            disk = (node.epoch, node.seq)
    hub.restart_after(100)
    assert (await hub.sender(node)).liveness.state is State.LIVE


async def test_new_epoch_with_corrected_clock_is_live(hub: FakeClockHub) -> None:
    node = Node("node-0")
    node.ahead = DAY
    await hub.advance(3 * INTERVAL, [node], relayed=True)
    node.ahead, node.epoch, node.seq = 0.0, "f" * 32, 0
    for _ in range(5):
        await hub.advance(INTERVAL, [node], relayed=True)
        assert (await hub.sender(node)).liveness.state is State.LIVE


async def test_backlog_does_not_revive_a_sender_after_a_clock_step(hub: FakeClockHub) -> None:
    node = Node("node-0")
    node.ahead = DAY
    await hub.advance(3 * INTERVAL, [node], relayed=True)
    node.ahead = 0.0
    await hub.advance(3 * INTERVAL, [node], relayed=True)
    backlog = []
    for _ in range(10):
        await hub.advance(INTERVAL)
        backlog.append(node.body(hub.clock))
    await hub.advance(900)
    await hub.take(*reversed(backlog), relayed=True)
    assert (await hub.sender(node)).liveness.state is State.STALE


async def test_moved_sender_is_stale_in_its_old_cluster_until_retired(hub: FakeClockHub) -> None:
    stays, moves, there = Node("node-0"), Node("node-1"), Node("node-2", "other")
    await hub.advance(3 * INTERVAL, [stays, moves, there])
    moves.cluster = "other"  # its spool moves along and its numbers continue
    await hub.advance(400, [stays, moves, there])
    assert (await fresh(hub)).senders == {State.LIVE: 1, State.STALE: 1}
    other_cluster = await fresh(hub, "other")
    assert (other_cluster.senders, other_cluster.missing_batches) == (
        {State.LIVE: 2},
        0,
    )  # earlier batches are in the old cluster
    assert await coverage(hub) == "2 of 4 expected by nvml"
    assert await coverage(hub, "other") == "4 of 4 expected by nvml"
    (machine,) = [one for one in hub.registry.machine_freshness("local") if one.sender == "node-1"]
    hub.registry.retire_machine(machine.id, hub.clock.now_ns())
    found = await fresh(hub)
    assert (found.senders, found.liveness.partial) == ({State.LIVE: 1, State.RETIRED: 1}, ())
    assert await coverage(hub) == "2 of 2 expected by nvml"


async def test_watermark_is_the_watermark_of_the_slowest_sender(hub: FakeClockHub) -> None:
    every = [Node(f"node-{number}") for number in range(8)]
    await hub.advance(INTERVAL, every)
    since = hub.clock.now_ns()
    every[7].oldest_unsent = since / 1e9
    await hub.advance(20 * INTERVAL, every)
    found = await fresh(hub)
    assert (found.complete_up_to, found.not_waited_for) == (to_datetime(since), 0)
    assert found.liveness.partial == ("batches are queued at node-7",)
    assert (await hub.sender(every[6])).complete_up_to == to_datetime(hub.clock.now_ns())
    assert (await hub.overview.fleet()).complete_up_to == to_datetime(since)
    hub.restart_after(600)
    assert (await fresh(hub)).complete_up_to == to_datetime(since)
    every[7].oldest_unsent = None
    await hub.advance(INTERVAL, every)
    found = await fresh(hub)
    assert (found.complete_up_to, found.liveness.partial) == (to_datetime(hub.clock.now_ns()), ())


async def test_cluster_of_one_sender_has_the_state_of_that_sender(hub: FakeClockHub) -> None:
    (node,) = [Node("node-0")]
    assert (await fresh(hub)).liveness.state is State.NEVER_SEEN
    await hub.advance(INTERVAL, [node])
    seen = []
    for seconds in (0, 74, 2, 223, 2, 3298, 2):
        await hub.advance(seconds)
        found = await fresh(hub)
        seen.append((found.liveness.state, found.senders, found.machines, await coverage(hub)))
    full, none = "2 of 2 expected by nvml", "0 of 2 expected by nvml"
    assert seen == [
        (state, {state: 1}, {state: 1}, coverage)
        for state, coverage in (
            (State.LIVE, full), (State.LIVE, full), (State.LATE, full), (State.LATE, none), (State.STALE, none),
            (State.STALE, none), (State.LOST, none),
        )
    ]  # fmt: skip
    assert (await hub.overview.fleet()).summary == "0 of 2 GPUs report; 0 of 2 clusters are live"
    await hub.take(node.body(hub.clock))
    found = await fresh(hub)
    assert (found.liveness.state, found.liveness.partial) == (State.LIVE, ())


@pytest.mark.parametrize(
    ("expected", "best"),
    [
        (ExpectedGpus(registration=10, pci=9, nvml=8, kubernetes=7), (10, "registration")),
        (ExpectedGpus(registration=1, pci=9, nvml=8, kubernetes=7), (1, "registration")),
        (ExpectedGpus(registration=0, pci=9), (0, "registration")),
        (ExpectedGpus(pci=9, nvml=8, kubernetes=7), (9, "pci")),
        (ExpectedGpus(pci=7, nvml=8, kubernetes=7), (8, "nvml")),
        (ExpectedGpus(pci=7, nvml=8, kubernetes=9), (9, "kubernetes")),
        (ExpectedGpus(pci=8, nvml=8, kubernetes=8), (8, "pci")),
        (ExpectedGpus(nvml=8, kubernetes=8), (8, "nvml")),
        (ExpectedGpus(kubernetes=7), (7, "kubernetes")),
        (ExpectedGpus(pci=0), (0, "pci")),
        (ExpectedGpus(), None),
    ],
)
def test_expected_gpus_prefer_registration_then_the_largest(
    expected: ExpectedGpus, best: tuple[int, str] | None
) -> None:
    assert expected.best() == best


async def test_more_gpus_than_registered_are_not_missing(hub: FakeClockHub) -> None:
    hub.registry.put_cluster("local", ClusterSpec(expected={"H200": 1, "L40S": 1}), to_datetime(hub.clock.now_ns()))
    await hub.advance(2 * INTERVAL, [Node("node-0"), Node("node-1")])
    assert await coverage(hub) == "4 of 2 expected by registration"
    assert (await fresh(hub)).liveness.partial == ()


@pytest.mark.parametrize("ahead", [-56 * YEAR + 1, 200 * YEAR])
async def test_clock_off_by_years_breaks_no_answer(hub: FakeClockHub, ahead: float) -> None:
    wild, node = Node("node-0"), Node("node-1")
    wild.ahead = ahead
    await hub.advance(2 * INTERVAL, [wild, node])
    found = await fresh(hub)
    assert found.senders == {State.LIVE: 2}
    assert found.clock_ahead_seconds == pytest.approx(ahead, abs=1)
    assert (await hub.sender(wild)).liveness.suspect
    assert (await hub.overview.fleet()).summary.startswith("2 of ") or ahead < 0
    hub.restart_after(60)
    assert (await fresh(hub)).senders == {State.LIVE: 2}


@pytest.mark.parametrize("by", [-3600.0, -DAY, -YEAR])
async def test_stale_gpus_do_not_report_after_the_hub_clock_moved_back(hub: FakeClockHub, by: float) -> None:
    reporting, stale = Node("node-0"), Node("node-1")
    await hub.advance(2 * INTERVAL, [reporting, stale])
    hub.clock.step(by)
    await hub.advance(400, [reporting])
    found = await fresh(hub)
    assert found.machines == found.senders == {State.LIVE: 1, State.STALE: 1}
    assert await coverage(hub) == "2 of 4 expected by nvml"


@pytest.mark.parametrize("by", [-DAY, DAY])
async def test_retirement_after_a_hub_clock_step_holds(hub: FakeClockHub, by: float) -> None:
    stays, goes = Node("node-0"), Node("node-1")
    await hub.advance(2 * INTERVAL, [stays, goes])
    hub.clock.step(by)
    await hub.advance(2 * INTERVAL, [stays])
    (machine,) = [one for one in hub.registry.machine_freshness() if one.sender == "node-1"]
    hub.registry.retire_machine(machine.id, hub.clock.now_ns())
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.RETIRED: 1}
    assert await coverage(hub) == "2 of 2 expected by nvml"
    hub.restart_after(10)
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.RETIRED: 1}
    await hub.advance(INTERVAL, [stays, goes])  # the retired machine reports again
    found = await fresh(hub)
    assert found.machines == found.senders == {State.LIVE: 2}
    assert await coverage(hub) == "4 of 4 expected by nvml"


async def test_machine_retired_by_a_fast_hub_clock_comes_back(hub: FakeClockHub) -> None:
    stays, goes = Node("node-0"), Node("node-1")
    hub.clock.step(DAY)
    await hub.advance(2 * INTERVAL, [stays, goes])
    (machine,) = [one for one in hub.registry.machine_freshness() if one.sender == "node-1"]
    hub.registry.retire_machine(machine.id, hub.clock.now_ns())
    hub.clock.step(-DAY)
    await hub.advance(2 * INTERVAL, [stays])
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.RETIRED: 1}
    await hub.advance(INTERVAL, [stays, goes])
    assert (await fresh(hub)).machines == {State.LIVE: 2}


async def test_retired_machine_is_not_revived_by_backlog(hub: FakeClockHub) -> None:
    stays, goes = Node("node-0"), Node("node-1")
    await hub.advance(2 * INTERVAL, [stays, goes])
    hub.flushes = False
    await hub.advance(INTERVAL, [stays, goes])
    await hub.advance(300, [stays])
    (machine,) = [one for one in hub.registry.machine_freshness() if one.sender == "node-1"]
    hub.registry.retire_machine(machine.id, hub.clock.now_ns())
    hub.flushes = True
    await hub.advance(INTERVAL, [stays])
    assert (await fresh(hub)).machines == {State.LIVE: 1, State.RETIRED: 1}
    await hub.advance(INTERVAL, [stays, goes])
    assert (await fresh(hub)).machines == {State.LIVE: 2}


async def test_guest_becomes_stale_after_a_hub_clock_step(hub: FakeClockHub) -> None:
    node, twin = Node("node-0"), Node("node-0")
    twin.machine = Node("guest").machine  # reported by the same agent
    twin.epoch = node.epoch

    async def both(seconds: float, *, guest: bool) -> None:
        for _ in range(int(seconds // INTERVAL)):
            await hub.advance(INTERVAL, [node])
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
async def test_outage_of_the_hub_makes_no_machine_lost(hub: FakeClockHub, by: float) -> None:
    node = Node("node-0")
    await hub.advance(2 * INTERVAL, [node])
    hub.clock.step(by)
    hub.restart_after(3600)
    node.sends_samples = False  # the heartbeat comes before the next samples
    await hub.take(node.body(hub.clock))
    assert (await fresh(hub)).machines == {State.LIVE: 1}
    (judged,) = [hub.overview.instant().machine(one) for one in hub.registry.machine_freshness()]
    assert judged.unseen_seconds is not None
    assert judged.unseen_seconds < 5
    await hub.advance(400, [node])  # heartbeats without samples
    assert (await fresh(hub)).machines == {State.STALE: 1}
    assert (await fresh(hub)).senders == {State.LIVE: 1}
