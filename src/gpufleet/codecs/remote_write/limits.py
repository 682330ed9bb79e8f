"""What a request may cost its receiver."""

import msgspec


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
