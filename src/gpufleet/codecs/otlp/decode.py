"""Decoding of OTLP requests from untrusted senders, and of receivers' responses, within limits."""

import base64
from typing import Any

import msgspec

from gpufleet.codecs.otlp.encodings import OtlpLimits
from gpufleet.codecs.otlp.messages import JSON, PROTOBUF, messages, parse
from gpufleet.codecs.otlp.records import (
    Answer,
    Kind,
    LogRecord,
    LogsRequest,
    MetricsRequest,
    OtlpMetric,
    OtlpPoint,
    OtlpProblem,
    ResourceLogs,
    ResourceMetrics,
    Scalar,
)
from gpufleet.model.errors import WireLimitError
from gpufleet.model.text import clean


class AttributesError(Exception):
    """Rejected attributes: too many, too long, or a duplicate."""


def attributes_of(pairs: Any, limits: OtlpLimits, *, of_resource: bool = False) -> dict[str, Scalar]:
    """Return a repeated KeyValue as a mapping. Empty names and values are omitted.

    Attributes of a resource that are too long are omitted, too: a host sends its command line beside its name.

    Raises:
        AttributesError: if there are too many, one is too long, or one is duplicated.
    """
    if len(pairs) > limits.attributes:
        raise AttributesError
    attributes: dict[str, Scalar] = {}
    for pair in pairs:
        name, held = pair.key, pair.value
        value = held.string_value or scalar_of(held)
        if len(name) > limits.name_bytes or (isinstance(value, str) and len(value) > limits.value_bytes):
            if of_resource:
                continue
            raise AttributesError
        name = clean(name)
        if name in attributes:
            raise AttributesError
        if name and value is not None:
            attributes[name] = clean(value) if isinstance(value, str) else value
    return attributes


def scalar_of(held: Any) -> Scalar | None:
    """Return an AnyValue as a scalar; lists, maps and bytes as JSON text; None if empty."""
    which = held.WhichOneof("value")
    if which is None or (which == "string_value" and not held.string_value):
        return None
    if which in ("array_value", "kvlist_value", "bytes_value"):
        return msgspec.json.encode(_plain(held, which)).decode()
    value: Scalar | None = getattr(held, which, None) if which.endswith("_value") else None
    return value


def _plain(held: Any, which: str | None) -> Any:
    """Return an AnyValue as JSON data. Nesting is limited by protobuf."""
    if which == "array_value":
        return [_plain(one, one.WhichOneof("value")) for one in held.array_value.values]
    if which == "kvlist_value":
        return {one.key: _plain(one.value, one.value.WhichOneof("value")) for one in held.kvlist_value.values}
    if which == "bytes_value":
        return base64.b64encode(held.bytes_value).decode()
    return getattr(held, which) if which and which.endswith("_value") else None


_LAST = 2**63 - 1
_CUMULATIVE = 2
_NO_VALUE = 1


def decode_metrics(message: bytes, content_type: str = PROTOBUF, limits: OtlpLimits | None = None) -> MetricsRequest:
    """Decode an ExportMetricsServiceRequest. A bad point loses only itself, a bad resource its points.

    Raises:
        WireLimitError: if it exceeds a limit.
        WireError: if it is not such a message, has another content type, or opentelemetry-proto is not installed.
    """
    reading = _RequestReader(limits or OtlpLimits(), message, content_type)
    resources = []
    for of_resource in parse(messages().metrics, message, content_type).resource_metrics:
        scopes = of_resource.scope_metrics
        try:
            attributes = attributes_of(of_resource.resource.attributes, reading.limits, of_resource=True)
        except AttributesError:
            for metric in (metric for scope in scopes for metric in scope.metrics):
                reading.problem(metric.name, OtlpProblem.ATTRIBUTES, len(_points(metric)[1]))
            continue
        metrics = [
            taken for scope in scopes for metric in scope.metrics if (taken := reading.metric(metric)) is not None
        ]
        resources.append(ResourceMetrics(attributes, metrics, *reading.scope(scopes)))
    return MetricsRequest(resources, reading.problems)


def decode_logs(message: bytes, content_type: str = PROTOBUF, limits: OtlpLimits | None = None) -> LogsRequest:
    """Decode an ExportLogsServiceRequest; raises as `decode_metrics` does."""
    reading = _RequestReader(limits or OtlpLimits(), message, content_type)
    resources = []
    for of_resource in parse(messages().logs, message, content_type).resource_logs:
        scopes = of_resource.scope_logs
        try:
            attributes = attributes_of(of_resource.resource.attributes, reading.limits, of_resource=True)
        except AttributesError:
            for record in (record for scope in scopes for record in scope.log_records):
                reading.problem(record.event_name, OtlpProblem.ATTRIBUTES)
            continue
        records = [taken for scope in scopes for one in scope.log_records if (taken := reading.record(one)) is not None]
        resources.append(ResourceLogs(attributes, records, *reading.scope(scopes)))
    return LogsRequest(resources, reading.problems)


