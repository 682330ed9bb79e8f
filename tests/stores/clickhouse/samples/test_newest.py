"""Newest samples in memory: equal to a model after rows in any order, written or loaded."""

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.catalogue import CATALOGUE, Storage, ValueType
from gpufleet.stores.clickhouse.samples.cluster_samples import COPIED
from gpufleet.stores.clickhouse.samples.keys import dictionary_column
from gpufleet.stores.clickhouse.samples.newest import START, NewestContent, NewestSamples
from gpufleet.stores.clickhouse.samples.newest_rows import ValueGroup, value_of
from gpufleet.stores.clickhouse.schema.columns import Columns, IndexedColumn, NumericArray, dictionary_of

POWER, MEMORY, STATE = (
    CATALOGUE[name] for name in ("gpu_power_watts", "gpu_memory_used_bytes", "gpu_performance_state")
)
METRICS = (POWER, MEMORY, STATE)
SHAPES = ((POWER, MEMORY), (MEMORY,), (), (STATE, POWER))

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
        metric.name: value_of(metric, cell) for metric, cell in zip(metrics, row[9], strict=False) if cell is not None
    }


def number_of(row: Row) -> int:
    """Return the number of a row's subject: ranges of numbers with gaps between them, as after restarts."""
    cluster, machine, view, reader, lane = row[:5]
    place = ("", "gpu/1", "gpu/2").index(view) * 4 + ("nvml", "dcgm").index(reader) * 2 + ("fast", "slow").index(lane)
    return 1 + place + 70_000 * (2 * "ab".index(cluster) + "mn".index(machine))


def add_rows(
    memory: NewestSamples, rows: Sequence[Row], to: NewestContent | None = None, *, is_unsaved: bool = False
) -> list[Row]:
    ordered, head, groups = columns_of(rows)
    memory.add(np.array([number_of(row) for row in ordered], np.int64), head, groups, to, is_unsaved=is_unsaved)
    return ordered


def loaded() -> NewestSamples:
    """Return the newest samples of an empty store."""
    memory = NewestSamples()
    memory.content.is_loaded = True
    return memory


def answer(memory: NewestSamples, cluster: str, machine: str) -> dict[tuple[str, ...], Any]:
    rows = memory.read(cluster, [machine])
    assert rows is not None
    return {
        (row.view, row.reader, row.lane): (row.measured_at, row.info_set, row.provenance, row.values) for row in rows
    }


def in_columns(memory: NewestSamples, cluster: str, size: int) -> dict[str, dict[tuple[str, ...], Any]]:
    """Return the answers of all machines, read in columns, with states as numbers."""
    pages = memory.pages(cluster)
    assert pages is not None
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for machines in pages.ranges(size):
        page = pages.read(machines, METRICS, ("", "gpu"))
        for column in (page.machine, page.view, page.reader, page.lane):
            assert len(column.texts) == len(set(column.texts))
        for column in (page.machine, page.reader, page.lane):
            assert len(column.texts) == len(np.unique(column.rows))
        for row in range(len(page)):
            machine, *subject = (
                column.texts[column.rows[row]] for column in (page.machine, page.view, page.reader, page.lane)
            )
            values = {name: cells[row] for name, cells in page.values.items() if not np.isnan(cells[row])}
            provenance = "imported" if page.imported[row] else "host_local_probe"
            answer = int(page.measured_at[row]), int(page.info_set[row]), provenance, values
            found.setdefault(machine, {})[tuple(subject)] = answer
    return found


