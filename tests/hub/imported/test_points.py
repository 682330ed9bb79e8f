"""Requests of OTLP as samples of machines."""

from gpufleet.codecs.otlp.records import Kind, MetricsRequest, OtlpMetric, OtlpProblem, Point, ResourceMetrics
from gpufleet.hub.imported.points import machine_of, read_request
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.machine import Machine
from gpufleet.model.provenance import Provenance
from gpufleet.model.time import NANOS

T0 = 1_700_000_000 * NANOS
GPU = {"hw.id": "GPU-00000000-0000-0000-0000-000000000001", "hw.type": "gpu"}


def metric(name: str, *values: float | None, unit: str = "1", attributes: dict[str, str] = GPU) -> OtlpMetric:
    points = [Point(value, T0 + number * 15 * NANOS, 0, attributes) for number, value in enumerate(values)]
    return OtlpMetric(name, Kind.GAUGE, points, unit)


def request(*metrics: OtlpMetric, **attributes: str) -> MetricsRequest:
    told = {name.replace("_", "."): value for name, value in attributes.items()}
    return MetricsRequest([ResourceMetrics(told, list(metrics))], {("hw.energy", OtlpProblem.DELTA): 2})


def test_points_of_the_conventions_are_readings_of_the_resource_s_machine() -> None:
    found = read_request(
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
        T0 + 30 * NANOS: {"gpu_utilization_ratio": Absent(Reason.NO_DATA, "its source says that the series has ended")},
    }
    assert {one.provenance for one in samples} == {Provenance.IMPORTED}
    assert (
        found.samples,
        dict(found.others),
        found.nameless,
        dict(found.drift),
        dict(found.problems),
        found.taken,
    ) == (
        8,
        {"http.server.duration": 1},
        1,
        {"hw.gpu.of_tomorrow": 1},
        {"delta": 2},
        3,
    )


def test_what_cannot_be_taken_is_a_problem_only_of_what_is_known() -> None:
    told = {
        ("hw.power", OtlpProblem.HISTOGRAM): 2,
        ("hw.power", OtlpProblem.TIMESTAMP): 1,
        ("hw.gpu.of_tomorrow", OtlpProblem.HISTOGRAM): 3,
        ("gpu.utilization.max", OtlpProblem.DELTA): 4,  # left alone on purpose, of whatever kind it is
        ("http.server.request.duration", OtlpProblem.HISTOGRAM): 5,
        ("process.cpu.time", OtlpProblem.ATTRIBUTES): 6,
        ("", OtlpProblem.NO_NAME): 7,
    }
    found = read_request(MetricsRequest([], told))
    assert (dict(found.problems), dict(found.drift), found.samples, found.taken) == (
        {"histogram": 2, "timestamp": 1, "no_name": 7},
        {"hw.gpu.of_tomorrow": 3},
        28,
        0,
    )
    assert found.others == {"gpu.utilization.max": 4, "http.server.request.duration": 5, "process.cpu.time": 6}


def test_without_a_machine_nothing_is_taken() -> None:
    found = read_request(request(metric("hw.gpu.utilization", 0.5), service_name="x"))
    assert (found.machines, found.nameless) == ({}, 1)


def test_a_resource_names_its_machine() -> None:
    assert machine_of({"host.name": "a", "k8s.node.name": "b"}) == Machine(name="a")
    assert machine_of({"k8s.node.name": "b", "k8s.node.uid": "u"}) == Machine(name="b", k8s_node_uid="u")
    assert machine_of({"host.id": "c", "host.name": "x" * 300}) == Machine(name="c")
    assert machine_of({"host.name": 5, "host.id": "\x00"}) is None


def test_a_part_may_be_named_by_a_number() -> None:
    told = [{"cpu.logical_number": number, "cpu.mode": "user"} for number in (0, 1)]
    points = [Point(100.0 + number, T0, 0, attributes) for number, attributes in enumerate(told)]
    times = OtlpMetric("system.cpu.time", Kind.COUNTER, points, "s")
    ((_, (sample,)),) = read_request(request(times, host_name="node-1")).machines.items()
    assert {one.labels: one.value for one in sample.dims} == {("0", "user"): 100.0, ("1", "user"): 101.0}


def test_parts_that_are_named_otherwise_are_not_taken_for_one() -> None:
    told = [{"cpu": f"cpu{number}", "state": "user"} for number in (0, 1)]  # as the Collector's hostmetrics has it
    points = [Point(100.0 + number, T0, 0, attributes) for number, attributes in enumerate(told)]
    found = read_request(request(OtlpMetric("system.cpu.time", Kind.COUNTER, points, "s"), host_name="node-1"))
    assert (found.machines, dict(found.others), dict(found.drift), found.nameless) == ({}, {}, {}, 0)
