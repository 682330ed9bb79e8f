"""Encoding of OTLP requests and responses."""

from collections.abc import Iterable
from typing import Any

import msgspec

from gpufleet.codecs.otlp.messages import JSON, PROTOBUF, messages, write
from gpufleet.codecs.otlp.records import Answer, Attributes, Kind, OtlpMetric, ResourceLogs, ResourceMetrics
from gpufleet.codecs.protobuf import write_bytes, write_varint

_CUMULATIVE = 2
_NO_VALUE = 1


def encode_metrics(resources: Iterable[ResourceMetrics], content_type: str = PROTOBUF) -> bytes:
    """Return an ExportMetricsServiceRequest.

    Raises:
        WireError: if opentelemetry-proto is not installed.
    """
    request = messages().metrics()
    for resource in resources:
        of_resource = request.resource_metrics.add()
        _set(of_resource.resource.attributes, resource.attributes)
        scope = of_resource.scope_metrics.add()
        scope.scope.name, scope.scope.version = resource.scope, resource.version
        for metric in resource.metrics:
            _metric(scope.metrics.add(), metric)
    return write(request, content_type)


def encode_logs(resources: Iterable[ResourceLogs], content_type: str = PROTOBUF) -> bytes:
    """Return an ExportLogsServiceRequest; raises as `encode_metrics` does."""
    request = messages().logs()
    for resource in resources:
        of_resource = request.resource_logs.add()
        _set(of_resource.resource.attributes, resource.attributes)
        scope = of_resource.scope_logs.add()
        scope.scope.name, scope.scope.version = resource.scope, resource.version
        for record in resource.records:
            entry = scope.log_records.add(
                time_unix_nano=record.at,
                observed_time_unix_nano=record.observed_at,
                severity_number=record.severity,
                event_name=record.event,
            )
            if record.body:
                entry.body.string_value = record.body
            _set(entry.attributes, record.attributes)
    return write(request, content_type)


def encode_answer(answer: Answer, content_type: str, *, logs: bool = False) -> bytes:
    """Return an ExportMetricsServiceResponse or ExportLogsServiceResponse; raises as `encode_metrics` does.

    An empty response means that everything was accepted.
    """
    kinds = messages()
    response = (kinds.logs_answer if logs else kinds.metrics_answer)()
    if answer.rejected or answer.detail:
        partial = response.partial_success
        partial.error_message = answer.detail
        if logs:
            partial.rejected_log_records = answer.rejected
        else:
            partial.rejected_data_points = answer.rejected
    return write(response, content_type)


def encode_status(code: int, message: str, content_type: str = PROTOBUF) -> bytes:
    """Return a google.rpc.Status, the body of a response that rejects a request.

    Args:
        code: gRPC: 3 invalid argument, 7 permission denied, 8 resource exhausted, 14 unavailable, 16 no credentials.
        message: cause.
        content_type: content type of the request: `JSON`, or else protobuf.
    """
    if content_type == JSON:
        return msgspec.json.encode({"code": code, "message": message})
    return b"\x08" + write_varint(code) + write_bytes(0x12, message.encode())


def _metric(message: Any, metric: OtlpMetric) -> None:
    message.name, message.unit, message.description = metric.name, metric.unit, metric.description
    if metric.kind is Kind.GAUGE:
        points = message.gauge.data_points
    else:
        message.sum.aggregation_temporality = _CUMULATIVE
        message.sum.is_monotonic = metric.kind is Kind.COUNTER
        points = message.sum.data_points
    for point in metric.points:
        value = point.value
        if value is None:
            made = points.add(time_unix_nano=point.at, start_time_unix_nano=point.start, flags=_NO_VALUE)
        elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            made = points.add(time_unix_nano=point.at, start_time_unix_nano=point.start, as_int=value)
        else:
            made = points.add(time_unix_nano=point.at, start_time_unix_nano=point.start, as_double=float(value))
        _set(made.attributes, point.attributes)


def _set(pairs: Any, attributes: Attributes) -> None:
    for name, value in attributes.items():
        held = pairs.add(key=name).value
        if isinstance(value, str):
            # A text that cannot be encoded (a lone surrogate from a file name) must not fail the request.
            held.string_value = value if value.isascii() else value.encode("utf-8", "replace").decode()
        elif isinstance(value, bool):
            held.bool_value = value
        elif isinstance(value, int):
            held.int_value = value
        else:
            held.double_value = value
