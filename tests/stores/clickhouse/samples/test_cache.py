"""Caches: answers equal the tables during concurrent reads and writes."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.stores.clickhouse.samples.cache import ContentCache, NewestRowCache, ResultRow
from gpufleet.stores.clickhouse.schema.columns import Columns

ONE, OTHER = ("c", "one"), ("c", "other")


def test_answer_is_cached_until_a_write_about_the_machine() -> None:
    cache = ContentCache[str](enabled=True)
    with cache.reading([ONE, OTHER]) as may_keep:
        cache.keep(may_keep, ONE, "first")
        cache.keep(may_keep, OTHER, "other")
    with cache.writing([ONE]):
        assert cache.known([ONE, OTHER]) == {OTHER: "other"}
    assert cache.known([ONE, OTHER]) == {OTHER: "other"}
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "second")
    assert cache.known([ONE]) == {ONE: "second"}


def test_answer_concurrent_with_a_write_is_not_cached() -> None:
    cache = ContentCache[str](enabled=True)
    with cache.reading([ONE, OTHER]) as before, cache.reading([ONE]) as another:
        with cache.writing([ONE]), cache.reading([ONE, OTHER]) as within:
            cache.keep(before, ONE, "before the write")
            cache.keep(within, ONE, "half of the write")
        cache.keep(within, ONE, "half of the write")
        cache.keep(another, ONE, "before the write")
        cache.keep(before, OTHER, "other")
    assert cache.known([ONE, OTHER]) == {OTHER: "other"}


def test_failed_write_also_clears_the_cache() -> None:
    cache = ContentCache[str](enabled=True)
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "before")
    try:
        with cache.writing([ONE]):
            raise OSError("no space left")
    except OSError:
        assert cache.known([ONE]) == {}
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "after")
    assert cache.known([ONE]) == {ONE: "after"}


def test_disabled_cache_keeps_nothing() -> None:
    cache = ContentCache[str](enabled=False)
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "first")
    assert cache.known([ONE]) == {}


def test_full_cache_is_cleared() -> None:
    cache = ContentCache[str](enabled=True)
    machines = [("c", f"m{number}") for number in range(1000)]
    with cache.reading(machines) as may_keep:
        for machine in machines:
            cache.keep(may_keep, machine, "a hundred views", 100)
    known = cache.known(machines)
    assert len(known) <= 500
    assert machines[-1] in known
    with cache.reading([ONE]) as may_keep:
        cache.keep(may_keep, ONE, "exceeds the capacity", 10**9)
    assert cache.known([*machines, ONE]) == known


class Table:
    """Rows of cluster, machine, reader, state and time of report."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.rows: list[tuple[str, str, str, str, int]] = []
        self.cache = NewestRowCache(("machine", "reader", "state", "reported_at"), key=2, limit=limit)
        self.queried: list[str] = []

    def write(self, *rows: tuple[str, str, str, str, int]) -> None:
        self.rows += rows
        names = ("cluster", "machine", "reader", "state", "reported_at")
        columns: Columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        self.cache.add(columns)

    def newest(self, cluster: str, machines: Sequence[str]) -> list[ResultRow]:
        found: dict[tuple[str, ...], ResultRow] = {}
        for row in sorted(self.rows, key=lambda row: row[4]):
            if row[0] == cluster and row[1] in machines:
                found[row[1:3]] = row[1:]
        return [found[key] for key in sorted(found)]

    def query(self, machines: Sequence[str]) -> list[ResultRow]:
        self.queried += machines
        return self.newest("c", machines)


ROWS = st.tuples(*map(st.sampled_from, ("cd", "mn", "xyz", "ab")), st.integers(0, 20))


@given(st.lists(st.tuples(st.lists(ROWS, max_size=5), st.sampled_from(((), ("m",), ("n", "m"))))))
def test_newest_rows_equal_the_table(
    writes: list[tuple[list[tuple[str, str, str, str, int]], tuple[str, ...]]],
) -> None:
    table = Table()
    for rows, read in writes:
        table.write(*rows)
        assert table.cache.fetch("c", read, table.query) == table.newest("c", read)
    assert len(table.queried) == len(set(table.queried))


def test_older_row_that_arrives_late_changes_nothing() -> None:
    table = Table()
    table.cache.fetch("c", ["m"], table.query)
    table.write(("c", "m", "x", "new", 2))
    table.write(("c", "m", "x", "old", 1))
    assert table.cache.fetch("c", ["m"], table.query) == [("m", "x", "new", 2)]


def test_row_written_during_the_query_is_kept() -> None:
    table = Table()

    def query(machines: Sequence[str]) -> list[ResultRow]:
        found = table.query(machines)
        table.write(("c", "m", "x", "new", 2))
        return found

    table.write(("c", "m", "x", "old", 1))
    table.cache.fetch("c", ["m"], query)
    assert table.cache.fetch("c", ["m"], query) == [("m", "x", "new", 2)]


def test_query_during_which_the_cache_was_dropped_is_not_kept() -> None:
    table = Table()

    def query(machines: Sequence[str]) -> list[ResultRow]:
        table.cache.drop()
        return table.query(machines)

    table.cache.fetch("c", ["m"], query)
    table.write(("c", "m", "x", "new", 1))
    assert table.cache.fetch("c", ["m"], table.query) == [("m", "x", "new", 1)]
    assert table.queried == ["m", "m"]


def test_only_the_largest_cluster_is_dropped_above_the_size() -> None:
    table = Table(limit=10_000)
    table.cache.fetch("c", ["m"], table.query)
    table.cache.fetch("d", ["m"], lambda _: [])
    table.write(*(("d", "m", f"reader {number}", "a" * 500, 1) for number in range(20)))
    table.cache.fetch("c", ["m"], table.query)
    assert table.queried == ["m"]
    again: list[str] = []

    def query(machines: Sequence[str]) -> list[ResultRow]:
        again.extend(machines)
        return []

    table.cache.fetch("d", ["m"], query)
    assert again == ["m"]