def decode_answer(message: bytes, content_type: str, *, logs: bool = False) -> Answer:
    """Decode the response to an accepted request; raises as `decode_metrics` does."""
    if len(message) > OtlpLimits().value_bytes:
        raise WireLimitError("body", f"{len(message)} bytes, too large for a response")
    kinds = messages()
    partial = parse(kinds.logs_answer if logs else kinds.metrics_answer, message, content_type).partial_success
    rejected = partial.rejected_log_records if logs else partial.rejected_data_points
    return Answer(max(0, rejected), clean(partial.error_message))


class _RequestReader:
    """State of decoding one request."""

    def __init__(self, limits: OtlpLimits, message: bytes, content_type: str) -> None:
        most = min(limits.message_bytes, limits.json_bytes) if content_type == JSON else limits.message_bytes
        if len(message) > most:
            raise WireLimitError("body", f"{len(message)} bytes, more than {most}")
        self.limits = limits
        self.problems: dict[tuple[str, OtlpProblem], int] = {}
        self._count = 0

    def metric(self, metric: Any) -> OtlpMetric | None:
        """Decode a metric, or count the problem of the whole metric."""
        problem, points = _points(metric)
        self._add(max(1, len(points)))
        name = metric.name
        if problem is None and not name.strip():
            problem = OtlpProblem.NO_NAME
        if problem is None and len(name.encode()) > self.limits.name_bytes:
            problem = OtlpProblem.ATTRIBUTES
        if problem is not None:
            self.problem(name, problem, max(1, len(points)))
            return None
        kind = Kind.GAUGE
        if metric.HasField("sum"):
            kind = Kind.COUNTER if metric.sum.is_monotonic else Kind.SUM
        taken = [made for point in points if (made := self._point(name, point)) is not None]
        return OtlpMetric(clean(name), kind, taken, self.text(metric.unit), self.text(metric.description))

    def record(self, record: Any) -> LogRecord | None:
        """Decode a log record, or count its problem."""
        self._add(1)
        at, seen = record.time_unix_nano, record.observed_time_unix_nano
        if at > _LAST or seen > _LAST or not (at or seen):
            self.problem(record.event_name, OtlpProblem.TIMESTAMP)
            return None
        try:
            attributes = attributes_of(record.attributes, self.limits)
        except AttributesError:
            self.problem(record.event_name, OtlpProblem.ATTRIBUTES)
            return None
        body = scalar_of(record.body)
        text = "" if body is None else self.text(str(body))
        return LogRecord(at, seen, record.severity_number, self.text(record.event_name), text, attributes)

    def scope(self, scopes: Any) -> tuple[str, str]:
        """Return name and version of the last scope."""
        return (self.text(scopes[-1].scope.name), self.text(scopes[-1].scope.version)) if scopes else ("", "")

    def text(self, text: str) -> str:
        """Return a text without control characters, truncated to its limit."""
        return clean(text[: self.limits.value_bytes])

    def problem(self, name: str, problem: OtlpProblem, count: int = 1) -> None:
        """Count rejected points or records of a name."""
        if count:
            key = clean(name[: self.limits.name_bytes]), problem
            self.problems[key] = self.problems.get(key, 0) + count

    def _point(self, name: str, point: Any) -> OtlpPoint | None:
        at, start = point.time_unix_nano, point.start_time_unix_nano
        if not 0 < at <= _LAST or start > _LAST:
            self.problem(name, OtlpProblem.TIMESTAMP)
            return None
        which = point.WhichOneof("value")
        value = None
        if not point.flags & _NO_VALUE:
            if which is None:
                self.problem(name, OtlpProblem.NO_VALUE)
                return None
            value = point.as_int if which == "as_int" else point.as_double
        try:
            return OtlpPoint(value, at, start, attributes_of(point.attributes, self.limits))
        except AttributesError:
            self.problem(name, OtlpProblem.ATTRIBUTES)
            return None

    def _add(self, count: int) -> None:
        self._count += count
        if self._count > self.limits.points:
            raise WireLimitError("points", f"more than {self.limits.points}")


def _points(metric: Any) -> tuple[OtlpProblem | None, Any]:
    """Return the problem of a whole metric, and its points."""
    which = metric.WhichOneof("data")
    if which == "gauge":
        return None, metric.gauge.data_points
    if which == "sum":
        delta = metric.sum.aggregation_temporality != _CUMULATIVE
        return (OtlpProblem.DELTA if delta else None), metric.sum.data_points
    if which is None:
        return OtlpProblem.NO_DATA, ()
    return OtlpProblem.HISTOGRAM, getattr(metric, which).data_points
