"""OTLP metrics requests as samples of machines."""

from gpufleet.codecs.otlp.records import Kind, MetricsRequest, OtlpMetric, OtlpPoint, OtlpProblem, ResourceMetrics
from gpufleet.exporters.otlp_resource import guest_resource
from gpufleet.hub.imports.otlp import machine_of, read_metrics_request
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import Lane
from gpufleet.model.machine import Machine, MachineKind
from gpufleet.model.reading import Provenance
from gpufleet.model.snapshot import Guest, Host
from gpufleet.model.time import NANOS

T0 = 1_700_000_000 * NANOS
GPU = {"hw.id": "GPU-00000000-0000-0000-0000-000000000001", "hw.type": "gpu"}


def metric(name: str, *values: float | None, unit: str = "1", attributes: dict[str, str] = GPU) -> OtlpMetric:
    points = [OtlpPoint(value, T0 + number * 15 * NANOS, 0, attributes) for number, value in enumerate(values)]
    return OtlpMetric(name, Kind.GAUGE, points, unit)


def request(*metrics: OtlpMetric, **attributes: str) -> MetricsRequest:
    resource = {name.replace("_", "."): value for name, value in attributes.items()}
    return MetricsRequest([ResourceMetrics(resource, list(metrics))], {("hw.energy", OtlpProblem.DELTA): 2})


def test_convention_points_belong_to_the_resource_machine() -> None:
    found = read_metrics_request(
        request(
            metric("hw.gpu.utilization", 0.5, 0.75, None),
            metric("hw.gpu.of_tomorrow", 1.0),
            metric("http.server.duration", 1.0),
            metric("hw.gpu.utilization", 0.5, attributes={}),
            host_name="node-1",
        )
    )
    ((machine, samples),) = found.machines.items()
    assert machine == Machine(name="node-1")
    assert {one.measured_at: one.values for one in samples} == {
        T0: {"gpu_utilization_ratio": 0.5},
        T0 + 15 * NANOS: {"gpu_utilization_ratio": 0.75},
        T0 + 30 * NANOS: {"gpu_utilization_ratio": Absent(Reason.NO_DATA, "the source reported the end of the series")},
    }
    assert {one.provenance for one in samples} == {Provenance.IMPORTED}
    assert (
        found.samples,
        dict(found.others),
        found.unattributed,
        dict(found.drift),
        dict(found.problems),
        found.accepted,
    ) == (
        8,
        {"http.server.duration": 1},
        1,
        {"hw.gpu.of_tomorrow": 1},
        {"delta": 2},
        3,
    )


def test_problems_are_counted_for_known_metrics_only() -> None:
    problems = {
        ("hw.power", OtlpProblem.HISTOGRAM): 2,
        ("hw.power", OtlpProblem.TIMESTAMP): 1,
        ("DCGM_FI_DEV_GPU_UTIL", OtlpProblem.TIMESTAMP): 1,
        ("hw.gpu.of_tomorrow", OtlpProblem.HISTOGRAM): 3,
        ("gpu.utilization.max", OtlpProblem.DELTA): 4,  # ignored deliberately, whatever its kind
        ("http.server.request.duration", OtlpProblem.HISTOGRAM): 5,
        ("process.cpu.time", OtlpProblem.ATTRIBUTES): 6,
        ("", OtlpProblem.NO_NAME): 7,
    }
    found = read_metrics_request(MetricsRequest([], problems))
    assert (dict(found.problems), dict(found.drift), found.samples, found.accepted) == (
        {"histogram": 2, "timestamp": 2, "no_name": 7},
        {"hw.gpu.of_tomorrow": 3},
        29,
        0,
    )
    assert found.others == {"gpu.utilization.max": 4, "http.server.request.duration": 5, "process.cpu.time": 6}


def test_points_without_a_machine_are_unattributed() -> None:
    found = read_metrics_request(request(metric("hw.gpu.utilization", 0.5), service_name="x"))
    assert (found.machines, found.unattributed) == ({}, 1)


GPU_0 = {"UUID": "GPU-00000000-0000-0000-0000-000000000001", "gpu": "0", "modelName": "NVIDIA L40S"}


def scraped(name: str, *values: float | None, **labels: str) -> OtlpMetric:
    """Return a dcgm-exporter series as the Collector's `prometheus` receiver converts it."""
    return metric(name, *values, unit="", attributes={**GPU_0, **labels})


def test_scraped_points_are_read_as_exporter_series() -> None:
    pod = {"exported_pod": "train-0", "exported_namespace": "team", "container": "exporter", "pod": "dcgm-exporter-x"}
    found = read_metrics_request(
        request(
            scraped("DCGM_FI_DEV_GPU_UTIL", 50.0, None, Hostname="node-1", **pod),
            scraped("DCGM_FI_DEV_FB_USED", 1024.0, Hostname="node-1", **pod),
            scraped("DCGM_FI_DEV_OF_TOMORROW", 1.0, Hostname="node-1", of_tomorrow="x"),
            scraped("DCGM_FI_DEV_SM_CLOCK", 1.0, Hostname="node-1", of_tomorrow="x"),
            metric("up", 1.0, attributes={}),
            service_name="dcgm-exporter",
            service_instance_id="10.0.0.1:9400",
        )
    )
    ((machine, samples),) = found.machines.items()
    assert machine == Machine(name="node-1")
    fast = {one.measured_at: one.values for one in samples if one.lane is Lane.FAST}
    assert fast[T0]["gpu_utilization_ratio"] == 0.5
    assert fast[T0]["gpu_memory_used_bytes"] == 1 << 30
    assert fast[T0 + 15 * NANOS]["gpu_utilization_ratio"] == Absent(
        Reason.NO_DATA, "the source reported the end of the series"
    )
    assert {one.reader for one in samples} == {"otlp/dcgm-exporter"}
    assert {holder.name for held in found.holders[machine].values() for holder in held} == {"train-0"}
    assert (dict(found.drift), dict(found.labels), dict(found.others)) == (
        {"DCGM_FI_DEV_OF_TOMORROW": 1},
        {"of_tomorrow": 1},
        {"up": 1},
    )
    assert (found.samples, found.accepted) == (6 + 2, 4)


