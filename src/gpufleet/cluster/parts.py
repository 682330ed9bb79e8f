"""Splits due objects into cluster parts of bounded size. Pure."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpufleet.cluster.tracker import DueObjects
from gpufleet.codecs.batch.records import check_cluster_part
from gpufleet.model.stored.kubernetes import ClusterObject, ObjectKind
from gpufleet.model.wire.batch import MAX_OBJECTS, ClusterPart, RemovedObject

MAX_PART_BYTES = 2 << 20
"""Size of the objects of a part in bytes. A part with a single larger object exceeds it."""

_FIELDS = {
    ObjectKind.NODE: "nodes",
    ObjectKind.POD: "pods",
    ObjectKind.SLICE: "slices",
    ObjectKind.CLAIM: "claims",
    ObjectKind.VMI: "vmis",
}

_ENCODER = msgspec.msgpack.Encoder()
_EMPTY = ClusterPart(observed_at=1)


class PartObjects(msgspec.Struct, frozen=True):
    """Objects of one part: those that are present, and those that have ended, with their kind."""

    present: tuple[tuple[ObjectKind, ClusterObject], ...] = ()
    removed: tuple[tuple[ObjectKind, RemovedObject], ...] = ()

    def part(self, status: ClusterPart) -> ClusterPart:
        """Return the part: `status` with these objects."""
        lists: dict[str, list[ClusterObject]] = {}
        for kind, record in self.present:
            lists.setdefault(_FIELDS[kind], []).append(record)
        return msgspec.structs.replace(status, **lists, removed=[removed for _, removed in self.removed])


def check_object(kind: ObjectKind, record: ClusterObject) -> None:
    """Check that a batch may have an object.

    Raises:
        WireError: naming the field that the format does not permit.
    """
    check_cluster_part(kind.value, PartObjects(((kind, record),)).part(_EMPTY))


def split_objects(
    due: Mapping[ObjectKind, DueObjects[ClusterObject]],
    *,
    max_objects: int = MAX_OBJECTS,
    max_bytes: int = MAX_PART_BYTES,
) -> Iterator[PartObjects]:
    """Yield the due objects in parts of at most `max_objects` objects and about `max_bytes`."""
    present: list[tuple[ObjectKind, ClusterObject]] = []
    removed: list[tuple[ObjectKind, RemovedObject]] = []
    used = 0
    for kind, record, removal in _each(due):
        size = len(_ENCODER.encode(record or removal))
        count = len(present) + len(removed)
        if count and (count >= max_objects or used + size > max_bytes):
            yield PartObjects(tuple(present), tuple(removed))
            present, removed, used = [], [], 0
        used += size
        if removal is not None:
            removed.append((kind, removal))
        elif record is not None:
            present.append((kind, record))
    if present or removed:
        yield PartObjects(tuple(present), tuple(removed))


def _each(
    due: Mapping[ObjectKind, DueObjects[ClusterObject]],
) -> Iterable[tuple[ObjectKind, ClusterObject | None, RemovedObject | None]]:
    """Yield removals first: another object with the same name can be among the new objects."""
    for kind, objects in due.items():
        for one in objects.removed:
            yield kind, None, RemovedObject(resource=kind.value, uid=one.uid, at=one.at)
    for kind, objects in due.items():
        for record in objects.present.values():
            yield kind, record, None
