"""Objects of Kubernetes clusters and their collectors: rows of `cluster_objects` and `collectors`, and queries."""

from collections.abc import Sequence

import msgspec

from gpufleet.fleet.cluster_objects import listed_objects, newest_objects, select_objects
from gpufleet.model.kubernetes import ClusterNode, ClusterPod, ClusterSlice, CopyStatus
from gpufleet.model.stored.kubernetes import (
    RECORDS,
    ClusterObject,
    ObjectQuery,
    ObjectReport,
    StoredCollector,
    StoredObject,
    object_names,
)
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.columns import RowBuffer
from gpufleet.stores.clickhouse.schema.tables import CLUSTER_OBJECTS, COLLECTORS

MAX_COLLECTORS = 16
"""Maximum number of collectors of a cluster that are read, the newest ones."""

_KEY = ", ".join(CLUSTER_OBJECTS.key)

_OF_KIND = "cluster = {cluster:String} AND kind = {kind:String}"

_NEWEST = f"""
SELECT sender, uid, content, toUnixTimestamp64Nano(observed_at), toUnixTimestamp64Nano(reported_at),
    toUnixTimestamp64Nano(ended_at)
FROM (
    SELECT * FROM cluster_objects WHERE {{conditions}}
    ORDER BY {_KEY}, reported_at DESC LIMIT 1 BY {_KEY}
) ORDER BY {_KEY}
"""  # noqa: S608 - names are constants; values are bound as parameters

_REPORTED_SINCE = "reported_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')"

_OF_UIDS = "uid IN {uids:Array(String)}"

_NAMED = f"""uid IN (SELECT uid FROM cluster_objects
    WHERE {_OF_KIND} AND arrayExists(one -> one IN {{names:Array(String)}}, names))"""  # noqa: S608 - as above
"""Objects with a report that has one of the names. `hasAny` would compare every name with every other."""

_COLLECTORS = f"""
SELECT cluster, sender, toUnixTimestamp64Nano(observed_at), toUnixTimestamp64Nano(reported_at), system_uid,
    server_version, copies
FROM (
    SELECT * FROM collectors WHERE cluster IN {{clusters:Array(String)}}
    ORDER BY cluster, sender, reported_at DESC LIMIT 1 BY cluster, sender
) ORDER BY cluster, reported_at DESC, sender LIMIT {MAX_COLLECTORS} BY cluster
"""  # noqa: S608 - as above

_DECODERS = {kind: msgspec.json.Decoder(record) for kind, record in RECORDS.items()}
_COPIES = msgspec.json.Decoder(tuple[CopyStatus, ...])


class ClusterRows:
    """Rows of objects and collectors from many batches."""

    def __init__(self) -> None:
        self.tables = {
            table.name: RowBuffer(column.name for column in table.columns) for table in (CLUSTER_OBJECTS, COLLECTORS)
        }

    def add(self, accepted: AcceptedBatch) -> None:
        """Add the cluster part of a batch, if it has one."""
        batch = accepted.batch
        part = batch.cluster_part
        if part is None:
            return
        number = (part.observed_at, accepted.reported_at, accepted.received_at)
        objects = self.tables["cluster_objects"]
        for kind, record in listed_objects(part):
            own = _columns(record)
            content = msgspec.json.encode(record).decode()
            objects.add(batch.cluster, kind.value, record.uid, batch.sender, 0, *own, content, *number, None)
        for one in part.removed:
            own = ("", "", "", "", [])
            objects.add(batch.cluster, one.resource, one.uid, batch.sender, 1, *own, "", *number, one.at)
        if part.copies:
            copies = msgspec.json.encode(part.copies).decode()
            status = (part.system_uid, part.server_version, copies)
            self.tables["collectors"].add(batch.cluster, batch.sender, *status, *number)


def fetch_cluster_objects(handle: Handle, query: ObjectQuery) -> tuple[StoredObject, ...]:
    """Return the objects that match; see `ports.ClusterStore.cluster_objects`."""
    conditions = [_OF_KIND, _REPORTED_SINCE]
    if query.uids is not None or query.names is not None:
        if not query.uids and not query.names:
            return ()
        conditions.append(f"({_OF_UIDS} OR {_NAMED})" if query.names else _OF_UIDS)
    parameters = {
        "cluster": query.cluster,
        "kind": query.kind.value,
        "uids": list(query.uids or ()),
        "names": list(query.names or ()),
        "since": query.since,
    }
    statement = _NEWEST.format(conditions=" AND ".join(conditions))
    decode = _DECODERS[query.kind].decode
    reports = [
        ObjectReport(
            sender=sender,
            uid=uid,
            record=decode(content) if content else None,
            observed_at=observed_at,
            reported_at=reported_at,
            ended_at=ended_at,
        )
        for sender, uid, content, observed_at, reported_at, ended_at in handle.query(
            statement, parameters=parameters
        ).result_rows
    ]
    return select_objects(newest_objects(query.cluster, reports), query)


def fetch_collectors(handle: Handle, clusters: Sequence[str]) -> dict[str, tuple[StoredCollector, ...]]:
    """Return cluster to the newest report of its collectors; see `ports.ClusterStore.collectors`."""
    if not clusters:
        return {}
    found: dict[str, list[StoredCollector]] = {}
    for cluster, sender, observed_at, reported_at, system_uid, version, copies in handle.query(
        _COLLECTORS, parameters={"clusters": list(clusters)}
    ).result_rows:
        one = StoredCollector(
            sender=sender,
            observed_at=observed_at,
            reported_at=reported_at,
            system_uid=system_uid,
            server_version=version,
            copies=_COPIES.decode(copies),
        )
        found.setdefault(cluster, []).append(one)
    return {cluster: tuple(collectors) for cluster, collectors in found.items()}


def _columns(record: ClusterObject) -> tuple[str, str, str, str, list[str]]:
    """Return namespace, name, node, queue and search names of an object."""
    namespace = "" if isinstance(record, ClusterNode | ClusterSlice) else record.namespace
    node = record.name if isinstance(record, ClusterNode) else getattr(record, "node", "")
    queue = record.queue if isinstance(record, ClusterPod) else ""
    return namespace, record.name, node, queue, list(object_names(record))
