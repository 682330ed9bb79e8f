"""Fleet faults against a hub on a simulated clock: results match `FAULTS` and `docs/freshness.md`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpufleet.hub.query.paging import PageRequest
from gpufleet.hub.receive.ingest import EpochConflictError
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.api.senders import SenderRecord
from gpufleet.model.catalogue import Lane
from gpufleet.model.cluster import ClusterRecord
from gpufleet.model.liveness import ClusterFreshness, State
from gpufleet.model.stored.samples import EventQuery, EventSpan
from gpufleet.model.time import NANOS
from gpufleet.simulate.fleet.agents import AgentTiming, SimulatedAgent, create_agents
from gpufleet.simulate.fleet.faults import parse_faults
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from tests.hub.liveness.fake_clock_hub import FakeClockHub

STEP = 2.5
CLUSTERS, NODES, GPUS = 2, 4, 2


class Play:
    """Fleet whose agents collect on the hub's clock and post their backlog, newest first."""

    def __init__(self, folder: Path, faults: str, nodes: int) -> None:
        self.hub = FakeClockHub(folder, "sim-1", "sim-2")
        self.start = self.hub.clock.now_ns()
        self.nodes = nodes
        spec = FleetSpec(clusters=CLUSTERS, nodes=nodes, gpus=GPUS, faults=parse_faults(faults, self.start))
        self.fleet = Fleet(spec)
        self.agents = create_agents(self.fleet, AgentTiming(start=self.start, interval=30.0))
        self.conflicts = 0

    async def until(self, seconds: float) -> None:
        """Advance the clock to this many seconds after the start."""
        since = 0.0
        while self.hub.clock.now_ns() < self.start + int(seconds * NANOS):
            self.hub.clock.advance(STEP)
            _ = self.hub.ingest_clock.seconds
            now = self.hub.clock.now_ns()
            for agent in self.agents:
                while agent.next_at <= now:
                    agent.collect()
                if not agent.is_cut_off(now):
                    await self._post(agent)
            since += STEP
            if since >= 30:
                since = 0.0
                await self.hub.take()  # periodic flush, as in a hub
        await self.hub.take()

    async def _post(self, agent: SimulatedAgent) -> None:
        while agent.waiting:
            body = agent.take()
            try:
                await self.hub.ingest.receive(body.content, self.hub.clock.now_ns())
            except EpochConflictError:
                self.conflicts += 1
                agent.renew(body)

    async def cluster(self, number: int = 1) -> ClusterRecord:
        return await self.hub.cluster(f"sim-{number}")

    async def fresh(self, number: int = 1) -> ClusterFreshness:
        found = (await self.cluster(number)).freshness
        assert found is not None
        return found

    async def sender(self, name: str = "sim-1-n0001") -> SenderRecord:
        (found,) = [one for one in (await self.hub.overview.senders(PageRequest())).items if one.sender == name]
        return found

    async def reporting(self, number: int = 1) -> int:
        coverage = (await self.cluster(number)).coverage
        assert coverage is not None
        return coverage.reporting

    def events(self, number: int = 1, node: int = 1) -> list[tuple[str, int, float]]:
        """Return kind, code and second of every event of a node, oldest first."""
        id_ = self._machine(number, node)
        span = EventSpan(cluster=f"sim-{number}", machine=id_, start=0, end=2**62)
        found = self.hub.store.events(EventQuery(spans=(span,), limit=100))
        return [(one.kind, one.code, (one.at - self.start) / NANOS) for one in reversed(found)]

    def latest(self, node: int = 1, gpu: int = 0) -> Mapping[str, object]:
        """Return the newest readings of a GPU's fast lane."""
        key = self.fleet.node(1, node).gpus[gpu].view.key
        samples = self.hub.store.latest("sim-1", self._machine(1, node), key)
        (found,) = [one.sample.values for one in samples if one.sample.lane is Lane.FAST]
        return found

    def reader_states(self, node: int = 1) -> set[str]:
        return {one.state.value for one in self.hub.store.readers("sim-1", self._machine(1, node))}

    def points(self, node: int = 1) -> list[float]:
        """Return the seconds at which the power of a node's first GPU was measured."""
        key, end = self.fleet.node(1, node).gpus[0].view.key, self.hub.clock.now_ns() + 2 * 86_400 * NANOS
        machine, begin = self._machine(1, node), self.start - 2 * 86_400 * NANOS
        found = self.hub.store.series("sim-1", machine, ["gpu_power_watts"], begin, end, NANOS)
        return [(at - self.start) / NANOS for at, _ in found.points[key, "gpu_power_watts"]]

    def _machine(self, number: int, node: int) -> str:
        name = f"sim-{number}-n{node:04d}"
        (found,) = [one.id for one in self.hub.registry.machine_freshness(f"sim-{number}") if one.sender == name]
        return found


