"""Records of a page of metrics, and the limits of a page."""

import enum

import msgspec

from gpufleet.model.stored.samples import ImportedSeries


class LineProblem(enum.StrEnum):
    """Reason for rejecting a line."""

    SYNTAX = "syntax"  # neither a sample nor a comment
    NAME = "name"  # an invalid or missing metric or label name
    VALUE = "value"  # not a number, or beyond a 64-bit float
    TIMESTAMP = "timestamp"  # not a timestamp, or out of range
    LINE_TOO_LONG = "line_too_long"
    TOO_MANY_LABELS = "too_many_labels"
    LABEL_TOO_LONG = "label_too_long"
    LABEL_TWICE = "label_twice"  # duplicate label name
    SERIES_TWICE = "series_twice"  # duplicate series in a page: the first counts
    TYPE_TWICE = "type_twice"  # duplicate TYPE of a metric: the first counts
    TOO_MANY_FAMILIES = "too_many_families"


class TextFamily(msgspec.Struct):
    """Metadata of a metric from comments.

    Attributes:
        type: `gauge`, `counter`, `histogram`, `summary`, `info`, `stateset`, `unknown`, ... as written.
        help: help text.
        unit: unit as in OpenMetrics, or empty.
    """

    type: str = ""
    help: str = ""
    unit: str = ""


class TextPage(msgspec.Struct):
    """Page as columns: sample i is `series[i]` with `values[i]`.

    Attributes:
        series: series of each sample.
        values: int if written as an integer (byte counters pass 2**53), else float; may be NaN or infinite.
        times: sample to its own instant in nanoseconds since 1970, for samples with a timestamp.
        families: metric to metadata.
        problems: number of rejected lines by reason.
        examples: first rejected lines, truncated, with control characters escaped.
        complete: whether the page ended as the format requires (OpenMetrics: `# EOF`; text: always).
    """

    series: list[ImportedSeries]
    values: list[int | float]
    times: dict[int, int]
    families: dict[str, TextFamily]
    problems: dict[LineProblem, int]
    examples: list[tuple[LineProblem, str]]
    complete: bool = True


class TextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one page. A page over a page limit is rejected; a line over a line limit loses only that line.

    Attributes:
        page_bytes: size of the page after decompression.
        line_bytes: size of a line.
        labels: labels per series; a Kubernetes node with feature discovery has more than a hundred.
        name_bytes: size of a metric or label name.
        value_bytes: size of a label value as received. A line with a longer value is rejected: truncated, the value
            could become the identity of another device.
        series: distinct series per page.
        families: distinct metrics with TYPE, HELP or UNIT per page.
        kept: series cached between pages; the cache is cleared when it is larger.
    """

    page_bytes: int = 64 << 20
    line_bytes: int = 64 << 10
    labels: int = 256
    name_bytes: int = 256
    value_bytes: int = 4 << 10
    series: int = 500_000
    families: int = 10_000
    kept: int = 500_000
