"""What a page of metrics says, as records.

What a page may cost its reader.
"""

import enum

import msgspec

from gpufleet.model.stored.samples import Series


class Problem(enum.StrEnum):
    """Why a line was not taken."""

    SYNTAX = "syntax"  # it is no sample and no comment
    NAME = "name"  # a metric's or label's name that the format does not allow, or none
    VALUE = "value"  # no number, or one that no 64-bit float holds
    TIMESTAMP = "timestamp"  # no instant of this epoch
    LINE_TOO_LONG = "line_too_long"
    TOO_MANY_LABELS = "too_many_labels"
    LABEL_TOO_LONG = "label_too_long"
    LABEL_TWICE = "label_twice"  # one label name twice in one series
    SERIES_TWICE = "series_twice"  # one series twice in one page: the first counts
    TYPE_TWICE = "type_twice"  # a second TYPE of one metric: the first counts
    TOO_MANY_FAMILIES = "too_many_families"


class Family(msgspec.Struct):
    """What the comments say of one metric.

    Attributes:
        type: `gauge`, `counter`, `histogram`, `summary`, `info`, `stateset`, `unknown`, ... as it was written.
        help: text for people.
        unit: as OpenMetrics has it, or empty.
    """

    type: str = ""
    help: str = ""
    unit: str = ""


class Page(msgspec.Struct):
    """One page, as columns: sample i is `series[i]` with `values[i]`.

    Attributes:
        series: of each sample.
        values: an int where an integer was written (byte counters pass 2**53), else a float; may be NaN or infinite.
        times: sample to its own instant in nanoseconds since 1970, for those that were written with one.
        families: metric to what its comments say.
        problems: lines that were not taken, by why.
        examples: the first lines that were not taken, cut short, with control characters escaped.
        complete: whether the page ended as its format wants it (OpenMetrics: `# EOF`; text: always).
    """

    series: list[Series]
    values: list[int | float]
    times: dict[int, int]
    families: dict[str, Family]
    problems: dict[Problem, int]
    examples: list[tuple[Problem, str]]
    complete: bool = True


class TextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one page. What passes a bound of the page ends it; what passes one of a line costs that line.

    Attributes:
        page_bytes: of the page as text, after decompression.
        line_bytes: of one line.
        labels: of one series; a Kubernetes node with feature discovery has more than a hundred.
        name_bytes: of a metric's or label's name.
        value_bytes: of one label's value, as it came. A longer one costs its line: cut short, it could
            become somebody else's identity.
        series: different series of one page.
        families: different metrics with a TYPE, HELP or UNIT of one page.
        kept: series that the cache keeps between pages; beyond it the cache starts anew.
    """

    page_bytes: int = 64 << 20
    line_bytes: int = 64 << 10
    labels: int = 256
    name_bytes: int = 256
    value_bytes: int = 4 << 10
    series: int = 500_000
    families: int = 10_000
    kept: int = 500_000
