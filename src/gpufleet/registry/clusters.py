"""Clusters: registered by configuration or with a spec; closed, never deleted."""

import datetime as dt
from collections.abc import Sequence

import msgspec
import sqlalchemy as sa

from gpufleet.model.cluster import Cluster, ClusterSpec
from gpufleet.model.errors import NotFoundError
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.registry.tables import CLUSTERS


def register(connection: sa.Connection, ids: Sequence[str], at: int) -> None:
    """Register clusters that are not known yet; see `ports.Registry.register_clusters`."""
    known = set(connection.scalars(sa.select(CLUSTERS.c.id)))
    new = [{"id": cluster, "registered_at": at} for cluster in dict.fromkeys(ids) if cluster not in known]
    if new:
        connection.execute(CLUSTERS.insert(), new)


def put(connection: sa.Connection, id: str, spec: ClusterSpec, at: dt.datetime) -> tuple[Cluster, bool]:  # noqa: A002
    """Store the spec of a cluster; see `ports.Registry.put_cluster`."""
    before = _find(connection, id)
    if before is None:
        register(connection, [id], to_ns(at))
        before = Cluster(id=id, known_since=at)
    values = {"spec": msgspec.msgpack.encode(spec), "closed_at": None}
    connection.execute(CLUSTERS.update().where(CLUSTERS.c.id == id).values(**values))
    return msgspec.structs.replace(before, spec=spec, closed_at=None), before.spec is None


def get(connection: sa.Connection, id: str) -> Cluster:  # noqa: A002
    """Return a cluster. Raises NotFoundError."""
    found = _find(connection, id)
    if found is None:
        raise NotFoundError(f"there is no cluster {id!r}")
    return found


def list_all(connection: sa.Connection) -> tuple[Cluster, ...]:
    """Return every cluster in order of id."""
    return tuple(_read(row) for row in connection.execute(sa.select(CLUSTERS).order_by(CLUSTERS.c.id)))


def close(connection: sa.Connection, id: str, at: dt.datetime) -> Cluster:  # noqa: A002
    """Close a cluster; see `ports.Registry.close_cluster`."""
    before = get(connection, id)
    if before.closed_at is not None:
        return before
    connection.execute(CLUSTERS.update().where(CLUSTERS.c.id == id).values(closed_at=to_ns(at)))
    return msgspec.structs.replace(before, closed_at=at)


def _find(connection: sa.Connection, id: str) -> Cluster | None:  # noqa: A002
    row = connection.execute(sa.select(CLUSTERS).where(CLUSTERS.c.id == id)).one_or_none()
    return None if row is None else _read(row)


def _read(row: "sa.Row[tuple[object, ...]]") -> Cluster:
    return Cluster(
        id=row.id,
        known_since=to_datetime(row.registered_at),
        spec=None if row.spec is None else msgspec.msgpack.decode(row.spec, type=ClusterSpec),
        closed_at=None if row.closed_at is None else to_datetime(row.closed_at),
    )
