"""Newest samples in memory: equal to a model after rows in any order, whenever machines are loaded."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.catalogue import CATALOGUE, ValueType
from gpufleet.stores.clickhouse.samples import newest
from gpufleet.stores.clickhouse.samples.keys import dictionary_column
from gpufleet.stores.clickhouse.samples.newest import NewestSamples, ValueGroup
from gpufleet.stores.clickhouse.schema.columns import Columns, IndexedColumn

POWER, FAN, PERFORMANCE = (
    CATALOGUE[name] for name in ("gpu_power_watts", "gpu_memory_used_bytes", "gpu_performance_state")
)
SHAPES = ((POWER, FAN), (FAN,), (), (PERFORMANCE, POWER))

Row = tuple[str, str, str, str, str, int, int, str, int, tuple[int | None, ...]]
"""Cluster, machine, view, reader, lane, place in the order, time, provenance, shape, and a number per metric."""

ROWS = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from("mn"),
    st.sampled_from(("", "gpu/1", "gpu/2")),
    st.sampled_from(("nvml", "dcgm")),
    st.sampled_from(("fast", "slow")),
    st.integers(0, 15),
    st.integers(0, 3),
    st.sampled_from(("host_local_probe", "imported")),
    st.integers(0, len(SHAPES) - 1),
    st.tuples(*[st.none() | st.integers(0, 12)] * 2),
)


def columns_of(rows: Sequence[Row]) -> tuple[list[Row], Columns, list[ValueGroup]]:
    """Return rows in the order of their shapes, and as the arguments of `add`."""
    rows = sorted(rows, key=lambda row: row[8])
    cells = list(zip(*rows, strict=True)) or [()] * 10
    names = ("cluster", "machine", "reader", "lane", "provenance")
    head: Columns = {name: dictionary_column(cells[place]) for name, place in zip(names, (0, 1, 3, 4, 7), strict=True)}
    head["view"] = IndexedColumn(cells[2], np.arange(len(rows)))
    head["known_at"], head["measured_at"] = np.array(cells[5], np.int64), np.array(cells[6], np.int64)
    head["received_at"] = np.array(cells[6], np.int64) + 100
    for name in ("driver_session", "absence_set"):
        head[name] = np.array(cells[5], np.uint64)
    head["info_set"] = [info_set(at) for at in cells[5]]
    head["has_totals"] = np.array([shape < 2 for shape in cells[8]], np.bool_)
    groups = []
    for number, metrics in enumerate(SHAPES):
        some = [row[9] for row in rows if row[8] == number]
        columns: list[Any] = [[one[place] for one in some] for place in range(len(metrics))]
        packed = [
            one if None in one else np.array(one, np.float64 if metric.type is ValueType.FLOAT else np.int64)
            for metric, one in zip(metrics, columns, strict=True)
        ]
        groups.append(ValueGroup(tuple(metric.id for metric in metrics), packed, len(some)))
    return rows, head, groups


def info_set(at: int) -> int:
    """Return an id of 64 bits, for some rows above the largest signed number."""
    return at << 60


class Model:
    """All rows that were written; the newest is found by search."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def newest(self, cluster: str, machine: str) -> dict[tuple[str, ...], tuple[int, int, str, dict[str, Any]]]:
        found: dict[tuple[str, ...], Row] = {}
        for row in self.rows:
            place = row[2:5]
            if row[:2] == (cluster, machine) and (place not in found or row[5:7] >= found[place][5:7]):
                found[place] = row
        return {place: (row[6], info_set(row[5]), row[7], values_of(row)) for place, row in found.items()}


def values_of(row: Row) -> dict[str, Any]:
    metrics = SHAPES[row[8]]
    return {
        metric.name: newest.value_of(metric, cell)
        for metric, cell in zip(metrics, row[9], strict=False)
        if cell is not None
    }


def answer(memory: NewestSamples, model: Model, cluster: str, machine: str) -> dict[tuple[str, ...], Any]:
    """Return the newest samples; if the machine must be loaded, from the rows of the model."""
    read = memory.read(cluster, [machine])
    if read.missing:
        _, head, groups = columns_of([row for row in model.rows if row[:2] == (cluster, machine)])
        memory.load(read, cluster, head, groups)
        read = memory.read(cluster, [machine])
    assert not read.missing
    return {
        (row.view, row.reader, row.lane): (row.measured_at, row.info_set, row.provenance, row.values)
        for row in read.rows
    }


