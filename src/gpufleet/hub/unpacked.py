"""Batches as they were unpacked when they were taken, until they are written: few are unpacked twice."""

import threading

from gpufleet.hub.packing import pack
from gpufleet.model.wire import WireBatch

MOST_BYTES = 48 << 20
"""Of messages, unpacked: a second of a million GPUs that are told of every 15 s. In memory a batch whose numbers are in
one piece is half as large again, another one three times as large."""


class Unpacked:
    """Batches by their number in the log. May be used from several threads.

    It is no place to rely on: what it has no room for is unpacked from the log, as is what waited there.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: dict[int, tuple[WireBatch, int, int]] = {}
        self._lock = threading.Lock()

    def keep(self, number: int, batch: WireBatch, digest: int, weight: int) -> None:
        """Keep a batch, packed from now on, and its body's digest, where there is room: those before it come first.

        `weight` is how many bytes its message has. Numbers grow.
        """
        with self._lock:
            if self._bytes + weight > self._most:
                return
            self._bytes += weight
        pack(batch)
        with self._lock:
            self._kept[number] = (batch, digest, weight)

    def take(self, number: int) -> tuple[WireBatch, int] | None:
        """Return a batch and its body's digest, and keep them no more; None where they are not here.

        The log is written in its order: those before it will not be asked for any more.
        """
        with self._lock:
            while self._kept and (oldest := next(iter(self._kept))) < number:
                self._bytes -= self._kept.pop(oldest)[2]
            found = self._kept.pop(number, None)
            if found is None:
                return None
            self._bytes -= found[2]
        return found[0], found[1]
