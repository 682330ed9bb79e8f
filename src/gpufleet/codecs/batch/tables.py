"""Lists that a sender tells with every batch, by their bytes: what is told again is not unpacked and checked again."""

import threading
from collections.abc import Callable, Sized
from typing import Any, Generic, TypeVar

import msgspec

from gpufleet.codecs.batch.limits import name_place
from gpufleet.model.errors import WireError
from gpufleet.model.wire.batch import WireBatch

ENTRY_BYTES = 384
"""About what an entry takes in memory beside its bytes."""

LARGEST_BYTES = 64 << 10
"""Of a list that is kept: a sender that tells of very many machines at once is a rare one."""

_T = TypeVar("_T")


class Tables(Generic[_T]):
    """Lists of one field, unpacked and checked, by their bytes. May be used from several threads.

    Whoever gets a list must not change it. What was not asked for the longest goes where there is no more room.
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
        """Take the field of `WireBatch`, the type of an entry, and how much memory it may take, about.

        `check` raises WireError for a list that breaks the format; `made` is what is kept of one that does not.
        """
        self._place = WireBatch.__struct_fields__.index(field)
        self._decoder: msgspec.msgpack.Decoder[list[_T]] = msgspec.msgpack.Decoder(list[entry])
        self._check = check
        self._made = made
        self._most = most_bytes
        self._kept: dict[bytes, list[_T]] = {}  # asked for longest ago first
        self._weight = 0
        self._lock = threading.Lock()

    def of(self, raw: msgspec.Raw) -> list[_T]:
        """Return the list that the bytes are.

        Raises:
            WireError: if they break the format; names the field.
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