@pytest.fixture
def plays(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Play]:
    play = Play(tmp_path, *request.param)
    yield play
    play.hub.end()


def fault(text: str, nodes: int = NODES) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("plays", [(text, nodes)], ids=[text], indirect=True)


async def is_healthy(plays: Play, *clusters: int) -> None:
    for number in clusters:
        fresh = await plays.fresh(number)
        assert fresh.liveness.state is State.LIVE
        assert (fresh.liveness.partial, fresh.liveness.suspect, fresh.missing_batches) == ((), (), 0)
        assert fresh.senders == {State.LIVE: plays.nodes}
        assert await plays.reporting(number) == plays.nodes * GPUS


@fault("")
async def test_fleet_without_faults_is_live_and_complete(plays: Play) -> None:
    await plays.until(180)
    await is_healthy(plays, 1, 2)


@fault("cluster-off@+2m/65m:c2", nodes=1)
async def test_cluster_without_heartbeat_is_late_stale_lost_then_live(plays: Play) -> None:
    seen = []
    for at in (120, 160, 210, 380, 440, 3650, 3750):
        await plays.until(at)
        seen.append((await plays.fresh(2)).liveness.state)
    late, stale = [State.LATE] * 2, [State.STALE] * 2
    assert seen == [State.LIVE, State.LIVE, *late, *stale, State.LOST]
    await is_healthy(plays, 1)
    assert (await plays.fresh(2)).senders == {State.LOST: 1}
    await plays.until(120 + 65 * 60 + 60)
    await is_healthy(plays, 2)


@fault("node-off@+2m/10m:c1/n3")
async def test_node_without_heartbeat_makes_its_cluster_partial(plays: Play) -> None:
    await plays.until(120 + 330)
    fresh = await plays.fresh()
    assert (fresh.liveness.state, fresh.senders) == (State.LIVE, {State.LIVE: 3, State.STALE: 1})
    assert "1 of 4 senders are not live" in fresh.liveness.partial
    assert await plays.reporting() == (NODES - 1) * GPUS
    await plays.until(120 + 660)
    await is_healthy(plays, 1, 2)


@fault("half-cluster@+2m/10m:c1")
async def test_half_cluster_fault_stops_half_of_its_senders(plays: Play) -> None:
    await plays.until(120 + 330)
    fresh = await plays.fresh()
    assert (fresh.liveness.state, fresh.senders) == (State.LIVE, {State.LIVE: 2, State.STALE: 2})
    assert await plays.reporting() == NODES // 2 * GPUS
    await is_healthy(plays, 2)


