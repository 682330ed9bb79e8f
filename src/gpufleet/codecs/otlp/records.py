"""Records of OTLP requests and responses."""

import enum
from collections.abc import Mapping

import msgspec

Scalar = str | bool | int | float
"""Value of an attribute. Other OTLP values (lists, maps, bytes) are decoded as JSON text."""

Attributes = Mapping[str, Scalar]


class Kind(enum.StrEnum):
    """Behaviour of a metric over time."""

    GAUGE = "gauge"
    COUNTER = "counter"  # a cumulative sum that only grows
    SUM = "sum"  # a cumulative sum that can shrink, such as bytes in use


class OtlpProblem(enum.StrEnum):
    """Reason for rejecting a point or record."""

    NO_NAME = "no_name"  # a metric without a name
    NO_VALUE = "no_value"  # a point without a number
    NO_DATA = "no_data"  # a metric without data, or with data of a kind that is newer than this build
    TIMESTAMP = "timestamp"  # 0, or out of range
    DELTA = "delta"  # a delta sum: the total before it is unknown, so it cannot become a counter
    HISTOGRAM = "histogram"  # or a summary: no GPU metric is one
    ATTRIBUTES = "attributes"  # too many, too long, or a duplicate


class OtlpPoint(msgspec.Struct, frozen=True, gc=False):
    """Data point: one number at an instant.

    Attributes:
        value: integers stay integers; may be NaN or infinite. None means no value now (flag "no recorded value").
        at: time of measurement, nanoseconds since 1970.
        start: start of a sum, nanoseconds since 1970, or 0 if unknown.
        attributes: attributes beside those of the resource.
    """

    value: int | float | None
    at: int
    start: int = 0
    attributes: Attributes = {}


class OtlpMetric(msgspec.Struct, frozen=True):
    """Metric and its points.

    Attributes:
        name, unit, description: as in OpenTelemetry; `unit` is a UCUM code (`By`, `W`, `Cel`, `1`).
        kind: behaviour over time.
        points: in order of time per set of attributes.
    """

    name: str
    kind: Kind
    points: list[OtlpPoint]
    unit: str = ""
    description: str = ""


class ResourceMetrics(msgspec.Struct, frozen=True):
    """Metrics of one resource, such as a host.

    Attributes:
        attributes: identity of the resource.
        metrics: metrics of all scopes.
        scope, version: instrumentation scope; in a decoded request, the last one.
    """

    attributes: Attributes
    metrics: list[OtlpMetric]
    scope: str = ""
    version: str = ""


class LogRecord(msgspec.Struct, frozen=True):
    """Log record.

    Attributes:
        at: time of the event, nanoseconds since 1970, or 0 if unknown.
        observed_at: time of observation.
        severity: OTLP severity number: 5 debug, 9 info, 13 warning, 17 error, 21 fatal; 0 for none.
        event: event name, or empty.
        body: text.
        attributes: further attributes.
    """

    at: int
    observed_at: int
    severity: int = 0
    event: str = ""
    body: str = ""
    attributes: Attributes = {}


class ResourceLogs(msgspec.Struct, frozen=True):
    """Log records of one resource; fields as in `ResourceMetrics`."""

    attributes: Attributes
    records: list[LogRecord]
    scope: str = ""
    version: str = ""


class MetricsRequest(msgspec.Struct, frozen=True):
    """Decoded export of metrics.

    Attributes:
        resources: each with its metrics.
        problems: number of rejected points by metric name and problem.
    """

    resources: list[ResourceMetrics]
    problems: dict[tuple[str, OtlpProblem], int] = {}


class LogsRequest(msgspec.Struct, frozen=True):
    """Decoded export of logs; fields as in `MetricsRequest`, with event names."""

    resources: list[ResourceLogs]
    problems: dict[tuple[str, OtlpProblem], int] = {}


class Answer(msgspec.Struct, frozen=True):
    """Response to an accepted request.

    Attributes:
        rejected: number of rejected points or records; they must not be sent again.
        detail: cause, or a warning if none was rejected.
    """

    rejected: int = 0
    detail: str = ""
