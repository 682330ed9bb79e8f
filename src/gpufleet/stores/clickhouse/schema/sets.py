"""Sets that are kept once and pointed at by 8 bytes a row: why values are absent, what the texts are.

Sets of reasons out of the store.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.machine import PciFunction
from gpufleet.model.view import View
from gpufleet.model.wire.batch import WireAbsence
from gpufleet.stores.clickhouse.connection.client import Handle

EMPTY = 0
"""Id of the empty set; it has no row."""

Subject = tuple[str, ...]
"""What a remembered thing belongs to: cluster, machine, and view, reader or lane as it needs."""

_KNOWN_LIMIT = 3_000_000
"""Entries of a memory: a million GPUs of which three readers tell. One takes about 300 bytes."""


def set_id(content: object) -> int:
    """Return the 64-bit id of anything msgpack can write; equal content, equal id, on every machine."""
    digest = hashlib.blake2b(msgspec.msgpack.encode(content, order="deterministic"), digest_size=8)
    return int.from_bytes(digest.digest(), "little") or 1


def absence_set_id(absences: Iterable[WireAbsence]) -> int:
    """Return the id of a set of absences, whatever order it came in."""
    triples = sorted((absence.metric, absence.reason.value, absence.detail) for absence in absences)
    return set_id(triples) if triples else EMPTY


def info_set_id(texts: Sequence[tuple[str, str]]) -> int:
    """Return the id of (metric, text) pairs, whatever order they came in."""
    return set_id(sorted(texts)) if texts else EMPTY


def inventory_set_id(functions: Sequence[PciFunction]) -> int:
    """Return the id of a list of PCI functions; an empty list has one too, for it is news as well."""
    return set_id(sorted(functions, key=lambda function: function.address))


Content = TypeVar("Content")

_MET_LIMIT = 10_000


class ById(Generic[Content]):
    """What sets were found to have, by id. An id is made of the content: it never has another one, whoever writes.

    Bounded by forgetting everything when it is full. Any thread may ask and add.
    """

    def __init__(self) -> None:
        self._contents: dict[int, Content] = {}

    def split(self, ids: Iterable[int]) -> tuple[dict[int, Content], list[int]]:
        """Return those of the ids that are known with what they have, and the others in order."""
        contents = self._contents
        found = {number: contents[number] for number in ids if number in contents}
        return found, sorted(number for number in ids if number not in found)

    def keep(self, contents: Mapping[int, Content]) -> None:
        """Add contents."""
        if len(self._contents) + len(contents) > _MET_LIMIT:
            self._contents = {}
        self._contents.update(contents)


class Known:
    """What the store is known to hold, so that it is not written again.

    Forgetting is harmless: what is written twice collapses in the store. So the memory is bounded by
    forgetting everything when it is full.

    Attributes:
        absence_sets: ids in the table of that name.
        info: (cluster, machine, view, reader, lane) to the id of the texts last written.
        views: (cluster, machine, view, reader) to this process's hash of what was last said, and when.
        told: (cluster, machine) to a list of views that is told again and again, and this process's hash of which of
            them somebody told of: all those are known as they are in there.
        inventory: (cluster, machine) to the id of the list last written.
    """

    def __init__(self) -> None:
        self.absence_sets: set[int] = set()
        self.info: dict[Subject, int] = {}
        self.views: dict[Subject, tuple[int, int]] = {}
        self.told: dict[tuple[str, str], tuple[list[View], int]] = {}
        self.inventory: dict[Subject, int] = {}

    def trim(self) -> None:
        """Forget what has grown past the bound."""
        memories: tuple[set[int] | dict[Subject, int] | dict[Subject, tuple[int, int]], ...] = (
            self.absence_sets,
            self.info,
            self.views,
            self.inventory,
        )
        for memory in memories:
            if len(memory) > _KNOWN_LIMIT:
                memory.clear()
        if not self.views:
            self.told.clear()


AbsenceSets = ById[dict[str, Absent]]
"""Set id to metric to why it is absent."""

_ABSENCES = "SELECT id, metrics, reasons, details FROM absence_sets WHERE id IN {ids:Array(UInt64)}"


def fetch_absences(handle: Handle, ids: set[int], met: AbsenceSets) -> dict[int, dict[str, Absent]]:
    """Return the sets of these ids; `met` has those that were asked for before, and gains the others."""
    found, wanted = met.split(ids - {EMPTY})
    if wanted:
        asked = {
            number: {
                metric: Absent(Reason(reason), detail)
                for metric, reason, detail in zip(metrics, reasons, details, strict=True)
            }
            for number, metrics, reasons, details in handle.query(_ABSENCES, parameters={"ids": wanted}).result_rows
        }
        met.keep(asked)
        found.update(asked)
    return found
