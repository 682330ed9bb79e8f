"""A request of OTLP metrics as samples of machines. Pure."""

from collections import Counter
from collections.abc import Sequence

from gpufleet.codecs.otlp.records import Attributes, MetricsRequest, ResourceMetrics
from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.dialects.kube_state_metrics import KUBE_STATE_METRICS
from gpufleet.dialects.otel import BY_NAME, is_mine, why_unread
from gpufleet.dialects.otel_reading import Incoming, read_points
from gpufleet.hub.imported.series import read_request as read_series
from gpufleet.hub.imported.written import Written, can_be_called, has_a_name
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.series import Series

READER = "otlp"
"""Name of the reader in samples that came by OTLP."""

NAMES = ("host.name", "k8s.node.name", "host.id")
"""Attributes of a resource that tell its machine, the first that is there."""


def read_request(request: MetricsRequest) -> Written:
    """Return what a request says. Whose machine a resource is, its own attributes tell.

    What cannot be taken of a metric that no table has (a histogram of requests, say) is as unknown as what could be.
    """
    machines: dict[Machine, list[Sample]] = {}
    drift: Counter[str] = Counter()
    others: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    count = nameless = 0
    for (name, problem), number in request.problems.items():
        if not name.strip() or name in BY_NAME:
            problems[problem.value] += number
        else:
            (drift if is_mine(name) and why_unread(name, {}) is None else others)[name] += number
    for resource in request.resources:
        every = _points(resource)
        count += len(every)
        of_nodes = [one for one in every if KUBE_STATE_METRICS.is_mine(one.name)]
        points = [one for one in every if not KUBE_STATE_METRICS.is_mine(one.name)] if of_nodes else every
        said = _said_of_nodes(of_nodes)
        others.update(said.others)
        nameless += said.nameless
        for named, told in said.machines.items():
            machines.setdefault(named, []).extend(told)
        machine = machine_of(resource.attributes)
        read = read_points("", points, reader=READER)
        unknown = [point.name for point in points if point.name in read.unknown]
        drift.update(said.drift)
        drift.update(name for name in unknown if is_mine(name))
        others.update(name for name in unknown if not is_mine(name))
        nameless += read.nameless
        samples = [one for told in read.machines.values() for one in told if has_a_name(one)]
        if samples and machine is None:
            nameless += len(points) - len(unknown) - read.nameless
        elif samples and machine is not None:
            machines.setdefault(machine, []).extend(samples)
    return Written(
        machines={machine: tuple(samples) for machine, samples in machines.items()},
        samples=count + sum(request.problems.values()),
        drift=drift,
        others=others,
        nameless=nameless,
        problems=problems,
    )


def _said_of_nodes(points: Sequence[Incoming]) -> Written:
    """Read what a collector scraped from kube-state-metrics: whom it is said of, its points tell."""
    series = [Series(one.name, dict(one.attributes)) for one in points]
    values = [0.0 if one.value is None else float(one.value) for one in points]
    ended = [number for number, one in enumerate(points) if one.value is None]
    return read_series(WriteRequest(series, values, [one.at for one in points], ended, {}, {}), READER)


def machine_of(attributes: Attributes) -> Machine | None:
    """Return the machine that a resource is, or None where its attributes name none."""
    for attribute in NAMES:
        name = attributes.get(attribute)
        if isinstance(name, str) and can_be_called(name):
            uid = attributes.get("k8s.node.uid")
            return Machine(name=name, k8s_node_uid=uid if isinstance(uid, str) and can_be_called(uid) else None)
    return None


def _points(resource: ResourceMetrics) -> list[Incoming]:
    return [
        Incoming(
            metric.name,
            metric.unit,
            _texts(point.attributes),
            point.value,
            point.at,
        )
        for metric in resource.metrics
        for point in metric.points
    ]


def _texts(attributes: Attributes) -> dict[str, str]:
    """Return attributes as texts. The conventions have numbers for some that name a part, as `cpu.logical_number`."""
    return {
        name: str(value)
        for name, value in attributes.items()
        if isinstance(value, str | int) and not isinstance(value, bool)
    }
