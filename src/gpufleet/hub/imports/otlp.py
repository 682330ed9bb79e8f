"""Conversion of OTLP metrics to samples of machines, and of OTLP logs of gpufleet agents to events. Pure."""

from collections import Counter
from collections.abc import Iterable

import msgspec

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
from gpufleet.dialects.otel import BY_NAME, is_own_name, why_unread
from gpufleet.dialects.otel_holders import is_guest_resource
from gpufleet.dialects.otel_names import OWN
from gpufleet.dialects.otel_reading import IncomingPoint, read_points
from gpufleet.hub.imports.remote_write import host_of, is_known_metric
from gpufleet.hub.imports.remote_write import read_request as read_series
from gpufleet.hub.imports.request import ImportedRequest, has_valid_names, is_valid_name
from gpufleet.model.event import EVENT_KINDS, Event
from gpufleet.model.holdings import Holder
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample
from gpufleet.model.stored.samples import ImportedSeries

READER = "otlp"
"""Reader of samples received by OTLP."""

MACHINE_ATTRIBUTES = ("host.name", "k8s.node.name", "host.id")
"""Resource attributes that identify the machine, in order of preference."""

INSTANCE = "service.instance.id"
LOOPBACK = ("", "localhost", "127.0.0.1", "::1")


def read_metrics_request(request: MetricsRequest, *, plain_pods: bool = False) -> ImportedRequest:
    """Return the samples and holders of a request by machine; the machine comes from the resource's attributes.

    Metrics that a collector scraped from a known exporter are read as the exporter's series. Points of unknown metrics
    that cannot be used anyway (such as a histogram of request times) count as unknown, not as problems. Points of
    virtual machines that the agent of their host exports are unattributed, as on a page.

    Args:
        request: as decoded.
        plain_pods: for scraped series, see `remote_write.read_request`.
    """
    machines: dict[Machine, list[Sample]] = {}
    holders: dict[Machine, dict[tuple[str, int], frozenset[Holder]]] = {}
    drift: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    others: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    count = unattributed = 0
    for (name, problem), number in request.problems.items():
        if not name.strip() or name in BY_NAME or is_known_metric(name):
            problems[problem.value] += number
        else:
            (drift if is_own_name(name) and why_unread(name, {}) is None else others)[name] += number
    for resource in request.resources:
        scraped = _read_scraped(resource, plain_pods=plain_pods)
        drift.update(scraped.drift)
        labels.update(scraped.labels)
        others.update(scraped.others)
        unattributed += scraped.unattributed
        for named, found in scraped.machines.items():
            machines.setdefault(named, []).extend(found)
        for named, at_views in scraped.holders.items():
            holders.setdefault(named, {}).update(at_views)
        points = _points(one for one in resource.metrics if not is_known_metric(one.name))
        count += scraped.samples + len(points)
        machine = machine_of(resource.attributes)
        read = read_points("", points, reader=READER)
        unknown = [point.name for point in points if point.name in read.unknown]
        drift.update(name for name in unknown if is_own_name(name))
        others.update(name for name in unknown if not is_own_name(name))
        unattributed += read.unattributed
        samples = [one for found in read.machines.values() for one in found if has_valid_names(one)]
        if samples and machine is None:
            unattributed += len(points) - len(unknown) - read.unattributed
        elif samples and machine is not None:
            machines.setdefault(machine, []).extend(samples)
    return ImportedRequest(
        machines={machine: tuple(samples) for machine, samples in machines.items()},
        samples=count + sum(request.problems.values()),
        drift=drift,
        others=others,
        unattributed=unattributed,
        problems=problems,
        holders=holders,
        labels=labels,
    )


def _read_scraped(resource: ResourceMetrics, *, plain_pods: bool) -> ImportedRequest:
    """Read series that a collector scraped from exporters; their own labels, else the target's, name the machine."""
    points = _points(one for one in resource.metrics if is_known_metric(one.name))
    target = _target_labels(resource.attributes) if points else {}
    series = [ImportedSeries(one.name, {**target, **one.attributes}) for one in points]
    values = [0.0 if one.value is None else float(one.value) for one in points]
    ended = [number for number, one in enumerate(points) if one.value is None]
    request = WriteRequest(series, values, [one.at for one in points], ended, {}, {})
    read = read_series(request, READER, plain_pods=plain_pods)
    if not is_guest_resource(resource.attributes):
        return read
    return msgspec.structs.replace(read, machines={}, holders={}, unattributed=read.unattributed + read.accepted)