def test_scraped_points_belong_to_the_target_machine() -> None:
    def machine(instance: str, **attributes: str) -> str:
        scrape = request(scraped("DCGM_FI_DEV_GPU_UTIL", 50.0), service_instance_id=instance, **attributes)
        return next(iter(read_metrics_request(scrape).machines)).name

    assert machine("gpu-1:9400", host_name="collector-0") == "gpu-1"
    assert machine("10.0.0.1:9400", host_name="collector-0", k8s_node_name="node-1") == "node-1"
    assert [machine(local, host_name="node-2") for local in ("localhost:9400", "127.0.0.1:9400", "[::1]:9400", "")] == [
        "node-2"
    ] * 4


def test_scraped_pod_labels_are_used_if_configured() -> None:
    scrape = request(scraped("DCGM_FI_DEV_GPU_UTIL", 50.0, Hostname="node-1", pod="train-0", namespace="team"))
    for plain, names in ((False, set()), (True, {"train-0"})):
        holders = read_metrics_request(scrape, plain_pods=plain).holders
        assert {one.name for at in holders.values() for held in at.values() for one in held} == names


def test_machine_is_named_by_resource_attributes() -> None:
    assert machine_of({"host.name": "a", "k8s.node.name": "b"}) == Machine(name="a")
    assert machine_of({"k8s.node.name": "b", "k8s.node.uid": "u"}) == Machine(name="b")
    pod = {"host.name": "monitor-x7k", "k8s.pod.name": "monitor-x7k"}  # the host name of a container is its pod's name
    assert machine_of({**pod, "k8s.node.name": "b"}) == Machine(name="b")
    assert machine_of(pod) == Machine(name="monitor-x7k")
    assert machine_of({"host.id": "c", "host.name": "x" * 300}) == Machine(name="c")
    assert machine_of({"host.name": 5, "host.id": "\x00"}) is None


def test_dimension_may_be_labelled_by_a_number() -> None:
    labels = [{"cpu.logical_number": number, "cpu.mode": "user"} for number in (0, 1)]
    points = [OtlpPoint(100.0 + number, T0, 0, attributes) for number, attributes in enumerate(labels)]
    times = OtlpMetric("system.cpu.time", Kind.COUNTER, points, "s")
    ((_, (sample,)),) = read_metrics_request(request(times, host_name="node-1")).machines.items()
    assert {one.labels: one.value for one in sample.dims} == {("0", "user"): 100.0, ("1", "user"): 101.0}


def test_points_with_unknown_dimension_labels_are_not_merged() -> None:
    labels = [{"cpu": f"cpu{number}", "state": "user"} for number in (0, 1)]  # labels of the Collector's hostmetrics
    points = [OtlpPoint(100.0 + number, T0, 0, attributes) for number, attributes in enumerate(labels)]
    found = read_metrics_request(request(OtlpMetric("system.cpu.time", Kind.COUNTER, points, "s"), host_name="node-1"))
    assert (found.machines, dict(found.others), dict(found.drift), found.unattributed) == ({}, {}, {}, 0)


VM = Guest(
    machine=Machine(name="node-b", kind=MachineKind.GUEST, hypervisor="node-a"),
    namespace="",
    name="node-b",
    vm_uuid="c77c546c-c5a2-4093-bc1b-8051983e7a61",
    devices=(),
    host=Host(readings={}),
)
VM_RESOURCE = guest_resource(VM, Machine(name="node-a"), "local", {})


def test_guest_is_not_the_node_of_its_name() -> None:
    """The name of a virtual machine under libvirt is its owner's choice."""
    memory = metric("system.memory.limit", 7777.0, unit="By", attributes={})
    power = metric("hw.power", 77.0, unit="W")
    found = read_metrics_request(MetricsRequest([ResourceMetrics(VM_RESOURCE, [memory, power])], {}))
    assert (found.machines, found.samples, found.unattributed, found.accepted) == ({}, 2, 2, 0)


def test_scraped_series_of_a_guest_are_not_of_its_host() -> None:
    pod = {"exported_pod": "train-0", "exported_namespace": "team"}
    series = [scraped("DCGM_FI_DEV_GPU_UTIL", 50.0, Hostname="node-b", **pod), scraped("DCGM_FI_DEV_GPU_TEMP", 40.0)]
    found = read_metrics_request(MetricsRequest([ResourceMetrics(VM_RESOURCE, series)], {}))
    assert (found.machines, found.holders, found.unattributed, found.accepted) == ({}, {}, 2, 0)
