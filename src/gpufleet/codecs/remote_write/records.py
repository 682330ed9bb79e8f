"""What a remote-write request says, as records.

What a request may cost its receiver.
"""

import enum

import msgspec

from gpufleet.model.stored.samples import Series


class WriteProblem(enum.StrEnum):
    """Why something of a request was not taken."""

    NO_NAME = "no_name"  # a series without a metric's name
    LABEL_TWICE = "label_twice"
    TOO_MANY_LABELS = "too_many_labels"
    LABEL_TOO_LONG = "label_too_long"
    TIMESTAMP = "timestamp"  # no instant of this epoch
    HISTOGRAM = "histogram"  # a native histogram: no GPU metric is one


class WriteRequest(msgspec.Struct):
    """One request, as columns: sample i is `series[i]` with `values[i]` at `times[i]`.

    Attributes:
        series: of each sample.
        values: may be NaN or infinite.
        times: nanoseconds since 1970.
        stale: samples that are stale markers: the source says that the series has ended.
        types: metric to its type, as far as metadata came.
        problems: samples that were not taken, by why (`WriteProblem`).
        other_histograms, other_exemplars: of series of no use to the reader; such histograms are among the samples.
    """

    series: list[Series]
    values: list[float]
    times: list[int]
    stale: list[int]
    types: dict[str, str]
    problems: dict[str, int]
    other_histograms: int = 0
    other_exemplars: int = 0


class WriteLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one request. Passing one of them refuses the request, but for those of labels, which cost their series.

    Attributes:
        body_bytes: as it came.
        message_bytes: after decompression; told by the snappy header, and checked before anything is unpacked.
        samples, series, symbols: of one request.
        labels: of one series; a Kubernetes node with feature discovery has more than a hundred.
        name_bytes, value_bytes: of a label's name and value.
        kept: series that are remembered between requests; further ones are read anew each time.
        others: names of no use to the reader that are remembered between requests; so, too.
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
