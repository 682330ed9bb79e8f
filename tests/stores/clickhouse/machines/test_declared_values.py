"""Declarations in memory: sums and resources equal a count over all rows, after rows in any order."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.model.catalogue.kubernetes import (
    ALLOCATABLE,
    ALLOCATED,
    CAPACITY,
    GPU_RESOURCES,
    KUBERNETES_METRICS,
    LABELLED,
    PUBLISHED_GPUS,
)
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.time import to_datetime
from gpufleet.stores.clickhouse.machines.counts import BusReports, GpuCounts
from gpufleet.stores.clickhouse.machines.declared_values import MAX_RESOURCES_PER_MACHINE, DeclaredValues
from gpufleet.stores.clickhouse.samples.keys import dictionary_column
from gpufleet.stores.clickhouse.schema.columns import Columns
from tests.support.profiles import examples

MIG, LABEL = "nvidia_com_mig_1g_10gb", "nvidia.com/gpu.count"


class Row(NamedTuple):
    """Row of the table `declared`."""

    cluster: str
    machine: str
    reader: str
    metric: str
    resource: str
    value: int | None
    measured_at: int
    received_at: int


ROWS = st.builds(
    Row,
    cluster=st.sampled_from("aaab"),
    machine=st.sampled_from("mmno"),
    reader=st.sampled_from(("z", "x", "y")),
    metric=st.sampled_from([CAPACITY, *(metric.name for metric in KUBERNETES_METRICS)]),
    resource=st.sampled_from((GPU_RESOURCES[0], *GPU_RESOURCES, PUBLISHED_GPUS, PUBLISHED_GPUS, MIG)),
    value=st.sampled_from((None, 0, 1, 2, 4, 8, 2**31)),
    measured_at=st.integers(1, 9),
    received_at=st.integers(1, 9),
).map(lambda row: row._replace(resource=LABEL) if row.metric == LABELLED else row)

BUSES = st.dictionaries(st.tuples(st.sampled_from("ab"), st.sampled_from("mno")), st.sampled_from((0, 1, 2, 4)))


def columns_of(rows: Sequence[Row]) -> Columns:
    return {name: [getattr(row, name) for row in rows] for name in Row._fields}


def newest(rows: Sequence[Row], since: int) -> list[Row]:
    """Return the newest row of each place, without those that have ended or are older."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        place = row[:5]
        if place not in found or row.measured_at >= found[place].measured_at:
            found[place] = row
    return [row for row in found.values() if row.value is not None and row.received_at >= since]


class Reported:
    """What a reader declares for a machine."""

    def __init__(self, rows: Sequence[Row], on_buses: int) -> None:
        values = {(row.metric, row.resource): row.value or 0 for row in rows}
        of_gpus = {metric: [values[metric, one] for one in GPU_RESOURCES if (metric, one) in values]
                   for metric in (CAPACITY, ALLOCATABLE, ALLOCATED)}  # fmt: skip
        self.published = values.get((CAPACITY, PUBLISHED_GPUS))
        self.declares = bool(of_gpus[CAPACITY]) or self.published is not None
        self.allocatable = sum(of_gpus[ALLOCATABLE]) if of_gpus[ALLOCATABLE] else None
        allocated = [*of_gpus[ALLOCATED], *([values[key]] if (key := (ALLOCATED, PUBLISHED_GPUS)) in values else [])]
        self.allocated = sum(allocated) if allocated else None
        devices, published, labelled = sum(of_gpus[CAPACITY]), self.published or 0, values.get((LABELLED, LABEL))
        whole = devices
        if labelled is not None and devices > labelled:
            whole = labelled
        elif on_buses > 0 and devices >= 2 * on_buses and devices % on_buses == 0:
            whole = on_buses
        separate = 0
        if devices > 0 and published > 0:
            separate = min(whole + published, on_buses if labelled is None else labelled)
        self.gpus = max(devices, published, separate)
        self.shares = self.gpus - max(published, whole, separate)
        published_at = [row.measured_at for row in rows if row[3:5] == (CAPACITY, PUBLISHED_GPUS)]
        others_at = [row.measured_at for row in rows if row[3:5] != (CAPACITY, PUBLISHED_GPUS)]
        self.measured_at = min(max(part) for part in (published_at, others_at) if part)
        self.received_at = max(row.received_at for row in rows)