def as_numbers(answer: dict[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """Return an answer with states as numbers."""

    def number(name: str, value: Any) -> float:
        return float(CATALOGUE[name].states.index(value) if isinstance(value, str) else value)

    return {
        subject: (*rest, {name: number(name, value) for name, value in values.items()})
        for subject, (*rest, values) in answer.items()
    }


@given(st.lists(st.tuples(st.lists(ROWS, max_size=12), st.booleans()), max_size=6), st.integers(1, 4))
def test_answers_equal_a_model(writes: list[tuple[list[Row], bool]], size: int) -> None:
    memory, model = NewestSamples(), Model()
    reports: dict[tuple[Any, ...], Row] = {}
    later: list[list[Row]] = []
    for rows, is_loaded_later in writes:
        # The order of reports is strict: a subject's row at a place in the order is always the same, as after a retry.
        unique = [reports.setdefault(row[:7], row) for row in rows]
        model.rows += columns_of(unique)[0]
        if is_loaded_later:
            later.append(unique)
        else:
            add_rows(memory, unique)
    assert memory.read("a", ["m"]) is None
    assert memory.shared_gpus(0) is None
    for unique in later:
        add_rows(memory, unique, memory.content)
    memory.content.is_loaded = True
    for cluster in "ab":
        expected = {machine: model.newest(cluster, machine) for machine in "mn"}
        assert {machine: answer(memory, cluster, machine) for machine in "mn"} == expected
        columns = in_columns(memory, cluster, size)
        assert columns == {machine: as_numbers(found) for machine, found in expected.items() if found}


def row(machine: str, known_at: int, power: int, *, view: str = "gpu/1") -> Row:
    return ("a", machine, view, "nvml", "fast", known_at, known_at, "host_local_probe", 0, (power, 0))


def test_rows_of_one_view_with_some_metrics() -> None:
    memory = loaded()
    add_rows(memory, [row("m", 1, 100), row("m", 1, 101, view="gpu/2")])
    rows = memory.read("a", ["m", "n"], "gpu/2", {POWER.name})
    assert rows is not None
    assert [one.values for one in rows] == [{POWER.name: 101.0}]
    assert memory.read("a", ["m"], "gpu/3") == []


def test_rows_of_dropped_content_are_left_out() -> None:
    memory = NewestSamples()
    content = memory.content
    memory.drop()
    add_rows(memory, [row("m", 1, 100)], content)
    content.is_loaded = memory.content.is_loaded = True
    assert memory.read("a", ["m"]) == []


def test_rows_added_after_a_drop_are_unsaved_although_earlier_rows_are_saved() -> None:
    """Another subject has the place of the one that was copied."""
    memory = NewestSamples()
    add_rows(memory, [row("m", 1, 100)], is_unsaved=True)
    copied = memory.copy_unsaved(START, 10)
    assert copied is not None
    memory.drop()
    add_rows(memory, [row("n", 1, 100)], is_unsaved=True)
    memory.mark_saved(copied)
    unsaved = memory.copy_unsaved(START, 10)
    assert unsaved is not None
    assert dictionary_of(unsaved.columns["machine"]).texts == ["n"]
    assert memory.losses == 1


def test_failed_addition_drops_the_content() -> None:
    memory = loaded()
    add_rows(memory, [row("m", 1, 100)])
    _, head, groups = columns_of([row("m", 2, 200)])
    wrong = ValueGroup(groups[0].metrics, [["no number"], [1]], 1)
    with pytest.raises(ValueError, match="no number"):
        memory.add(np.array([1]), head, [wrong])
    assert memory.read("a", ["m"]) is None


def many(cluster: str, count: int) -> tuple[NumericArray, Columns, list[ValueGroup]]:
    """Return rows of as many views, readers and lanes as arguments of `add`."""
    rows = [(cluster, "m", f"gpu/{number}", f"reader {number}", *row("m", 1, 100)[4:]) for number in range(count)]
    _, head, groups = columns_of(rows)
    return np.arange(count) + 200_000, head, groups


def test_only_the_largest_cluster_is_left_to_the_store_above_the_limit() -> None:
    memory = NewestSamples(limit=150_000)
    memory.content.is_loaded = True
    add_rows(memory, [row("m", 1, 100)])
    memory.add(*many("b", 1000))
    memory.add(*many("b", 1000))
    assert memory.read("b", ["m"]) is None
    assert memory.pages("b") is None
    assert memory.shared_gpus(0) is None
    assert memory.read("a", ["m"])
    assert memory.size < 50_000


def test_space_of_a_former_list_of_metrics_is_freed() -> None:
    memory = loaded()
    views = [f"gpu/{number}" for number in range(1000)]
    sizes = []
    for known_at in range(1, 12):
        shape = known_at % 2
        _, head, groups = columns_of([("a", "m", view, *row("m", known_at, 1)[3:8], shape, (1, 1)) for view in views])
        memory.add(np.arange(1000), head, groups)
        sizes.append(memory.size)
    assert sizes[-1] < 1.1 * sizes[0]


def test_gpu_with_40_values_takes_about_half_a_kibibyte() -> None:
    metrics = [
        one for one in CATALOGUE.values() if one.storage in (Storage.CORE, Storage.TAIL) and one.type is ValueType.FLOAT
    ]
    memory, batches = NewestSamples(), 16
    count = 512
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for batch in range(batches):
        numbers = np.arange(count) + batch * count
        keys = [f"gpu/GPU-{number:08x}-0000-4000-8000-000000000000" for number in numbers.tolist()]
        head: Columns = {
            "cluster": dictionary_column(["a"] * count),
            "machine": dictionary_column(f"{number // 8:032x}" for number in numbers.tolist()),
            "view": IndexedColumn(keys, np.arange(count)),
            **{name: dictionary_column([name] * count) for name in ("reader", "lane", "provenance")},
            **{name: np.zeros(count, kind) for name, kind in COPIED.items()},
        }
        columns = [np.ones(count) for _ in range(40)]
        memory.add(numbers, head, [ValueGroup(tuple(one.id for one in metrics[:40]), columns, count)])
        del keys, head, columns, numbers
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used / (count * batches) < 600
    assert 0.9 < memory.size / used < 1.1
