"""GPU counts declared by Kubernetes, computed from batches in memory where the real store uses SQL."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.codecs.batch import to_rows
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.kubernetes import (
    ALLOCATABLE,
    ALLOCATED,
    CAPACITY,
    GPU_RESOURCES,
    KUBERNETES_REPORTED,
    LABELLED,
    PUBLISHED_GPUS,
)
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import to_datetime

Place = tuple[str, str, str]
"""Cluster, machine and reader."""


class DeclaredRecord(msgspec.Struct):
    """Newest declaration of one metric and resource; the value is None after it has ended."""

    metric: str
    resource: str
    value: int | None
    measured_at: int
    received_at: int


DeclaredRecords = dict[Place, list[DeclaredRecord]]


def newest_records(batches: Iterable[AcceptedBatch], since: int) -> DeclaredRecords:
    """Return the declarations in force, by place."""
    newest: dict[Place, dict[tuple[str, str], DeclaredRecord]] = {}
    for one in batches:
        for id_, report in zip(one.machine_ids, to_rows(one.batch).reports, strict=True):
            for sample in report.samples:
                for dim in sample.dims:
                    if dim.metric in KUBERNETES_REPORTED:
                        records = newest.setdefault((one.batch.cluster, id_, sample.reader), {})
                        value = None if isinstance(dim.value, Absent) else int(dim.value)
                        record = DeclaredRecord(dim.metric, dim.labels[0], value, sample.measured_at, one.received_at)
                        before = records.get((record.metric, record.resource), record)
                        records[record.metric, record.resource] = max(
                            before, record, key=lambda each: (each.measured_at, each.received_at)
                        )
    return {
        place: kept
        for place, records in newest.items()
        if (kept := [record for record in records.values() if record.value is not None and record.received_at >= since])
    }


def gpus(
    declared: DeclaredRecords, buses: Mapping[tuple[str, str], int], without: Sequence[str]
) -> dict[str, tuple[DeclaredGpus, ...]]:
    """Return the GPU counts of each reader, by cluster."""
    counting = {
        place: records
        for place, records in declared.items()
        if place[1] not in without and _sum(records, CAPACITY, (*GPU_RESOURCES, PUBLISHED_GPUS)) is not None
    }
    found: dict[str, dict[str, DeclaredGpus]] = {}
    for (cluster, machine, reader), records in sorted(counting.items()):
        others = {
            place[2]: (_sum(each, CAPACITY, (PUBLISHED_GPUS,)) is None, -_received(each), place[2])
            for place, each in counting.items()
            if place[:2] == (cluster, machine)
        }
        is_counted = reader == min(others, key=lambda each: others[each])
        devices, published = _sum(records, CAPACITY, GPU_RESOURCES) or 0, _sum(records, CAPACITY, (PUBLISHED_GPUS,))
        labelled, on_bus = _sum(records, LABELLED), buses.get((cluster, machine), 0)
        whole = _whole(devices, labelled, on_bus)
        total = on_bus if labelled is None else labelled
        separate = min(whole + published, total) if devices and published else 0
        count, whole = max(devices, published or 0, separate), max(published or 0, whole, separate)
        allocatable = _sum(records, ALLOCATABLE, GPU_RESOURCES)
        allocated = _sum(records, ALLOCATED, (*GPU_RESOURCES, PUBLISHED_GPUS))
        before = found.setdefault(cluster, {}).get(reader)
        measured, received = to_datetime(max(record.measured_at for record in records)), to_datetime(_received(records))
        found[cluster][reader] = DeclaredGpus(
            reader=reader,
            machines=1 + (before.machines if before else 0),
            gpus=count + (before.gpus if before else 0),
            allocatable=_add(allocatable, before.allocatable if before else None),
            allocated=_add(allocated, before.allocated if before else None),
            published=_add(published, before.published if before else None),
            counted=count * is_counted + (before.counted if before else 0),
            shares=(count - whole) * is_counted + (before.shares if before else 0),
            measured_at=max(measured, before.measured_at) if before else measured,
            received_at=max(received, before.received_at) if before else received,
        )
    return {cluster: tuple(readers.values()) for cluster, readers in found.items()}


def resources(
    declared: DeclaredRecords, cluster: str, machines: Sequence[str]
) -> dict[str, tuple[DeclaredResource, ...]]:
    """Return the declared resources of each machine."""
    found: dict[str, list[DeclaredResource]] = {}
    for (of, machine, reader), records in sorted(declared.items()):
        if of != cluster or machine not in machines:
            continue
        for resource in sorted({record.resource for record in records}):
            mine = [record for record in records if record.resource == resource]
            has, labelled = _sum(mine, CAPACITY), _sum(mine, LABELLED)
            found.setdefault(machine, []).append(
                DeclaredResource(
                    resource=resource,
                    capacity=labelled if has is None else has,
                    allocatable=_sum(mine, ALLOCATABLE),
                    reader=reader,
                    measured_at=to_datetime(max(record.measured_at for record in mine)),
                    received_at=to_datetime(_received(mine)),
                )
            )
    return {machine: tuple(each) for machine, each in found.items()}


def _whole(count: int, labelled: int | None, on_bus: int) -> int:
    if labelled is not None and count > labelled:
        return labelled
    return on_bus if on_bus and count >= 2 * on_bus and count % on_bus == 0 else count


def _sum(records: Iterable[DeclaredRecord], metric: str, only: Sequence[str] = ()) -> int | None:
    counts = [
        record.value or 0 for record in records if record.metric == metric and (not only or record.resource in only)
    ]
    return sum(counts) if counts else None


def _received(records: Iterable[DeclaredRecord]) -> int:
    return max(record.received_at for record in records)


def _add(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)
