"""The protobuf classes of OTLP, imported when they are used: they take 9 MB."""

from typing import Any, NamedTuple

from gpufleet.model.errors import WireError

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
"""Content types."""


class Messages(NamedTuple):
    """The classes."""

    metrics: Any  # ExportMetricsServiceRequest
    logs: Any  # ExportLogsServiceRequest
    metrics_answer: Any
    logs_answer: Any


def messages() -> Messages:
    """Return the classes.

    Raises:
        WireError: if their package is not installed.
    """
    try:
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
    except ImportError as error:
        words = "OTLP needs the package opentelemetry-proto: install gpufleet[agent] or gpufleet[hub]"
        raise WireError("", words) from error
    return Messages(
        metrics.ExportMetricsServiceRequest,
        logs.ExportLogsServiceRequest,
        metrics.ExportMetricsServiceResponse,
        logs.ExportLogsServiceResponse,
    )


def write(message: Any, content_type: str) -> bytes:
    """Return a message in one of the content types. JSON has enumerations as numbers, as OTLP wants them."""
    if content_type == JSON:
        from google.protobuf import json_format

        text: str = json_format.MessageToJson(message, indent=None, use_integers_for_enums=True)
        return text.encode()
    body: bytes = message.SerializeToString()
    return body


def parse(kind: Any, body: bytes, content_type: str) -> Any:
    """Read a message.

    Raises:
        WireError: if it is not one, or of another content type.
    """
    if content_type == PROTOBUF:
        from google.protobuf.message import DecodeError

        try:
            return kind.FromString(body)
        except DecodeError as error:
            raise WireError("body", f"no protobuf message of OTLP: {error}") from None
    if content_type == JSON:
        from google.protobuf import json_format

        try:
            return json_format.Parse(body, kind(), ignore_unknown_fields=True, max_recursion_depth=40)
        except (json_format.Error, ValueError, RecursionError, TypeError, AttributeError) as error:
            # The library lets some of Python's own errors through for JSON of other shapes.
            raise WireError("body", f"no JSON message of OTLP: {error}") from None
    raise WireError("content-type", f"{content_type!r}: OTLP comes as {PROTOBUF} or {JSON}")
