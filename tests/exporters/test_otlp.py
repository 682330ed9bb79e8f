"""Snapshot as OTLP: each measurement once, names of the tables, start times of counters."""

import msgspec
import pytest

from gpufleet.agent.collect.assemble import assemble
from gpufleet.codecs.otlp.decode import decode_logs, decode_metrics
from gpufleet.codecs.otlp.encodings import unpack
from gpufleet.codecs.otlp.records import Kind, OtlpMetric
from gpufleet.config.agent import DEFAULT_CLUSTER
from gpufleet.delivery.export import AgentStats
from gpufleet.exporters.otlp import MAX_AHEAD_NS, CounterStarts, NewestInstants, OtlpMetrics
from gpufleet.exporters.otlp_logs import ERROR, INFO, WARN, OtlpLogs, severity
from gpufleet.exporters.otlp_resource import node_resource
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.event import Event, EventKind, event_report
from gpufleet.model.holdings import MAX_LABELS, DeviceHolders, Holder, HolderKind, HolderState, Holding, Owner, Share
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimValue, Provenance
from gpufleet.model.snapshot import Guest, Host, Snapshot
from gpufleet.model.time import NANOS, to_ns
from gpufleet.runtime import run_to_end
from tests.support.passes import World, gpu
from tests.support.snapshots import example_snapshot, holding

BOOT = 1_767_000_000
STATS = AgentStats(started_at=5, lanes={})


def shown(world: World, *events: Event) -> Snapshot:
    snapshot = assemble(world.state, now=world.clock.monotonic(), now_ns=world.clock.now_ns(), capabilities={})
    return msgspec.structs.replace(snapshot, events=tuple(event_report(event) for event in events))


def taken(source: OtlpMetrics) -> dict[str, OtlpMetric]:
    draft = source.take()
    if draft is None:
        return {}
    request = decode_metrics(unpack(draft.encode(), "gzip"))
    assert not request.problems
    found = {metric.name: metric for metric in request.resources[0].metrics}
    assert sum(len(metric.points) for metric in found.values()) == draft.points
    return found


def source_of(world: World) -> OtlpMetrics:
    return OtlpMetrics("east", {}, world.clock.now_ns)


@pytest.fixture
def world() -> World:
    made = World({"host": (Lane.STATIC,), "nvml": (Lane.FAST, Lane.SLOW)})
    made.passed("host", Lane.STATIC, made.sample("host", Lane.STATIC, None, {"host_boot_timestamp_seconds": BOOT}))
    return made


def see(starts: CounterStarts, snapshot: Snapshot, agent_started: int) -> None:
    starts.update(snapshot.host, snapshot.devices, snapshot.events, agent_started)


def measure(world: World, joules: float, *, watts: float | Absent = 300.0) -> int:
    """Make a pass and return its time."""
    world.clock.advance(10)
    values = {"gpu_energy_joules_total": joules, "gpu_power_watts": watts, "gpu_memory_used_bytes": 2**40}
    world.passed("nvml", Lane.FAST, world.sample("nvml", Lane.FAST, gpu(0), values))
    return world.clock.now_ns()


def test_measurement_is_sent_once_at_its_own_time(world: World) -> None:
    source = source_of(world)
    instants = [measure(world, 100.0)]
    run_to_end(source.offer(shown(world), STATS))
    run_to_end(source.offer(shown(world), STATS))
    instants.append(measure(world, 200.0))
    run_to_end(source.offer(shown(world), STATS))
    metrics = taken(source)
    energy = metrics["hw.energy"]
    assert [(point.value, point.at) for point in energy.points] == list(zip([100.0, 200.0], instants, strict=True))
    assert (energy.kind, energy.unit) == (Kind.COUNTER, "J")
    assert metrics["hw.gpu.memory.usage"].kind is Kind.SUM
    assert metrics["hw.gpu.memory.usage"].points[0].value == 2**40
    assert metrics["hw.power"].points[0].attributes["hw.id"] == gpu(0).uuid
    world.clock.advance(10)
    run_to_end(source.offer(shown(world), STATS))
    assert source.take() is None


def test_absent_or_stale_reading_has_no_point(world: World) -> None:
    source = source_of(world)
    measure(world, 100.0, watts=Absent(Reason.TIMEOUT, "nvmlDeviceGetPowerUsage"))
    run_to_end(source.offer(shown(world), STATS))
    assert "hw.power" not in taken(source)
    world.clock.advance(100)  # nothing is read any longer
    run_to_end(source.offer(shown(world), STATS))
    assert source.take() is None
    at = measure(world, 300.0)
    run_to_end(source.offer(shown(world), STATS))
    assert [point.at for point in taken(source)["hw.power"].points] == [at]


