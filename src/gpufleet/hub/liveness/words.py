"""The newest words of a cluster's senders as rows of numbers: what is counted of 125,000 is counted all at once."""

import struct
from typing import Any

import numpy as np

Column = np.ndarray[Any, np.dtype[Any]]

_ROW = struct.Struct("<ddddqq??6x")

_TYPE = np.dtype(
    [
        ("spoke_at", "<f8"),  # the second of listening at which the word was made
        ("late", "<f8"),  # after how many seconds of silence it is so
        ("stale", "<f8"),
        ("ahead", "<f8"),  # seconds that the sender's clock is ahead
        ("received_at", "<i8"),  # nanoseconds since 1970
        ("sent_at", "<i8"),
        ("is_plain", "?"),  # but for its silence and its clock there is nothing to be said of it
        ("since_start", "?"),  # whether it has spoken since the start
        ("", "V6"),
    ]
)


class Words:
    """A row a sender, in the order in which they came. Written on the event loop, read from any thread."""

    def __init__(self) -> None:
        self._rows = bytearray()

    def put(
        self,
        place: int,
        *,
        spoke_at: float,
        late: float,
        stale: float,
        ahead: float,
        received_at: int,
        sent_at: int,
        is_plain: bool,
        since_start: bool,
    ) -> None:
        """Put a sender's row in its place; that of a new one is after all others."""
        if place * _ROW.size == len(self._rows):
            self._rows.extend(bytes(_ROW.size))
        _ROW.pack_into(
            self._rows, place * _ROW.size, spoke_at, late, stale, ahead, received_at, sent_at, is_plain, since_start
        )

    def rows(self) -> Column:
        """Return the rows as they are now, with the names of `_TYPE`."""
        # No other thread runs while a row is written, or all of them are copied: none is seen half written.
        return np.frombuffer(bytes(self._rows), _TYPE)
