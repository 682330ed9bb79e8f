"""What OTLP requests say, as records."""

import enum
from collections.abc import Mapping

import msgspec

Scalar = str | bool | int | float
"""An attribute's value. What else OTLP allows (lists, maps, bytes) is read as a text of JSON."""

Attributes = Mapping[str, Scalar]


class Kind(enum.StrEnum):
    """How a metric behaves over time."""

    GAUGE = "gauge"
    COUNTER = "counter"  # a cumulative sum that only grows
    SUM = "sum"  # a cumulative sum that can shrink, such as bytes in use


class OtlpProblem(enum.StrEnum):
    """Why a point or record was not taken."""

    NO_NAME = "no_name"  # a metric without a name
    NO_VALUE = "no_value"  # a point without a number
    NO_DATA = "no_data"  # a metric without data, or of a kind that is newer than this build
    TIMESTAMP = "timestamp"  # no instant of this epoch
    DELTA = "delta"  # a sum of differences: what was missed before it is unknown, so it makes no counter
    HISTOGRAM = "histogram"  # or a summary: no GPU metric is one
    ATTRIBUTES = "attributes"  # too many, too long, or one of them twice


class Point(msgspec.Struct, frozen=True, gc=False):
    """One number at an instant.

    Attributes:
        value: integers stay integers; may be NaN or infinite. None says that there is no value now (the flag "no
            recorded value").
        at: nanoseconds since 1970 when it was measured.
        start: nanoseconds since 1970 when a sum began, or 0 where that is not known.
        attributes: what it is about, beside the resource.
    """

    value: int | float | None
    at: int
    start: int = 0
    attributes: Attributes = {}


class OtlpMetric(msgspec.Struct, frozen=True):
    """One metric and its points.

    Attributes:
        name, unit, description: as OpenTelemetry words them; `unit` is a code of UCUM (`By`, `W`, `Cel`, `1`).
        kind: how it behaves.
        points: in order of time for each set of attributes.
    """

    name: str
    kind: Kind
    points: list[Point]
    unit: str = ""
    description: str = ""


class ResourceMetrics(msgspec.Struct, frozen=True):
    """Metrics of one resource, such as a host.

    Attributes:
        attributes: who it is.
        metrics: all scopes' together.
        scope, version: who made them; of a request that is read, the last scope's.
    """

    attributes: Attributes
    metrics: list[OtlpMetric]
    scope: str = ""
    version: str = ""


class LogRecord(msgspec.Struct, frozen=True):
    """One log record.

    Attributes:
        at: nanoseconds since 1970 when it happened, or 0 where that is not known.
        observed_at: when it was seen.
        severity: OTLP's number: 5 debug, 9 info, 13 warning, 17 error, 21 fatal; 0 for none.
        event: name of the kind of event, or empty.
        body: the text.
        attributes: what more there is to say.
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
    """What an export of metrics brings.

    Attributes:
        resources: each with its metrics.
        problems: points that were not taken, by the name of their metric and why.
    """

    resources: list[ResourceMetrics]
    problems: dict[tuple[str, OtlpProblem], int] = {}


class LogsRequest(msgspec.Struct, frozen=True):
    """What an export of logs brings; fields as in `MetricsRequest`, with the names of kinds of events."""

    resources: list[ResourceLogs]
    problems: dict[tuple[str, OtlpProblem], int] = {}


class Answer(msgspec.Struct, frozen=True):
    """What a receiver says of a request that it took.

    Attributes:
        rejected: points or records that it did not take; they are not to be sent again.
        words: why, or a warning where none was rejected.
    """

    rejected: int = 0
    words: str = ""