def test_example_snapshot_is_exported(world: World) -> None:
    source = OtlpMetrics("east", {"team.name": "ml"}, world.clock.now_ns)
    run_to_end(source.offer(example_snapshot(), STATS))
    draft = source.take()
    assert draft is not None
    (found,) = decode_metrics(unpack(draft.encode(), "gzip")).resources
    assert found.attributes["team.name"] == "ml"
    assert found.attributes["host.id"] == "a" * 32
    points = {(metric.name, point.value) for metric in found.metrics for point in metric.points}
    assert ("hw.power", 312.5) in points
    assert ("hw.gpu.utilization", 0.0) in points  # a measured zero
    (received,) = [metric for metric in found.metrics if "system.network" in metric.name]
    assert received.points[0].value == 2**63 - 1


def test_l9gpu_dialect_is_exported(world: World) -> None:
    source = OtlpMetrics("east", {"k8s.cluster.name": "prod"}, world.clock.now_ns, ("l9gpu",))
    snapshot = example_snapshot()
    run_to_end(source.offer(snapshot, STATS))
    run_to_end(source.offer(snapshot, STATS))
    draft = source.take()
    assert draft is not None
    (found,) = decode_metrics(unpack(draft.encode(), "gzip")).resources
    assert found.attributes["gpu.vendor"] == "nvidia"
    assert found.attributes["k8s.cluster.name"] == "prod"  # as configured
    (device,) = [one for one in snapshot.devices if one.uuid == gpu(0).uuid]
    sent = {metric.name: [point.value for point in metric.points] for metric in found.metrics}
    assert sent == {
        "gpu.utilization": [0.0],
        "gpu.memory.used": [2**30],
        "gpu.memory.total": [2**37],
        "gpu.memory.used.percent": [100 / 128],
        "gpu.power.draw": [312.5],
        "gpu.energy.consumption": [1_234_567_250],
    }
    assert {metric.kind for metric in found.metrics} == {Kind.GAUGE}
    (power,) = [metric.points[0] for metric in found.metrics if metric.name == "gpu.power.draw"]
    assert power.attributes == {
        "gpu.uuid": gpu(0).uuid,
        "gpu.index": "0",
        "gpu.model": "NVIDIA H200",
        "host.name": found.attributes["host.name"],
        "k8s.cluster.name": "prod",
        "gpufleet.kind": "gpu",
        "gpufleet.side": "host",
        "gpufleet.pci_address": gpu(0).pci_address,
    }
    measured = device.readings["gpu_power_watts"].measured_at
    assert measured is not None
    assert power.at == to_ns(measured)


def held(snapshot: Snapshot, *holdings: Holding) -> Snapshot:
    """Return the snapshot with holders of every device."""
    holders = DeviceHolders(state=HolderState.HELD, holdings=holdings)
    devices = [msgspec.structs.replace(device, holders=holders) for device in snapshot.devices]
    return msgspec.structs.replace(snapshot, devices=tuple(devices))


POD = Holder(kind=HolderKind.POD, id="uid-1", name="train-0", namespace="ml", labels={"app": "train", "hw.id": "x"})
OTHER = Holder(kind=HolderKind.POD, id="uid-2", name="train-1", namespace="ml")
JOB = Holder(kind=HolderKind.JOB, id="12345", name="train", user="ann", queue="gpu")


def test_points_have_the_holder_of_their_device(world: World) -> None:
    source = source_of(world)
    measure(world, 100.0)
    run_to_end(source.offer(held(shown(world), holding(POD)), STATS))
    attributes = taken(source)["hw.power"].points[0].attributes
    assert attributes["hw.id"] == gpu(0).uuid
    assert {name: text for name, text in attributes.items() if name.startswith("k8s.")} == {
        "k8s.namespace.name": "ml",
        "k8s.pod.name": "train-0",
        "k8s.pod.uid": "uid-1",
        "k8s.container.name": "main",
        "k8s.pod.label.app": "train",
        "k8s.pod.label.hw.id": "x",
    }


@pytest.mark.parametrize("own", [(holding(POD, Share.TIMESLICE), holding(OTHER, Share.TIMESLICE)), ()])
def test_point_of_a_device_without_only_holder_has_none(world: World, own: tuple[Holding, ...]) -> None:
    source = source_of(world)
    measure(world, 100.0)
    run_to_end(source.offer(held(shown(world), *own), STATS))
    assert not [name for name in taken(source)["hw.power"].points[0].attributes if name.startswith("k8s.")]


