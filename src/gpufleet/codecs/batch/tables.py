"""Cache of lists that senders repeat with every batch, so that they are decoded and checked only once."""

import threading
from collections.abc import Callable, Sized
from typing import Any, Generic, TypeVar

import msgspec

from gpufleet.codecs.batch.limits import name_place
from gpufleet.model.errors import WireError
from gpufleet.model.wire.batch import WireBatch

ENTRY_BYTES = 384
"""Approximate memory of an entry beside its bytes."""

LARGEST_BYTES = 64 << 10
"""Maximum size of a cached list; senders with very many machines are rare."""

_T = TypeVar("_T")


class TableCache(Generic[_T]):
    """Decoded and checked lists of one field by their bytes, with LRU eviction. Thread-safe.

    Callers must not modify a returned list.
    """

    def __init__(
        self,
        field: str,
        entry: Any,
        check: Callable[[list[_T]], None],
        *,
        most_bytes: int,
        made: Callable[[list[_T]], list[_T]] = list,
    ) -> None:
        """Create a cache for a field of `WireBatch`.

        Args:
            field: name of the field.
            entry: type of an entry.
            check: raises WireError for an invalid list.
            most_bytes: approximate memory limit.
            made: converts a valid list into the cached list.
        """
        self._place = WireBatch.__struct_fields__.index(field)
        self._decoder: msgspec.msgpack.Decoder[list[_T]] = msgspec.msgpack.Decoder(list[entry])
        self._check = check
        self._made = made
        self._most = most_bytes
        self._kept: dict[bytes, list[_T]] = {}  # least recently used first
        self._weight = 0
        self._lock = threading.Lock()

    def of(self, raw: msgspec.Raw) -> list[_T]:
        """Return the list encoded in the bytes.

        Raises:
            WireError: if they do not follow the format; names the field.
        """
        if len(memoryview(raw)) > LARGEST_BYTES:
            return self._unpack(raw)
        key = bytes(raw)
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found
                return found
        found = self._unpack(raw)
        with self._lock:
            if key not in self._kept:
                self._weight += _weight(key, found)
                self._kept[key] = found
            while self._weight > self._most:
                oldest = next(iter(self._kept))
                self._weight -= _weight(oldest, self._kept.pop(oldest))
        return found

    def _unpack(self, raw: msgspec.Raw) -> list[_T]:
        try:
            entries = self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise WireError(*name_place(error, within=f"[{self._place}]")) from error
        self._check(entries)
        return self._made(entries)


def _weight(key: bytes, entries: Sized) -> int:
    return len(key) + ENTRY_BYTES * (len(entries) + 1)