@fault("backfill@+2m/15m:c1/n1")
async def test_backfill_makes_the_sender_live_and_complete(plays: Play) -> None:
    await plays.until(120 + 800)
    assert (await plays.sender()).liveness.state is State.STALE
    await plays.until(120 + 960)
    sender = await plays.sender()
    assert (sender.liveness.state, sender.missing) == (State.LIVE, 0)
    machine = next(one for one in plays.hub.registry.machine_freshness() if one.sender == "sim-1-n0001")
    end = plays.hub.clock.now_ns()
    points = plays.hub.store.series("sim-1", machine.id, ["gpu_power_watts"], plays.start - 1, end, 30 * NANOS)
    gpu = plays.fleet.node(1, 1).gpus[0]
    assert len(points.points[gpu.view.key, "gpu_power_watts"]) == 1080 // 30


@fault("agent-restart@+2m/20s:c1/n1,node-reboot@+3m/60s:c1/n2")
async def test_restarted_agent_or_node_stays_live(plays: Play) -> None:
    before = plays.fleet.machine(plays.fleet.node(1, 2), plays.start)
    await plays.until(150)
    assert (await plays.sender()).liveness.state is State.LIVE
    await plays.until(330)
    await is_healthy(plays, 1)
    after = plays.fleet.machine(plays.fleet.node(1, 2), plays.hub.clock.now_ns())
    assert after.boot_id != before.boot_id
    freshness = plays.hub.senders.find_freshness(plays.hub.senders.now, "sim-1", "sim-1-n0001")
    assert freshness is not None
    assert freshness.newest.heartbeat is not None
    assert freshness.newest.heartbeat.started_at == plays.start + 140 * NANOS
    assert len(plays.hub.registry.machine_freshness()) == CLUSTERS * NODES


@fault("spool-wiped=4@+2m:c1/n1")
async def test_wiped_spool_starts_an_epoch_and_leaves_batches_missing(plays: Play) -> None:
    await plays.until(240)
    sender = await plays.sender()
    assert (sender.liveness.state, sender.missing, len(sender.epochs)) == (State.LIVE, 4, 2)
    assert (await plays.fresh()).missing_batches == 4


@fault("lost-batches=5@+2m:c1/n1")
async def test_lost_batches_are_missing_and_reported(plays: Play) -> None:
    await plays.until(240)
    sender = await plays.sender()
    assert (sender.liveness.state, sender.missing) == (State.LIVE, 5)
    assert sender.dropped_total == 5


@fault("clock-step=-120@+2m/20m:c1/n1,clock-step=300@+2m/20m:c1/n2")
async def test_wrong_clock_makes_its_sender_suspect_but_live(plays: Play) -> None:
    await plays.until(120 + 900)
    back, ahead = await plays.sender(), await plays.sender("sim-1-n0002")
    assert back.liveness.state is ahead.liveness.state is State.LIVE
    assert back.clock_ahead_seconds == pytest.approx(-120, abs=STEP)
    assert ahead.clock_ahead_seconds == pytest.approx(300, abs=STEP)
    for sender in (back, ahead):
        (reason,) = sender.liveness.suspect
        assert reason.startswith("its clock is ")


@fault("cloned-machine@+2m/10m:c1/n1")
async def test_cloned_machine_makes_the_cluster_suspect(plays: Play) -> None:
    await plays.until(300)
    fresh = await plays.fresh()
    assert fresh.liveness.suspect == ("evidence of 2 machines contradicts another machine's",)
    assert fresh.senders == {State.LIVE: NODES + 1}


@fault("cloned-spool@+2m/10m:c1/n1")
async def test_cloned_spool_is_suspect_and_takes_another_epoch(plays: Play) -> None:
    await plays.until(300)
    sender = await plays.sender()
    assert plays.conflicts == 1
    assert [one.partition(":")[0] for one in sender.liveness.suspect] == [
        "two machines number their batches under its epoch"
    ]
    assert (sender.liveness.state, sender.missing, len(sender.epochs)) == (State.LIVE, 0, 2)