def test_value_measured_before_the_holding_has_no_holder(world: World) -> None:
    source = source_of(world)
    since = measure(world, 100.0) + 1
    for _ in range(2):
        run_to_end(source.offer(held(shown(world), msgspec.structs.replace(holding(JOB), since=since)), STATS))
        measure(world, 200.0)
    points = taken(source)["hw.power"].points
    assert [point.attributes.get("job.id") for point in points] == [None, "12345"]


def test_l9gpu_dialect_has_its_own_names_of_a_job(world: World) -> None:
    source = OtlpMetrics("east", {}, world.clock.now_ns, ("l9gpu",))
    measure(world, 100.0)
    run_to_end(source.offer(held(shown(world), holding(JOB)), STATS))
    attributes = taken(source)["gpu.power.draw"].points[0].attributes
    assert (attributes["job_id"], attributes["username"], attributes["partition"]) == ("12345", "ann", "gpu")
    assert "job.id" not in attributes


def test_l9gpu_dialect_names_the_owner_of_a_pod(world: World) -> None:
    owners = tuple(
        Owner(kind=kind, name=name, api_version="apps/v1")
        for kind, name in (("ReplicaSet", "web-1"), ("Deployment", "web"))
    )
    pod = Holder(kind=HolderKind.POD, id="uid-a", name="web-1-a", namespace="ml", owners=owners, labels={"team": "a"})
    source = OtlpMetrics("east", {}, world.clock.now_ns, ("l9gpu",))
    measure(world, 100.0)
    run_to_end(source.offer(held(shown(world), holding(pod)), STATS))
    attributes = taken(source)["gpu.power.draw"].points[0].attributes
    owner = {"k8s.deployment.name": "web", "k8s.owner.kind": "Deployment", "k8s.owner.name": "web"}
    assert attributes.items() >= {**owner, "k8s.pod.label.team": "a"}.items()


@pytest.mark.parametrize(
    ("dialects", "name"), [(("l9gpu",), "l9gpu"), (("otel",), "gpufleet-agent"), (("otel", "l9gpu"), "gpufleet-agent")]
)
def test_service_is_l9gpu_only_without_other_dialects(world: World, dialects: tuple[str, ...], name: str) -> None:
    def service(configured: dict[str, str]) -> object:
        source = OtlpMetrics("east", configured, world.clock.now_ns, dialects)
        measure(world, 100.0)
        run_to_end(source.offer(shown(world), STATS))
        draft = source.take()
        assert draft is not None
        return decode_metrics(unpack(draft.encode(), "gzip")).resources[0].attributes["service.name"]

    assert service({}) == name
    assert service({"service.name": "mine"}) == "mine"


