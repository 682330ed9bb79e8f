"""Due objects and node reports of all resources, from the state of the copies. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from gpufleet.cluster.machines import CountedNode, ended_report, has_numbers, machine_report
from gpufleet.cluster.parts import PartObjects, check_object, split_objects
from gpufleet.cluster.tracker import DueObjects, ObjectTracker
from gpufleet.fleet.allocated_devices import AllocatedDevices
from gpufleet.fleet.published_gpus import published_gpus
from gpufleet.model.catalogue.kubernetes import DRA_DRIVER
from gpufleet.model.errors import WireError
from gpufleet.model.kubernetes import ClusterClaim, ClusterNode, ClusterPod, ClusterSlice, CopyState, CopyStatus
from gpufleet.model.stored.kubernetes import ClusterObject, ObjectKind
from gpufleet.model.wire.batch import MachineReport

NODE_SECONDS = 120.0
"""Interval of the number of GPUs of each node. The hub drops a number that is not repeated for 10 minutes."""

NODE_SLOTS = 4

MAX_LEFT_OUT = 16

MAX_REPORTS = 500
"""Maximum number of machine reports in a batch."""


class CopyView(msgspec.Struct, frozen=True):
    """State of a copy at an instant: records by UID, UIDs of undecodable objects, and status."""

    records: Mapping[str, ClusterObject]
    rejected: Collection[str]
    status: CopyStatus


class NodeReports(msgspec.Struct, frozen=True):
    """Machine reports of one batch.

    Attributes:
        reports: one per node.
        present: the nodes by UID.
        removed: UIDs of nodes that were removed, or have no GPUs any more.
    """

    reports: tuple[MachineReport, ...]
    present: Mapping[str, CountedNode]
    removed: tuple[str, ...]


class Reporter:
    """Due objects and node reports of a cluster.

    An object that the batch format does not permit, such as one with too long a label name, is left out: it would keep
    every other object of its batch from the hub. The times of all methods are monotonic seconds (`now`) and nanoseconds
    since 1970 (`now_ns`).

    Attributes:
        left_out: UID to the reason, for the first `MAX_LEFT_OUT` such objects.
    """

    def __init__(self) -> None:
        self._objects: dict[ObjectKind, ObjectTracker[ClusterObject]] = {kind: ObjectTracker() for kind in ObjectKind}
        self._nodes: ObjectTracker[CountedNode] = ObjectTracker(repeat_seconds=NODE_SECONDS, slots=NODE_SLOTS)
        self._slices: list[ClusterObject] = []
        self._published: Mapping[str, int | None] = {}
        self._pods: list[ClusterObject] = []
        self._claims: list[ClusterObject] | None = None
        self._allocated: AllocatedDevices | None = None
        self._current_at: dict[ObjectKind, int] = {}
        self.left_out: dict[str, str] = {}

    def due_objects(self, views: Mapping[ObjectKind, CopyView], *, now: float, now_ns: int) -> list[PartObjects]:
        """Return the objects that are due, in parts."""
        due: dict[ObjectKind, DueObjects[ClusterObject]] = {}
        for kind, view in views.items():
            found = self._objects[kind].due(view.records, view.status, now=now, now_ns=now_ns, rejected=view.rejected)
            present = {uid: record for uid, record in found.present.items() if self._is_permitted(kind, record)}
            due[kind] = DueObjects(present, found.removed)
        return list(split_objects(due))

    def confirm_objects(self, objects: PartObjects, *, now: float) -> None:
        """Note that a part was queued for the hub."""
        for kind, record in objects.present:
            self._objects[kind].confirm(record.uid, record, now)
        for kind, removed in objects.removed:
            self._objects[kind].confirm_removed(removed.uid)

    def due_nodes(self, views: Mapping[ObjectKind, CopyView], *, now: float, now_ns: int) -> list[NodeReports]:
        """Return the node reports that are due. A stale copy is reported with the time at which it was current."""
        view, slices = views.get(ObjectKind.NODE), views.get(ObjectKind.SLICE)
        if view is None:
            return []
        self._note_current(views, now_ns)
        counted = self._with_numbers(views)
        due = self._nodes.due(counted, view.status, now=now, now_ns=now_ns, rejected=view.rejected)
        at = self._time_of(ObjectKind.NODE, view, now_ns)
        published_at = self._time_of(ObjectKind.SLICE, slices, now_ns)
        allocated_at = self._time_of(ObjectKind.POD, views.get(ObjectKind.POD), now_ns)
        found: list[tuple[str, CountedNode | None, MachineReport | None]] = [
            (
                uid,
                one,
                machine_report(
                    one, at, self._nodes.reported(uid), published_at=published_at, allocated_at=allocated_at
                ),
            )
            for uid, one in due.present.items()
            if self._is_permitted(ObjectKind.NODE, one.node)
        ]
        found += [
            (one.uid, None, ended_report(one.record, one.at) if one.record is not None else None) for one in due.removed
        ]
        return [_join(found[start : start + MAX_REPORTS]) for start in range(0, len(found), MAX_REPORTS)]

    def confirm_nodes(self, nodes: NodeReports, *, now: float) -> None:
        """Note that node reports were queued for the hub."""
        for uid, node in nodes.present.items():
            self._nodes.confirm(uid, node, now)
        for uid in nodes.removed:
            self._nodes.confirm_removed(uid)

    def follow(
        self, views: Mapping[ObjectKind, CopyView], *, now: float, now_ns: int, with_numbers: bool = True
    ) -> None:
        """Note the state of the copies without reporting, as a standby does; `with_numbers` also those of the nodes."""
        for kind, view in views.items():
            tracked: list[tuple[ObjectTracker[Any], Mapping[str, object]]] = [(self._objects[kind], view.records)]
            if kind is ObjectKind.NODE and with_numbers:
                tracked.append((self._nodes, self._with_numbers(views)))
            for tracker, records in tracked:
                tracker.follow(records, view.status, now=now, now_ns=now_ns, rejected=view.rejected)
        self._note_current(views, now_ns)

    def _note_current(self, views: Mapping[ObjectKind, CopyView], now_ns: int) -> None:
        """Note the time of the copies that are current."""
        self._current_at.update((kind, now_ns) for kind, one in views.items() if one.status.state is CopyState.SYNCED)

    def _time_of(self, kind: ObjectKind, view: CopyView | None, now_ns: int) -> int:
        """Return the time of a copy's numbers. That of a stale copy is never before the time of its previous report."""
        if view is None or view.status.state is not CopyState.STALE:
            return now_ns
        return max(view.status.since, self._current_at.get(kind, 0))

    def _with_numbers(self, views: Mapping[ObjectKind, CopyView]) -> dict[str, CountedNode]:
        """Return the nodes that have numbers, by UID."""
        published = self._published_gpus(views.get(ObjectKind.SLICE))
        allocated = self._allocated_devices(views.get(ObjectKind.POD), views.get(ObjectKind.CLAIM))
        nodes = {uid: one for uid, one in views[ObjectKind.NODE].records.items() if isinstance(one, ClusterNode)}
        counted = {
            uid: CountedNode(node, published.get(node.name), None if allocated is None else allocated.on(node.name))
            for uid, node in nodes.items()
        }
        return {uid: one for uid, one in counted.items() if has_numbers(one)}

    def _published_gpus(self, view: CopyView | None) -> Mapping[str, int | None]:
        """Return the number of published GPUs by node; none if the copy of the slices is not whole."""
        if view is None or not _is_whole(view):
            return {}
        slices = list(view.records.values())
        if slices != self._slices:  # a comparison of identities: unchanged records are the same objects
            self._slices = slices
            self._published = published_gpus((one for one in slices if isinstance(one, ClusterSlice)), DRA_DRIVER)
        return self._published

    def _allocated_devices(self, pods: CopyView | None, claims: CopyView | None) -> AllocatedDevices | None:
        """Return the devices that pods have; None if the copy of the pods is not whole."""
        if pods is None or not _is_whole(pods):
            return None
        listed = list(pods.records.values())
        claimed = list(claims.records.values()) if claims is not None and _is_whole(claims) else None
        if self._allocated is None or listed != self._pods or claimed != self._claims:
            self._pods, self._claims = listed, claimed
            self._allocated = AllocatedDevices(
                (one for one in listed if isinstance(one, ClusterPod)),
                None if claimed is None else [one for one in claimed if isinstance(one, ClusterClaim)],
            )
        return self._allocated

    def _is_permitted(self, kind: ObjectKind, record: ClusterObject) -> bool:
        try:
            check_object(kind, record)
        except WireError as error:
            if len(self.left_out) < MAX_LEFT_OUT:
                self.left_out.setdefault(record.uid, f"{record.name}: {error}")
            return False
        return True


def _is_whole(view: CopyView) -> bool:
    """Return whether a copy has every object, as of now or of the time at which it was last current."""
    is_known = view.status.state in (CopyState.SYNCED, CopyState.STALE)
    return is_known and not view.rejected and view.status.is_complete


def _join(found: list[tuple[str, CountedNode | None, MachineReport | None]]) -> NodeReports:
    return NodeReports(
        reports=tuple(report for _, _, report in found if report is not None),
        present={uid: one for uid, one, _ in found if one is not None},
        removed=tuple(uid for uid, one, _ in found if one is None),
    )
