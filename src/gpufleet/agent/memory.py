"""Batches that the disk will not keep, in memory: a bounded number, the oldest lost first."""

import secrets
from collections import deque
from collections.abc import Callable

MEMORY_BYTES = 8 << 20
"""Of bodies; the newest is kept even if it alone has more."""


class Memory:
    """A queue in memory, with an epoch and numbers of its own.

    It cannot count on in the spool's numbers: a process killed while the disk refuses would give them out again, and
    a hub takes a number it has for a repetition. In an epoch of its own each number is given once, so what was lost
    is exactly what is missing of it.

    Attributes:
        epoch: 32 hexadecimal digits, random, of this process.
        lost: batches that gave way to newer ones.
    """

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        """Take the bound."""
        self.epoch = secrets.token_hex(16)
        self.lost = 0
        self.bytes = 0
        self._max_bytes = max_bytes
        self._next_seq = 1
        self._waiting: deque[tuple[int, bytes]] = deque()

    @property
    def records(self) -> int:
        """Batches that wait."""
        return len(self._waiting)

    def put(self, make: Callable[[str, int], bytes]) -> None:
        """Keep the body that `make(epoch, seq)` returns; a number for which it raises is given again."""
        body = make(self.epoch, self._next_seq)
        self._waiting.append((self._next_seq, body))
        self._next_seq += 1
        self.bytes += len(body)
        while self.bytes > self._max_bytes and len(self._waiting) > 1:
            self.bytes -= len(self._waiting.popleft()[1])
            self.lost += 1

    def renew(self, make: Callable[[bytes, str, int], bytes | None]) -> None:
        """Take another epoch, in which what waits is numbered anew by `make(body, epoch, seq)`; None leaves it out."""
        waiting, self._waiting = self._waiting, deque()
        self.epoch = secrets.token_hex(16)
        self._next_seq, self.bytes = 1, 0
        for _, body in waiting:
            made = make(body, self.epoch, self._next_seq)
            if made is not None:
                self._waiting.append((self._next_seq, made))
                self._next_seq += 1
                self.bytes += len(made)

    def newest(self) -> tuple[int, bytes] | None:
        """Return the newest that waits."""
        return self._waiting[-1] if self._waiting else None

    def oldest(self) -> tuple[int, bytes] | None:
        """Return the oldest that waits."""
        return self._waiting[0] if self._waiting else None

    def acknowledge(self, seq: int) -> None:
        """Forget one; a number that does not wait is passed over."""
        for place, (number, body) in enumerate(self._waiting):
            if number == seq:
                self.bytes -= len(body)
                del self._waiting[place]
                return