def test_hub_accepts_points_with_the_most_holder_attributes(world: World) -> None:
    labels = {f"{number:02}" + "k" * 300: "v" for number in range(MAX_LABELS // 2)}
    labels |= {f"{number:02}": "\u00fc" * 10_000 for number in range(MAX_LABELS // 2)}
    pod = msgspec.structs.replace(POD, name="x" * 10_000, queue="x" * 10_000, labels=labels)
    source = source_of(world)
    measure(world, 100.0)
    run_to_end(source.offer(held(shown(world), holding(pod)), STATS))
    assert taken(source)["hw.power"].points  # `taken` fails if the decoder rejected a point


def test_two_dialects_send_each_reading_twice(world: World) -> None:
    source = OtlpMetrics("east", {}, world.clock.now_ns, ("otel", "l9gpu", "otel"))
    for joules in (100.0, 200.0):
        measure(world, joules)
        run_to_end(source.offer(shown(world), STATS))
    metrics = taken(source)
    assert [point.value for point in metrics["hw.energy"].points] == [100.0, 200.0]
    assert [point.value for point in metrics["gpu.energy.consumption"].points] == [100_000, 200_000]


def test_virtual_machine_is_a_separate_resource(world: World) -> None:
    at = measure(world, 100.0)
    snapshot = shown(world)
    (device,) = [one for one in snapshot.devices if one.uuid == gpu(0).uuid]
    inside = msgspec.structs.replace(
        device, sources=tuple(msgspec.structs.replace(one, provenance=Provenance.SLICE_GUEST) for one in device.sources)
    )
    guest = Guest(
        machine=Machine(name="vm", machine_id="g"), namespace="ns", name="vm-1", vm_uuid="u", devices=(inside,),
        host=Host(readings={}),
    )  # fmt: skip
    source = source_of(world)
    run_to_end(source.offer(msgspec.structs.replace(snapshot, guests=(guest,)), STATS))
    draft = source.take()
    assert draft is not None
    node, vm = decode_metrics(unpack(draft.encode(), "gzip")).resources
    assert vm.attributes["host.name"] == "vm"
    assert vm.attributes["gpufleet.hypervisor"] == node.attributes["host.name"] == vm.attributes["service.instance.id"]
    assert (vm.attributes["gpufleet.vm.namespace"], vm.attributes["gpufleet.vm.uuid"]) == ("ns", "u")
    (power,) = [metric.points for metric in vm.metrics if metric.name == "hw.power"]
    assert [(point.at, point.attributes["gpufleet.provenance"]) for point in power] == [(at, "slice_guest")]
    (energy,) = [metric.points for metric in vm.metrics if metric.name == "hw.energy"]
    assert [point.start for point in energy] == [0]  # unknown start of the guest, not the boot of the host
    (own,) = [metric.points for metric in node.metrics if metric.name == "hw.power"]
    assert "gpufleet.provenance" not in own[0].attributes


def test_counter_start_is_boot_driver_load_or_reset(world: World) -> None:
    source = source_of(world)

    def starts(*events: Event) -> list[int]:
        run_to_end(source.offer(shown(world, *events), STATS))
        return [point.start for point in taken(source)["hw.energy"].points]

    measure(world, 100.0)
    assert starts() == [BOOT * NANOS]
    loaded = Event(view=None, kind=EventKind.DRIVER_RELOADED, at=measure(world, 0.5))
    assert starts(loaded) == [loaded.at]
    measure(world, 1.0)
    other = Event(view=gpu(1), kind=EventKind.GPU_RESET, at=loaded.at + 1)
    assert starts(loaded, other) == [loaded.at]
    reset = Event(view=gpu(0), kind=EventKind.GPU_RESET, at=measure(world, 0.1))
    assert starts(loaded, reset) == [reset.at]
    measure(world, 0.2)
    assert starts() == [reset.at]  # kept after the events are dropped


def test_later_driver_load_keeps_earlier_counter_starts(world: World) -> None:
    source = source_of(world)
    measure(world, 100.0)
    run_to_end(source.offer(shown(world), STATS))
    loaded = Event(view=None, kind=EventKind.DRIVER_LOADED, at=world.clock.now_ns() + NANOS)
    measure(world, 0.5)
    run_to_end(source.offer(shown(world), STATS))
    run_to_end(source.offer(shown(world, loaded), STATS))
    assert [point.start for point in taken(source)["hw.energy"].points] == [BOOT * NANOS, loaded.at]


def test_start_times_of_other_counters(world: World) -> None:
    starts = CounterStarts()
    see(starts, shown(world), 123)
    at = world.clock.now_ns()
    assert starts.start_of("host_network_receive_bytes_total", "", at) == BOOT * NANOS
    assert starts.start_of("host_kernel_log_lost_messages_total", "", at) == 123
    assert starts.start_of("gpu_ecc_corrected_lifetime_errors_total", gpu(0).key, at) == 0
    assert starts.start_of("gpu_xid_events_total", gpu(0).key, at) == 0
    since = {"gpu_xid_watched_since_timestamp_seconds": 1_767_000_500.5}
    world.passed("nvml", Lane.SLOW, world.sample("nvml", Lane.SLOW, gpu(0), since))
    see(starts, shown(world), 123)
    assert starts.start_of("gpu_xid_events_total", gpu(0).key, at) == 1_767_000_500_500_000_000
    assert starts.start_of("gpu_xid_events_total", gpu(0).key, 5) == 0  # a start after the measurement is ignored


def test_boot_time_does_not_follow_clock_adjustments(world: World) -> None:
    starts = CounterStarts()
    for boot in (BOOT, BOOT + 1, BOOT - 1):
        world.passed(
            "host", Lane.STATIC, world.sample("host", Lane.STATIC, None, {"host_boot_timestamp_seconds": boot})
        )
        see(starts, shown(world), 0)
        assert starts.start_of("host_cpu_seconds_total", "", world.clock.now_ns()) == BOOT * NANOS


def test_clock_set_back_does_not_suppress_points(world: World) -> None:
    fresh: NewestInstants[str] = NewestInstants(world.clock.now_ns)
    now = world.clock.now_ns()
    fresh.begin_round()
    assert fresh.is_new("a", now)
    fresh.begin_round()
    assert not fresh.is_new("a", now)
    world.clock.step(-3600)
    fresh.begin_round()
    assert fresh.is_new("a", now - MAX_AHEAD_NS)


def test_dimensions_are_separate_points(world: World) -> None:
    source = source_of(world)
    dims = (DimValue("gpu_xid_errors_total", ("79",), 2), DimValue("gpu_xid_errors_total", ("31",), 1))
    world.passed("nvml", Lane.SLOW, world.sample("nvml", Lane.SLOW, gpu(0), {}, dims))
    run_to_end(source.offer(shown(world), STATS))
    points = taken(source)["gpufleet.gpu_xid_errors_total"].points
    assert {(point.attributes["gpufleet.xid"], point.value) for point in points} == {("79", 2), ("31", 1)}


def test_resource_attributes() -> None:
    node = Machine(
        name="gpu-17",
        machine_id="m",
        k8s_node_name="gpu-17.east",
        k8s_node_uid="u",
        cloud_provider="aws",
        instance_id="i-1",
        instance_type="p5.48xlarge",
        region="us-east-1",
        zone="us-east-1b",
    )
    attributes = node_resource(node, "east", {"service.name": "mine"})
    assert {
        "service.name": "mine",
        "host.name": "gpu-17",
        "host.id": "i-1",
        "host.type": "p5.48xlarge",
        "cloud.provider": "aws",
        "cloud.region": "us-east-1",
        "cloud.availability_zone": "us-east-1b",
        "k8s.node.name": "gpu-17.east",
        "k8s.node.uid": "u",
        "k8s.cluster.name": "east",
    }.items() <= attributes.items()
    assert "k8s.cluster.name" not in node_resource(node, DEFAULT_CLUSTER, {})
    bare = node_resource(Machine(name="n"), "east", {})
    assert [name for name in bare if name.startswith(("host.id", "host.type", "cloud.", "k8s."))] == []


def test_events_are_log_records(world: World) -> None:
    logs = OtlpLogs("east", {})
    snapshot = example_snapshot()
    attributes = {"name": "GPU has fallen off the bus", "class": "hardware"}
    event = Event(view=gpu(0), kind="xid", code=79, at=7 * NANOS, attributes=attributes)
    logs.add_events(snapshot, [event, Event(view=None, kind="of_the_future", at=8 * NANOS)])
    run_to_end(logs.offer(snapshot, STATS))
    draft = logs.take()
    assert draft is not None
    assert draft.points == 2
    first, second = decode_logs(unpack(draft.encode(), "gzip")).resources[0].records
    assert (first.event, first.body, first.at, first.severity) == (
        "gpufleet.xid",
        "XID 79: GPU has fallen off the bus",
        7 * NANOS,
        ERROR,
    )
    assert first.attributes["hw.id"] == gpu(0).uuid
    assert first.attributes["hw.model"] == "NVIDIA H200"
    assert first.attributes["gpufleet.code"] == 79
    assert (second.event, second.body, second.severity) == ("gpufleet.of_the_future", "of_the_future", INFO)
    assert logs.take() is None


def test_event_has_the_holder_at_its_time(world: World) -> None:
    measure(world, 100.0)
    logs, since = OtlpLogs("east", {}), 50 * NANOS
    snapshot = held(shown(world), msgspec.structs.replace(holding(JOB), since=since))
    logs.add_events(snapshot, [Event(view=gpu(0), kind="xid", code=31, at=at) for at in (since - 1, since)])
    logs.add_events(snapshot, [Event(view=None, kind=EventKind.DRIVER_LOADED, at=since)])
    run_to_end(logs.offer(snapshot, STATS))
    draft = logs.take()
    assert draft is not None
    records = decode_logs(unpack(draft.encode(), "gzip")).resources[0].records
    assert [record.attributes.get("job.id") for record in records] == [None, "12345", None]
    assert records[1].attributes["hw.id"] == gpu(0).uuid


@pytest.mark.parametrize(
    ("kind", "attributes", "level"),
    [
        ("xid", {"class": "application"}, WARN),
        ("xid", {"class": "notice"}, INFO),
        ("xid", {}, ERROR),
        (EventKind.GPU_LOST, {}, ERROR),
        (EventKind.THROTTLE_STARTED, {}, WARN),
        (EventKind.GPU_RECOVERED, {}, INFO),
    ],
)
def test_severity_of_events(kind: str, attributes: dict[str, str], level: int) -> None:
    assert severity(Event(view=None, kind=kind, code=13, at=1, attributes=attributes))[0] == level
