"""Allocations of a machine by its host name."""

import datetime as dt

from gpufleet.model.allocation import Allocation, AllocationKind, AllocationSpec, Target
from gpufleet.model.time import NANOS, to_datetime

START = 1_800_000_000 * NANOS
FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
UUID = "aaaaaaaa-0000-4000-8000-000000000001"


def at(seconds: float) -> dt.datetime:
    return to_datetime(START + int(seconds * NANOS))


def allocation(name: str = "a", tenant: str | None = "acme", **more: object) -> Allocation:
    fields = {"valid_from": at(0), "target": Target(cluster="c", machine="node-a"), **more}
    bindings, kind = fields.pop("bindings", ()), fields.pop("kind", AllocationKind.BARE_METAL)
    spec = AllocationSpec(kind=kind, tenant=tenant, **fields)  # type: ignore[arg-type]
    return Allocation(id=name, generation=1, spec=spec, created_at=at(0), bindings=bindings)  # type: ignore[arg-type]