@given(st.lists(st.tuples(st.lists(ROWS, max_size=12), st.none() | st.tuples(*[st.booleans()] * 2)), max_size=6))
def test_answers_equal_a_model(writes: list[tuple[list[Row], tuple[bool, bool] | None]]) -> None:
    memory, model = NewestSamples(), Model()
    reports: dict[tuple[Any, ...], Row] = {}
    for rows, requested in writes:
        # The order of reports is strict: a subject's row at a place in the order is always the same, as after a retry.
        ordered, head, groups = columns_of([reports.setdefault(row[:7], row) for row in rows])
        model.rows += ordered
        memory.add(head, groups)
        if requested is not None:
            cluster, machine = "ab"[requested[0]], "mn"[requested[1]]
            assert answer(memory, model, cluster, machine) == model.newest(cluster, machine)
    for cluster in "ab":
        for machine in "mn":
            assert answer(memory, model, cluster, machine) == model.newest(cluster, machine)


def row(machine: str, known_at: int, power: int, *, view: str = "gpu/1") -> Row:
    return ("a", machine, view, "nvml", "fast", known_at, known_at, "host_local_probe", 0, (power, 0))


def add(memory: NewestSamples, *rows: Row) -> None:
    _, head, groups = columns_of(rows)
    memory.add(head, groups)


def powers(memory: NewestSamples, machine: str, view: str | None = None) -> list[Any]:
    return [one.values["gpu_power_watts"] for one in memory.read("a", [machine], view).rows]


def test_row_written_during_a_load_is_kept() -> None:
    memory = NewestSamples()
    read = memory.read("a", ["m"])
    add(memory, row("m", 2, 200))
    _, head, groups = columns_of([row("m", 1, 100)])
    memory.load(read, "a", head, groups)
    assert powers(memory, "m") == [200]


def test_load_of_dropped_content_is_left_out() -> None:
    memory = NewestSamples()
    read = memory.read("a", ["m"])
    memory.drop()
    memory.read("a", ["m"])
    _, head, groups = columns_of([row("m", 1, 100)])
    memory.load(read, "a", head, groups)
    assert memory.read("a", ["m"]).missing == ["m"]


def test_rows_of_one_view() -> None:
    memory = NewestSamples()
    _, head, groups = columns_of([row("m", 1, 100), row("m", 1, 101, view="gpu/2")])
    memory.load(memory.read("a", ["m"]), "a", head, groups)
    assert powers(memory, "m", "gpu/2") == [101]
    assert powers(memory, "m", "gpu/3") == []


def load(memory: NewestSamples, cluster: str, machine: str, *rows: Row) -> None:
    _, head, groups = columns_of(rows)
    memory.load(memory.read(cluster, [machine]), cluster, head, groups)


def test_only_the_largest_cluster_is_dropped_above_the_limit() -> None:
    memory = NewestSamples(limit=100_000)
    load(memory, "a", "m", row("m", 1, 100))
    load(memory, "b", "m", ("b", *row("m", 1, 100)[1:]))
    add(memory, *(("b", *row("m", 1, 100, view=f"gpu/{number}")[1:]) for number in range(1000)))
    assert powers(memory, "m") == [100]
    assert memory.read("b", ["m"]).missing == ["m"]
    assert memory.size < 100_000


def test_names_and_lists_of_metrics_of_a_sender_count() -> None:
    memory = NewestSamples(limit=100_000)
    load(memory, "a", "m", row("m", 1, 100))
    load(memory, "b", "m", ("b", *row("m", 1, 100)[1:]))
    for number in range(1000):
        add(memory, ("b", "m", "gpu/1", f"reader {number}", *row("m", 1, 100)[4:]))
    assert powers(memory, "m") == [100]
    assert memory.read("b", ["m"]).missing == ["m"]


def test_space_of_a_former_list_of_metrics_is_freed() -> None:
    memory = NewestSamples()
    views = [f"gpu/{number}" for number in range(1000)]
    load(memory, "a", "m", *(row("m", 1, 100, view=view) for view in views))
    size = memory.size
    for known_at in range(2, 12):
        shape = known_at % 2
        add(memory, *(("a", "m", view, *row("m", known_at, 1)[3:8], shape, (1, 1)) for view in views))
    assert memory.size < 1.1 * size


def test_rows_of_machines_that_are_not_requested_take_no_memory() -> None:
    memory = NewestSamples()
    load(memory, "a", "m", row("m", 1, 100))
    size = memory.size
    add(memory, *(("a", f"n{number}", "gpu/1", f"reader {number}", *row("m", 2, 1)[4:]) for number in range(100)))
    assert memory.size == size
