"""Newest state of Kubernetes objects, from the reports of one or several collectors. Pure.

The hub orders the reports of a collector. Reports of different collectors of a cluster, such as replicas that lead in
turn, are ordered by the time of the state, or of its receipt if that is earlier. So the backlog of an earlier leader
replaces nothing newer.
"""

from collections.abc import Iterable, Iterator, Sequence

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS
from gpufleet.model.kubernetes import CopyState
from gpufleet.model.stored.kubernetes import (
    ClusterObject,
    ObjectKind,
    ObjectQuery,
    ObjectReport,
    StoredCollector,
    StoredObject,
    object_names,
)
from gpufleet.model.wire.batch import ClusterPart

OBJECT_TTL_NS = HOLDING_TTL_NS
"""Time after which an object or collector that was not reported again is not known any more."""


def newest_objects(cluster: str, reports: Iterable[ObjectReport]) -> tuple[StoredObject, ...]:
    """Return each object as last reported, in order of UID. An object is left out if only its end was reported.

    Args:
        cluster: of the collectors.
        reports: reports of objects of one kind, in any order.
    """
    of_uid: dict[str, dict[str, list[ObjectReport]]] = {}
    for one in reports:
        of_uid.setdefault(one.uid, {}).setdefault(one.sender, []).append(one)
    found = [_newest(cluster, list(by_sender.values())) for _, by_sender in sorted(of_uid.items())]
    return tuple([one for one in found if one is not None])


def listed_objects(part: ClusterPart) -> Iterator[tuple[ObjectKind, ClusterObject]]:
    """Yield the objects of a cluster part with their kind."""
    lists: dict[ObjectKind, list[ClusterObject]] = {
        ObjectKind.NODE: [*part.nodes],
        ObjectKind.POD: [*part.pods],
        ObjectKind.SLICE: [*part.slices],
        ObjectKind.CLAIM: [*part.claims],
        ObjectKind.VMI: [*part.vmis],
    }
    for kind, records in lists.items():
        for record in records:
            yield kind, record


def select_objects(stored: Iterable[StoredObject], query: ObjectQuery) -> tuple[StoredObject, ...]:
    """Return the objects that have one of the UIDs or names of a query; all of them if the query has neither."""
    if query.uids is None and query.names is None:
        return tuple(stored)
    uids, names = frozenset(query.uids or ()), frozenset(query.names or ())
    return tuple([one for one in stored if one.record.uid in uids or not names.isdisjoint(object_names(one.record))])


def judged_at(kind: ObjectKind, collectors: Iterable[StoredCollector], now: int) -> int:
    """Return the instant for which the presence of objects is judged.

    Without connection to the API server, collectors cannot repeat objects. Objects then do not end by their age: they
    are judged for the time at which a copy was last current.

    Args:
        kind: of the objects.
        collectors: the newest report of each collector of the cluster.
        now: nanoseconds since 1970 by the hub's clock.

    Returns:
        `now` if no present collector reports a copy that is or was current.
    """
    instants = []
    for one in collectors:
        copy = next((copy for copy in one.copies if copy.resource == kind.value), None)
        if copy is None or not is_current(one, now):
            continue
        if copy.state is CopyState.SYNCED:
            instants.append(one.known_at)
        elif copy.state in (CopyState.STALE, CopyState.FORBIDDEN):
            instants.append(copy.since)
    return min(now, max(instants, default=now))


def are_in_conflict(collectors: Sequence[StoredCollector], now: int) -> bool:
    """Return whether present collectors report different clusters by the UID of their namespace `kube-system`."""
    return len(kubernetes_uids(collectors, now - OBJECT_TTL_NS)) > 1


def kubernetes_uids(collectors: Iterable[StoredCollector], since: int) -> frozenset[str]:
    """Return the UIDs of the namespace `kube-system` that collectors have reported since an instant."""
    return frozenset([one.system_uid for one in collectors if one.system_uid and one.known_at >= since])


def is_present(stored: StoredObject, at: int) -> bool:
    """Return whether an object exists, by reports that are recent enough.

    Args:
        stored: the object.
        at: the instant of `judged_at`.
    """
    return stored.ended_at is None and at - stored.known_at <= OBJECT_TTL_NS


def end_of(stored: StoredObject, at: int) -> int | None:
    """Return the end of an object: as reported, or its last report if it was not repeated; None if it exists."""
    if stored.ended_at is not None:
        return stored.ended_at
    return None if is_present(stored, at) else stored.known_at


def is_current(collector: StoredCollector, now: int) -> bool:
    """Return whether a collector reports now."""
    return now - collector.known_at <= OBJECT_TTL_NS


def is_synced(kind: ObjectKind, collectors: Iterable[StoredCollector], now: int) -> bool:
    """Return whether a collector that reports now has a current and complete copy of a kind of objects."""
    return any(
        copy.resource == kind.value and copy.state is CopyState.SYNCED and copy.is_complete and not copy.rejected
        for one in collectors
        if is_current(one, now)
        for copy in one.copies
    )


def _newest(cluster: str, of_senders: list[list[ObjectReport]]) -> StoredObject | None:
    last = [max(reports, key=_order) for reports in of_senders]
    records = [one for reports in of_senders for one in reports if one.record is not None]
    if not records:
        return None
    decisive = max(last, key=lambda one: (_known_at(one), *_order(one)))
    shown = decisive if decisive.record is not None else max(records, key=lambda one: (_known_at(one), *_order(one)))
    assert shown.record is not None
    return StoredObject(
        cluster=cluster,
        record=shown.record,
        known_at=max(map(_known_at, records)),
        ended_at=decisive.ended_at if decisive.record is None else None,
    )


def _known_at(report: ObjectReport) -> int:
    return min(report.observed_at, report.reported_at)


def _order(report: ObjectReport) -> tuple[int, bool, str]:
    """Return the place of a report: a batch that has an object and its end reports that the object exists again."""
    return report.reported_at, report.record is not None, report.sender
