"""What a page may cost its reader."""

import msgspec


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
