"""Records of a remote-write request, and the limits of a request."""

import enum

import msgspec

from gpufleet.model.stored.samples import ImportedSeries


class WriteProblem(enum.StrEnum):
    """Reason for rejecting a part of a request."""

    NO_NAME = "no_name"  # a series without a metric's name
    LABEL_TWICE = "label_twice"
    TOO_MANY_LABELS = "too_many_labels"
    LABEL_TOO_LONG = "label_too_long"
    TIMESTAMP = "timestamp"  # 0, or out of range
    HISTOGRAM = "histogram"  # a native histogram: no GPU metric is one


class WriteRequest(msgspec.Struct):
    """Request as columns: sample i is `series[i]` with `values[i]` at `times[i]`.

    Attributes:
        series: series of each sample.
        values: may be NaN or infinite.
        times: nanoseconds since 1970.
        stale: indices of stale markers: the series has ended.
        types: metric to type, from metadata.
        problems: number of rejected samples by `WriteProblem`.
        other_histograms, other_exemplars: number in unwanted series; such histograms are among the samples.
    """

    series: list[ImportedSeries]
    values: list[float]
    times: list[int]
    stale: list[int]
    types: dict[str, str]
    problems: dict[str, int]
    other_histograms: int = 0
    other_exemplars: int = 0


class WriteLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request. A request over a limit is rejected; label limits only reject the series.

    Attributes:
        body_bytes: size of the body as received.
        message_bytes: size after decompression, from the snappy header; checked before decompression.
        samples, series, symbols: number per request.
        labels: number per series; a Kubernetes node with feature discovery has more than a hundred.
        name_bytes, value_bytes: size of a label name and value.
        kept: series cached between requests; others are parsed on every request.
        others: unwanted names cached between requests.
    """

    body_bytes: int = 16 << 20
    message_bytes: int = 64 << 20
    samples: int = 250_000
    series: int = 100_000
    symbols: int = 1_000_000
    labels: int = 256
    name_bytes: int = 256
    value_bytes: int = 4 << 10
    kept: int = 500_000
    others: int = 20_000
