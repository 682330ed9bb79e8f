"""What a remote-write request says, as records."""

import enum

import msgspec

from gpufleet.model.series import Series


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