def optional_sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def expected_gpus(
    rows: Sequence[Row], buses: dict[tuple[str, str], int], since: int, without: Sequence[str]
) -> dict[str, tuple[DeclaredGpus, ...]]:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in newest(rows, since):
        if row.machine not in without:
            groups.setdefault((row.cluster, row.machine, row.reader), []).append(row)
    reports = {place: Reported(own, buses.get(place[:2], 0)) for place, own in groups.items()}
    reports = {place: one for place, one in reports.items() if one.declares}
    best: dict[tuple[str, str], tuple[str, str, str]] = {}
    for place, _ in sorted(reports.items(), key=lambda one: (one[1].published is None, -one[1].received_at, one[0][2])):
        best.setdefault(place[:2], place)
    found: dict[str, tuple[DeclaredGpus, ...]] = {}
    for cluster, reader in sorted({(place[0], place[2]) for place in reports}):
        own = {place: one for place, one in reports.items() if (place[0], place[2]) == (cluster, reader)}
        counted = [one for place, one in own.items() if best[place[:2]] == place]
        found[cluster] = (*found.get(cluster, ()), DeclaredGpus(
            reader=reader,
            machines=len(own),
            gpus=sum(one.gpus for one in own.values()),
            allocatable=optional_sum([one.allocatable for one in own.values()]),
            allocated=optional_sum([one.allocated for one in own.values()]),
            published=optional_sum([one.published for one in own.values()]),
            counted=sum(one.gpus for one in counted),
            shares=sum(one.shares for one in counted),
            measured_at=to_datetime(max(one.measured_at for one in own.values())),
            received_at=to_datetime(max(one.received_at for one in own.values())),
        ))  # fmt: skip
    return found


def expected_resources(rows: Sequence[Row], cluster: str, machine: str, since: int) -> tuple[DeclaredResource, ...]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in newest(rows, since):
        if (row.cluster, row.machine) == (cluster, machine):
            groups.setdefault((row.reader, row.resource), []).append(row)
    found = []
    for (reader, resource), own in sorted(groups.items()):
        values = {row.metric: row.value for row in own}
        found.append(
            DeclaredResource(
                resource=resource,
                capacity=values.get(CAPACITY, values.get(LABELLED)),
                allocatable=values.get(ALLOCATABLE),
                reader=reader,
                measured_at=to_datetime(max(row.measured_at for row in own)),
                received_at=to_datetime(max(row.received_at for row in own)),
            )
        )
    return tuple(found)


def counts_of(buses: dict[tuple[str, str], int]) -> GpuCounts:
    counts = GpuCounts()
    clusters, machines = (dictionary_column([place[part] for place in buses]) for part in (0, 1))
    gpus = np.array(list(buses.values()), np.int64)
    counts.add_buses(BusReports(clusters, machines, gpus, np.ones(len(buses), np.int64)))
    return counts


@settings(max_examples=examples(ci=200, long=5000))
@given(st.lists(st.lists(ROWS, max_size=20), max_size=4), BUSES, st.integers(0, 9), st.sets(st.sampled_from("mno")))
def test_answers_equal_a_count(
    writes: list[list[Row]], buses: dict[tuple[str, str], int], since: int, retired: set[str]
) -> None:
    memory, counts, rows = DeclaredValues(), counts_of(buses), list[Row]()
    for written in writes:
        memory.add(columns_of(written))
        rows += written
        for without in ((), sorted(retired)):
            assert memory.gpus(since, without, counts) == expected_gpus(rows, buses, since, without)
        for cluster in "ab":
            expected = {machine: expected_resources(rows, cluster, machine, since) for machine in "mno"}
            assert memory.resources(cluster, ["o", "m", "n", "unknown"], since) == {
                machine: own for machine, own in expected.items() if own
            }
    assert len(memory) == len({row[:5] for row in rows})


def test_resources_of_a_machine_are_bounded() -> None:
    memory = DeclaredValues()
    rows = [Row("a", "m", "x", CAPACITY, f"resource_{number:03d}", number, 1, 1) for number in range(200)]
    memory.add(columns_of(rows))
    found = memory.resources("a", ["m"], 0)["m"]
    assert [one.resource for one in found] == [row.resource for row in rows[:MAX_RESOURCES_PER_MACHINE]]
