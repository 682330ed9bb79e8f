"""A request of OTLP metrics as samples of machines. Pure.

A request of OTLP logs as events of machines: those that an agent of ours pushes. Pure.
"""

from collections import Counter
from collections.abc import Iterable

from gpufleet.codecs.otlp.records import (
    Attributes,
    LogRecord,
    LogsRequest,
    MetricsRequest,
    OtlpMetric,
    ResourceMetrics,
    Scalar,
)
from gpufleet.codecs.remote_write.records import WriteRequest
from gpufleet.dialects import otel
from gpufleet.dialects.otel import BY_NAME, is_mine, why_unread
from gpufleet.dialects.otel_names import OWN
from gpufleet.dialects.otel_reading import Incoming, read_points
from gpufleet.hub.imports.remote_write import host_of, is_wanted
from gpufleet.hub.imports.remote_write import read_request as read_series
from gpufleet.hub.imports.request import Written, can_be_called, has_a_name
from gpufleet.model.event import KINDS, Event
from gpufleet.model.holding import Holder
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.stored.samples import Series

READER = "otlp"
"""Name of the reader in samples that came by OTLP."""

NAMES = ("host.name", "k8s.node.name", "host.id")
"""Attributes of a resource that tell its machine, the first that is there."""

INSTANCE = "service.instance.id"
LOOPBACK = ("", "localhost", "127.0.0.1", "::1")


def read_metrics_request(request: MetricsRequest, *, plain_pods: bool = False) -> Written:
    """Return what a request says. Whose machine a resource is, its own attributes tell.

    What a collector scraped of an exporter that is known here is read as the series it was; `plain_pods` is of those,
    see `series.read_request`. What cannot be taken of a metric that no table has (a histogram of requests, say) is as
    unknown as what could be.
    """
    machines: dict[Machine, list[Sample]] = {}
    holders: dict[Machine, dict[tuple[str, int], frozenset[Holder]]] = {}
    drift: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    others: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    count = nameless = 0
    for (name, problem), number in request.problems.items():
        if not name.strip() or name in BY_NAME or is_wanted(name):
            problems[problem.value] += number
        else:
            (drift if is_mine(name) and why_unread(name, {}) is None else others)[name] += number
    for resource in request.resources:
        said = _said_of_targets(resource, plain_pods=plain_pods)
        drift.update(said.drift)
        labels.update(said.labels)
        others.update(said.others)
        nameless += said.nameless
        for named, told in said.machines.items():
            machines.setdefault(named, []).extend(told)
        for named, at_views in said.holders.items():
            holders.setdefault(named, {}).update(at_views)
        points = _points(one for one in resource.metrics if not is_wanted(one.name))
        count += said.samples + len(points)
        machine = machine_of(resource.attributes)
        read = read_points("", points, reader=READER)
        unknown = [point.name for point in points if point.name in read.unknown]
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
        holders=holders,
        labels=labels,
    )


def _said_of_targets(resource: ResourceMetrics, *, plain_pods: bool) -> Written:
    """Read what a collector scraped of exporters: whom it is said of, its points tell, or else its target."""
    points = _points(one for one in resource.metrics if is_wanted(one.name))
    target = _target(resource.attributes) if points else {}
    series = [Series(one.name, {**target, **one.attributes}) for one in points]
    values = [0.0 if one.value is None else float(one.value) for one in points]
    ended = [number for number, one in enumerate(points) if one.value is None]
    told = WriteRequest(series, values, [one.at for one in points], ended, {}, {})
    return read_series(told, READER, plain_pods=plain_pods)


def _target(attributes: Attributes) -> dict[str, str]:
    """Return the labels of the target that a resource is.

    `service.instance.id` is what a Prometheus calls `instance`; `host.name` is the collector's own host, which is the
    target's only where it scraped itself.
    """
    instance, node = attributes.get(INSTANCE), attributes.get("k8s.node.name")
    labels = {"instance": instance} if isinstance(instance, str) else {}
    if isinstance(node, str) and can_be_called(node):
        return {**labels, "node": node}
    machine = machine_of(attributes)
    is_here = host_of(labels.get("instance", "")) in LOOPBACK
    return {**labels, "node": machine.name} if is_here and machine is not None else labels


