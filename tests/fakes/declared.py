"""What Kubernetes says of machines, out of batches in memory: by records, where the real store asks by SQL."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpufleet.codecs.batch import to_rows
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue.kubernetes import ALLOCATABLE, CAPACITY, GPU_RESOURCES, KUBERNETES_REPORTED, LABELLED
from gpufleet.model.declared import DeclaredGpus, DeclaredResource
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.time import to_datetime

Place = tuple[str, str, str]
"""Cluster, machine and reader."""


class Word(msgspec.Struct):
    """What was said last of one metric and resource; no value where it has ended."""

    metric: str
    resource: str
    value: int | None
    measured_at: int
    received_at: int


Said = dict[Place, list[Word]]


def said_in(batches: Iterable[AcceptedBatch], since: int) -> Said:
    """Return what is said now."""
    newest: dict[Place, dict[tuple[str, str], Word]] = {}
    for one in batches:
        for id_, report in zip(one.machine_ids, to_rows(one.batch).reports, strict=True):
            for sample in report.samples:
                for dim in sample.dims:
                    if dim.metric in KUBERNETES_REPORTED:
                        words = newest.setdefault((one.batch.cluster, id_, sample.reader), {})
                        value = None if isinstance(dim.value, Absent) else int(dim.value)
                        word = Word(dim.metric, dim.labels[0], value, sample.measured_at, one.received_at)
                        before = words.get((word.metric, word.resource), word)
                        words[word.metric, word.resource] = max(before, word, key=lambda each: each.measured_at)
    return {
        place: kept
        for place, words in newest.items()
        if (kept := [word for word in words.values() if word.value is not None and word.received_at >= since])
    }


def gpus(
    said: Said, buses: Mapping[tuple[str, str], int], without: Sequence[str]
) -> dict[str, tuple[DeclaredGpus, ...]]:
    """Return cluster to what each reporter counts."""
    counting = {
        place: words
        for place, words in said.items()
        if place[1] not in without and _sum(words, CAPACITY, GPU_RESOURCES) is not None
    }
    found: dict[str, dict[str, DeclaredGpus]] = {}
    for (cluster, machine, reader), words in sorted(counting.items()):
        others = {place[2]: _received(each) for place, each in counting.items() if place[:2] == (cluster, machine)}
        is_newest = reader == min(others, key=lambda each: (-others[each], each))
        count = _sum(words, CAPACITY, GPU_RESOURCES) or 0
        whole = _whole(count, _sum(words, LABELLED), buses.get((cluster, machine), 0))
        allocatable = _sum(words, ALLOCATABLE, GPU_RESOURCES)
        before = found.setdefault(cluster, {}).get(reader)
        measured, received = to_datetime(max(word.measured_at for word in words)), to_datetime(_received(words))
        found[cluster][reader] = DeclaredGpus(
            reader=reader,
            machines=1 + (before.machines if before else 0),
            gpus=count + (before.gpus if before else 0),
            allocatable=_add(allocatable, before.allocatable if before else None),
            counted=count * is_newest + (before.counted if before else 0),
            shares=(count - whole) * is_newest + (before.shares if before else 0),
            measured_at=max(measured, before.measured_at) if before else measured,
            received_at=max(received, before.received_at) if before else received,
        )
    return {cluster: tuple(readers.values()) for cluster, readers in found.items()}


def resources(said: Said, cluster: str, machines: Sequence[str]) -> dict[str, tuple[DeclaredResource, ...]]:
    """Return machine to what is said of it."""
    found: dict[str, list[DeclaredResource]] = {}
    for (of, machine, reader), words in sorted(said.items()):
        if of != cluster or machine not in machines:
            continue
        for resource in sorted({word.resource for word in words}):
            mine = [word for word in words if word.resource == resource]
            has, labelled = _sum(mine, CAPACITY), _sum(mine, LABELLED)
            found.setdefault(machine, []).append(
                DeclaredResource(
                    resource=resource,
                    capacity=labelled if has is None else has,
                    allocatable=_sum(mine, ALLOCATABLE),
                    reader=reader,
                    measured_at=to_datetime(max(word.measured_at for word in mine)),
                    received_at=to_datetime(_received(mine)),
                )
            )
    return {machine: tuple(each) for machine, each in found.items()}


def _whole(count: int, labelled: int | None, on_bus: int) -> int:
    if labelled is not None and count > labelled:
        return labelled
    return on_bus if on_bus and count >= 2 * on_bus and count % on_bus == 0 else count


def _sum(words: Iterable[Word], metric: str, only: Sequence[str] = ()) -> int | None:
    counts = [word.value or 0 for word in words if word.metric == metric and (not only or word.resource in only)]
    return sum(counts) if counts else None


def _received(words: Iterable[Word]) -> int:
    return max(word.received_at for word in words)


def _add(one: int | None, other: int | None) -> int | None:
    return other if one is None else one + (other or 0)
