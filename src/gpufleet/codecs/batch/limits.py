"""What a batch may cost its receiver."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one batch, checked before the memory they guard is taken.

    Attributes:
        body_bytes: of the body as it came.
        message_bytes: of the MessagePack message after decompression.
        items: elements of all lists together (a record beside the samples counts for 16); bounds the memory
            of a decoded batch to about 300 MB. Counted for messages of a megabyte and more.
        machines, views, absences: entries of these lists; `absences` counts sets.
        blocks: sample blocks, and dimension blocks.
        days: different days (UTC) on which its rows and events say that they happened; a store keeps each by itself.
    """

    body_bytes: int = 8 << 20
    message_bytes: int = 64 << 20
    items: int = 4_000_000
    machines: int = 20_000
    views: int = 200_000
    absences: int = 100_000
    blocks: int = 2_000
    days: int = 32