def machine_of(attributes: Attributes) -> Machine | None:
    """Return the machine that a resource is, or None where its attributes name none.

    In a container `host.name` is often the pod's, which is no machine: then it goes last.
    """
    is_pod = attributes.get("host.name") == attributes.get("k8s.pod.name")
    for attribute in sorted(NAMES, key=lambda one: is_pod and one == "host.name"):
        name = attributes.get(attribute)
        if isinstance(name, str) and can_be_called(name):
            uid = attributes.get("k8s.node.uid")
            return Machine(name=name, k8s_node_uid=uid if isinstance(uid, str) and can_be_called(uid) else None)
    return None


def _points(metrics: Iterable[OtlpMetric]) -> list[Incoming]:
    return [
        Incoming(
            metric.name,
            metric.unit,
            _texts(point.attributes),
            point.value,
            point.at,
        )
        for metric in metrics
        for point in metric.points
    ]


def _texts(attributes: Attributes) -> dict[str, str]:
    """Return attributes as texts. The conventions have numbers for some that name a part, as `cpu.logical_number`."""
    return {
        name: str(value)
        for name, value in attributes.items()
        if isinstance(value, str | int) and not isinstance(value, bool)
    }


OF_THE_DEVICE = {otel.KIND, otel.SIDE, otel.PCI, otel.STATE, f"{OWN}code"}
"""Attributes under our own prefix that are no text of the event."""

UNNAMED = "log_record"
"""What records are counted as that do not tell what kind of event they are."""

MAX_TEXT = 1024
MAX_ATTRIBUTES = 64
MAX_DIGITS = 10


def read_logs_request(request: LogsRequest) -> Written:
    """Return the events of a request. Records that are none of our events are not the hub's business."""
    machines: dict[Machine, list[Event]] = {}
    others: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    count = nameless = 0
    for (name, problem), number in request.problems.items():
        if name.startswith(OWN):
            problems[problem.value] += number
        else:
            others[name or UNNAMED] += number
    for resource in request.resources:
        count += len(resource.records)
        machine = machine_of(resource.attributes)
        read = [(record, event_of(record)) for record in resource.records]
        found = [event for _, event in read if event is not None]
        others.update(record.event or UNNAMED for record, event in read if event is None)
        if machine is None:
            nameless += len(found)
        elif found:
            machines.setdefault(machine, []).extend(found)
    return Written(
        machines={},
        events={machine: tuple(found) for machine, found in machines.items()},
        samples=count + sum(request.problems.values()),
        drift={},
        others=others,
        nameless=nameless,
        problems=problems,
    )


def event_of(record: LogRecord) -> Event | None:
    """Return the event that a record is, or None if it is none of ours."""
    kind = record.event.removeprefix(OWN)
    at = record.at or record.observed_at
    if not record.event.startswith(OWN) or kind not in KINDS or at < 1:
        return None
    texts = {name: value for name, value in record.attributes.items() if isinstance(value, str)}
    own = {name.removeprefix(OWN): value[:MAX_TEXT] for name, value in texts.items() if name.startswith(OWN)}
    known = {name.removeprefix(OWN) for name in OF_THE_DEVICE}
    kept = sorted((name, value) for name, value in own.items() if name not in known)[:MAX_ATTRIBUTES]
    return Event(
        view=otel.view_of(texts),
        kind=kind,
        code=_code(record.attributes.get(f"{OWN}code", 0)),
        at=at,
        attributes=dict(kept),
    )


def _code(told: Scalar) -> int:
    """Return a number of 31 bits, or 0. What brings logs here may have made a text of it."""
    if isinstance(told, str):
        told = int(told) if told.isascii() and told.isdigit() and len(told) <= MAX_DIGITS else 0
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 <= told < 1 << 31 else 0
