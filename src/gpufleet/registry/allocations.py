"""Allocations: every generation is kept, also after closing."""

import datetime as dt

import msgspec
import sqlalchemy as sa

from gpufleet.model.allocation import REQUIRED_TARGET_FIELD, Allocation, AllocationKind, AllocationSpec, Binding
from gpufleet.model.errors import ConflictError, NotFoundError
from gpufleet.model.time import to_datetime, to_ns
from gpufleet.registry.tables import ALLOCATIONS

_BINDINGS = tuple[Binding, ...]


def put(
    connection: sa.Connection,
    id: str,  # noqa: A002
    spec: AllocationSpec,
    at: dt.datetime,
    bindings: tuple[Binding, ...] = (),
) -> tuple[Allocation, bool]:
    """Store an allocation; see `ports.Registry.put_allocation`."""
    before = _newest(connection, id)
    if before is None:
        spec = spec if spec.valid_from else msgspec.structs.replace(spec, valid_from=at)
        allocation = Allocation(id=id, generation=1, spec=spec, created_at=at, bindings=bindings)
        _insert(connection, allocation, at)
        return allocation, True
    if before.closed_at is not None:
        raise ConflictError(
            f"allocation {id!r} was closed at {before.closed_at.isoformat()} and cannot be changed: use another id"
        )
    if before.spec.tenant is not None and spec.tenant != before.spec.tenant:
        raise ConflictError(
            f"the tenant of allocation {id!r} is {before.spec.tenant!r} and cannot be changed: "
            "close the allocation and create another"
        )
    if (spec.kind, spec.target.cluster) != (before.spec.kind, before.spec.target.cluster):
        raise ConflictError(
            f"allocation {id!r} is of kind {before.spec.kind} in cluster {before.spec.target.cluster!r}, and neither "
            "can be changed: close the allocation and create another"
        )
    has_begun = before.spec.valid_from is None or before.spec.valid_from < at
    if spec.kind is not AllocationKind.BARE_METAL and spec.target != before.spec.target and has_begun:
        field = REQUIRED_TARGET_FIELD[spec.kind]
        raise ConflictError(
            f"the {field} of allocation {id!r} is {getattr(before.spec.target, field)!r} and cannot be changed after "
            "its start: close the allocation and create another"
        )
    if spec.valid_from is None:
        spec = msgspec.structs.replace(spec, valid_from=before.spec.valid_from)
    if spec == before.spec and bindings == before.bindings:
        return before, False
    allocation = msgspec.structs.replace(before, generation=before.generation + 1, spec=spec, bindings=bindings)
    _insert(connection, allocation, at)
    return allocation, False


def bind(connection: sa.Connection, id: str, bindings: tuple[Binding, ...]) -> Allocation:  # noqa: A002
    """Store the bindings of the newest generation; see `ports.Registry.bind_allocation`."""
    before = get(connection, id)
    connection.execute(
        ALLOCATIONS.update()
        .where((ALLOCATIONS.c.id == id) & (ALLOCATIONS.c.generation == before.generation))
        .values(bindings=msgspec.msgpack.encode(bindings))
    )
    return msgspec.structs.replace(before, bindings=bindings)


def get(connection: sa.Connection, id: str, tenant: str | None = None) -> Allocation:  # noqa: A002
    """Return the newest generation; see `visible`."""
    return visible(_newest(connection, id), id, tenant)


def visible(found: Allocation | None, id: str, tenant: str | None) -> Allocation:  # noqa: A002
    """Return the allocation that was found under an id.

    Raises:
        NotFoundError: if there is none, or it belongs to another tenant. The message is the same in both cases, so that
            a tenant cannot detect allocations of others.
    """
    if found is None or (tenant is not None and found.spec.tenant != tenant):
        raise NotFoundError(f"there is no allocation {id!r}")
    return found


def list_all(connection: sa.Connection) -> tuple[Allocation, ...]:
    """Return the newest generation of every allocation, in order of id."""
    newest = (
        sa.select(ALLOCATIONS.c.id, sa.func.max(ALLOCATIONS.c.generation).label("generation"))
        .group_by(ALLOCATIONS.c.id)
        .subquery()
    )
    query = (
        sa.select(ALLOCATIONS)
        .join(newest, (ALLOCATIONS.c.id == newest.c.id) & (ALLOCATIONS.c.generation == newest.c.generation))
        .order_by(ALLOCATIONS.c.id)
    )
    return tuple(_read(row) for row in connection.execute(query))


def close(connection: sa.Connection, id: str, at: dt.datetime) -> Allocation:  # noqa: A002
    """Close the newest generation; see `ports.Registry.close_allocation`."""
    before = get(connection, id)
    if before.closed_at is not None:
        return before
    connection.execute(
        ALLOCATIONS.update()
        .where((ALLOCATIONS.c.id == id) & (ALLOCATIONS.c.generation == before.generation))
        .values(closed_at=to_ns(at))
    )
    return msgspec.structs.replace(before, closed_at=at)


def _newest(connection: sa.Connection, id: str) -> Allocation | None:  # noqa: A002
    query = sa.select(ALLOCATIONS).where(ALLOCATIONS.c.id == id).order_by(ALLOCATIONS.c.generation.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else _read(row)


def _insert(connection: sa.Connection, allocation: Allocation, at: dt.datetime) -> None:
    connection.execute(
        ALLOCATIONS.insert().values(
            id=allocation.id,
            generation=allocation.generation,
            spec=msgspec.msgpack.encode(allocation.spec),
            created_at=to_ns(allocation.created_at),
            put_at=to_ns(at),
            closed_at=None,
            bindings=msgspec.msgpack.encode(allocation.bindings),
        )
    )


def _read(row: "sa.Row[tuple[object, ...]]") -> Allocation:
    return Allocation(
        id=row.id,
        generation=row.generation,
        spec=msgspec.msgpack.decode(row.spec, type=AllocationSpec),
        created_at=to_datetime(row.created_at),
        closed_at=None if row.closed_at is None else to_datetime(row.closed_at),
        bindings=msgspec.msgpack.decode(row.bindings, type=_BINDINGS),
    )