def _target_labels(attributes: Attributes) -> dict[str, str]:
    """Return the Prometheus target labels of a resource.

    `service.instance.id` corresponds to `instance`. `host.name` is the collector's host, which is the target's only if
    the collector scraped a loopback address.
    """
    instance, node = attributes.get(INSTANCE), attributes.get("k8s.node.name")
    labels = {"instance": instance} if isinstance(instance, str) else {}
    if isinstance(node, str) and is_valid_name(node):
        return {**labels, "node": node}
    machine = machine_of(attributes)
    is_here = host_of(labels.get("instance", "")) in LOOPBACK
    return {**labels, "node": machine.name} if is_here and machine is not None else labels


def machine_of(attributes: Attributes) -> Machine | None:
    """Return the machine of a resource, or None if its attributes name none, or a virtual machine on its host.

    In a container `host.name` is often the name of the pod, not of a machine; then it is used last. The UID of a
    Kubernetes node is not used: an import has no evidence but the name (`fleet.identity`).
    """
    if is_guest_resource(attributes):
        return None
    is_pod = attributes.get("host.name") == attributes.get("k8s.pod.name")
    for attribute in sorted(MACHINE_ATTRIBUTES, key=lambda one: is_pod and one == "host.name"):
        name = attributes.get(attribute)
        if isinstance(name, str) and is_valid_name(name):
            return Machine(name=name)
    return None


def _points(metrics: Iterable[OtlpMetric]) -> list[IncomingPoint]:
    return [
        IncomingPoint(
            metric.name,
            metric.unit,
            _text_attributes(point.attributes),
            point.value,
            point.at,
        )
        for metric in metrics
        for point in metric.points
    ]


def _text_attributes(attributes: Attributes) -> dict[str, str]:
    """Return attributes as texts, including integers, which some conventions use as names (`cpu.logical_number`)."""
    return {
        name: str(value)
        for name, value in attributes.items()
        if isinstance(value, str | int) and not isinstance(value, bool)
    }


DEVICE_ATTRIBUTES = {otel.KIND, otel.SIDE, otel.PCI, otel.STATE, f"{OWN}code"}
"""Attributes with gpufleet's prefix that describe the device or code, and are not attributes of the event."""

UNNAMED_RECORD = "log_record"
"""Name under which records without an event name are counted."""

MAX_TEXT = 1024
MAX_ATTRIBUTES = 64
MAX_DIGITS = 10


def read_logs_request(request: LogsRequest) -> ImportedRequest:
    """Return the events of a request by machine; records that are not gpufleet events are counted as `others`."""
    machines: dict[Machine, list[Event]] = {}
    others: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    count = unattributed = 0
    for (name, problem), number in request.problems.items():
        if name.startswith(OWN):
            problems[problem.value] += number
        else:
            others[name or UNNAMED_RECORD] += number
    for resource in request.resources:
        count += len(resource.records)
        machine = machine_of(resource.attributes)
        read = [(record, event_of(record)) for record in resource.records]
        found = [event for _, event in read if event is not None]
        others.update(record.event or UNNAMED_RECORD for record, event in read if event is None)
        if machine is None:
            unattributed += len(found)
        elif found:
            machines.setdefault(machine, []).extend(found)
    return ImportedRequest(
        machines={},
        events={machine: tuple(found) for machine, found in machines.items()},
        samples=count + sum(request.problems.values()),
        drift={},
        others=others,
        unattributed=unattributed,
        problems=problems,
    )


def event_of(record: LogRecord) -> Event | None:
    """Return the event of a log record, or None if it is not a gpufleet event."""
    kind = record.event.removeprefix(OWN)
    at = record.at or record.observed_at
    if not record.event.startswith(OWN) or kind not in EVENT_KINDS or at < 1:
        return None
    texts = {name: value for name, value in record.attributes.items() if isinstance(value, str)}
    own = {name.removeprefix(OWN): value[:MAX_TEXT] for name, value in texts.items() if name.startswith(OWN)}
    known = {name.removeprefix(OWN) for name in DEVICE_ATTRIBUTES}
    kept = sorted((name, value) for name, value in own.items() if name not in known)[:MAX_ATTRIBUTES]
    return Event(
        view=otel.view_of(texts),
        kind=kind,
        code=_code(record.attributes.get(f"{OWN}code", 0)),
        at=at,
        attributes=dict(kept),
    )


def _code(value: Scalar) -> int:
    """Return an event code of 31 bits, or 0. A log pipeline may have converted the number to text."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) <= MAX_DIGITS else 0
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else 0
