"""Protobuf classes of OTLP, imported on first use because they take 9 MB."""

from typing import Any, NamedTuple

from gpufleet.model.errors import WireError

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
"""Content types."""


class OtlpMessages(NamedTuple):
    """Protobuf classes of requests and responses."""

    metrics: Any  # ExportMetricsServiceRequest
    logs: Any  # ExportLogsServiceRequest
    metrics_answer: Any
    logs_answer: Any


def messages() -> OtlpMessages:
    """Return the protobuf classes.

    Raises:
        WireError: if opentelemetry-proto is not installed.
    """
    try:
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
    except ImportError as error:
        message = "OTLP needs the package opentelemetry-proto: install gpufleet[agent] or gpufleet[hub]"
        raise WireError("", message) from error
    return OtlpMessages(
        metrics.ExportMetricsServiceRequest,
        logs.ExportLogsServiceRequest,
        metrics.ExportMetricsServiceResponse,
        logs.ExportLogsServiceResponse,
    )


def write(message: Any, content_type: str) -> bytes:
    """Serialize a message. JSON has enumerations as numbers, as OTLP requires."""
    if content_type == JSON:
        from google.protobuf import json_format

        text: str = json_format.MessageToJson(message, indent=None, use_integers_for_enums=True)
        return text.encode()
    body: bytes = message.SerializeToString()
    return body


def parse(kind: Any, body: bytes, content_type: str) -> Any:
    """Parse a message.

    Raises:
        WireError: if it is not a message of this kind, or has another content type.
    """
    if content_type == PROTOBUF:
        from google.protobuf.message import DecodeError

        try:
            return kind.FromString(body)
        except DecodeError as error:
            raise WireError("body", f"not a protobuf message of OTLP: {error}") from None
    if content_type == JSON:
        from google.protobuf import json_format

        try:
            return json_format.Parse(body, kind(), ignore_unknown_fields=True, max_recursion_depth=40)
        except (json_format.Error, ValueError, RecursionError, TypeError, AttributeError) as error:
            # json_format also raises built-in exceptions for JSON with an unexpected structure.
            raise WireError("body", f"not a JSON message of OTLP: {error}") from None
    raise WireError("content-type", f"{content_type!r}: use {PROTOBUF} or {JSON}")