@fault("gpu-lost@+2m/10m:c1/n1/g1,gpu-hung@+2m/10m:c1/n2/g0")
async def test_lost_or_hung_gpu_stops_reporting_and_its_node_is_live(plays: Play) -> None:
    await plays.until(120 + 200)
    fresh = await plays.fresh()
    assert (fresh.liveness.state, fresh.senders) == (State.LIVE, {State.LIVE: NODES})
    assert await plays.reporting() == NODES * GPUS - 2
    assert fresh.liveness.partial == ("GPUs reporting: 6 of 8 expected by pci",)
    await plays.until(120 + 700)
    await is_healthy(plays, 1, 2)


@fault("gpu-lost@+2m/10m:c1/n1/g1")
async def test_lost_gpu_is_an_event_with_its_xid_and_recovers(plays: Play) -> None:
    await plays.until(180)
    assert sorted(plays.events()) == [("gpu_lost", 0, 120.0), ("xid", 79, 120.0)]
    (reason,) = {one.reason if isinstance(one, Absent) else one for one in plays.latest(gpu=1).values()} - {"lost"}
    assert reason is Reason.GPU_LOST
    assert not any(isinstance(one, Absent) and one.reason is Reason.GPU_LOST for one in plays.latest().values())
    await plays.until(800)
    assert plays.events()[2:] == [("gpu_recovered", 1, 720.0)]
    assert isinstance(plays.latest(gpu=1)["gpu_power_watts"], float)


@fault("gpu-hung@+2m/5m:c1/n1/g0")
async def test_hung_gpu_makes_its_reader_partial(plays: Play) -> None:
    await plays.until(100)
    assert plays.reader_states() == {"ok"}
    await plays.until(180)
    assert plays.events() == [("hang_started", 0, 120.0)]
    assert "partial" in plays.reader_states()
    power = plays.latest()["gpu_power_watts"]
    assert isinstance(power, Absent)
    assert power.reason is Reason.TIMEOUT
    assert (await plays.sender()).liveness.state is State.LIVE
    await plays.until(500)
    assert plays.events()[1:] == [("hang_ended", 0, 420.0)]
    assert plays.reader_states() == {"ok"}


@fault("hot-gpu=5@+2m/5m:c1/n1/g0")
async def test_hot_gpu_reports_temperature_reasons_and_two_events(plays: Play) -> None:
    await plays.until(180)
    gpu = plays.fleet.node(1, 1).gpus[0]
    readings = plays.latest()
    assert readings["gpu_temperature_celsius"] == gpu.model.slowdown_celsius + 5
    assert readings["gpu_clock_event_reasons_mask"] == 0x48
    assert plays.events() == [("throttle_started", 0, 120.0)]
    await is_healthy(plays, 1, 2)
    await plays.until(480)
    assert plays.events()[1:] == [("throttle_ended", 0, 420.0)]
    assert plays.latest()["gpu_clock_event_reasons_mask"] != 0x48


@fault("xid=63@+2m:c1/n1/g1,xid=48@+3m:c1/n1/g1")
async def test_xid_is_only_an_event(plays: Play) -> None:
    await plays.until(240)
    assert plays.events() == [("xid", 63, 120.0), ("xid", 48, 180.0)]
    await is_healthy(plays, 1, 2)
    assert plays.events(1, 2) == plays.events(2, 1) == []


@fault("clock-step=900@+2m/5m:c1/n1,clock-step=-86400@+2m/5m:c1/n2")
async def test_future_stamps_are_dropped_and_past_stamps_are_kept(
    plays: Play,
) -> None:
    await plays.until(120 + 290)
    assert max(plays.points(1)) < 120
    assert await plays.reporting() == (NODES - 1) * GPUS
    behind = [at for at in plays.points(2) if at < 0]
    assert len(behind) == 300 // 30
    assert all(120 <= at + 86400 < 420 for at in behind)
    assert (await plays.fresh()).senders == {State.LIVE: NODES}
    await plays.until(120 + 300 + 300)
    await is_healthy(plays, 1, 2)
    assert max(plays.points(1)) > 120 + 300
