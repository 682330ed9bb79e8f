"""Present holdings in memory: equal to a search in all reports, whenever machines are loaded and read."""

from collections.abc import Collection, Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.attribution.reported import HOLDING_TTL_NS, may_overlap
from gpufleet.model.holdings import Holder, HolderKind, Holding, HoldingVerdict
from gpufleet.model.stored.holdings import HoldingPlace, HoldingQuery, StoredHolding, holding_place
from gpufleet.model.time import LATEST, NANOS
from gpufleet.stores.clickhouse.machines.present_holdings import (
    PRUNE_NS,
    PresentHoldings,
    SizedHolding,
    is_of_machines,
    is_recent,
)
from tests.support.profiles import examples

T0 = 1_700_000_000 * NANOS
STEP = HOLDING_TTL_NS // 4
SIZE = 1_000


def report(
    machine: str, pod: str, *, since: int, at: int, until: int | None = None, cluster: str = "a"
) -> StoredHolding:
    """Return a report at a step of the clock; a report of an end is not before the end."""
    holding = Holding(
        view="gpu/GPU-1",
        holder=Holder(kind=HolderKind.POD, id=pod),
        since=T0 + since * STEP,
        until=None if until is None else T0 + min(until, at) * STEP,
        methods=(),
        verdict=HoldingVerdict.AGREED,
    )
    return StoredHolding(cluster=cluster, machine=machine, holding=holding, reported_at=T0 + at * STEP)


REPORTS = st.builds(
    report,
    machine=st.sampled_from("mmmn"),
    pod=st.sampled_from("pppq"),
    since=st.integers(0, 2),
    at=st.integers(0, 12),
    until=st.none() | st.integers(0, 12),
)


class Table:
    """All reports that were written; memory gets them after the table, as in a write of the store."""

    def __init__(self, memory: PresentHoldings) -> None:
        self._memory = memory
        self._rows: list[StoredHolding] = []
        self.loads = 0

    def write(self, rows: Sequence[StoredHolding]) -> None:
        self._rows += rows
        self._memory.add([SizedHolding(row, SIZE) for row in rows])

    def newest(self, machines: Collection[str]) -> list[StoredHolding]:
        found: dict[HoldingPlace, StoredHolding] = {}
        for row in self._rows:
            place = holding_place(row)
            if row.machine in machines and (place not in found or row.reported_at >= found[place].reported_at):
                found[place] = row
        return [found[place] for place in sorted(found)]

    def read(self, machines: Sequence[str], start: int, during: Sequence[StoredHolding] = ()) -> list[StoredHolding]:
        """Return the present holdings; `during` is written while machines are loaded."""

        def load(some: Sequence[str]) -> list[SizedHolding]:
            self.loads += 1
            rows = [SizedHolding(one, SIZE) for one in self.newest(some) if is_recent(one, start, LATEST)]
            self.write(during)
            return rows

        return self._memory.fetch("a", machines, start, load)


READS = st.tuples(st.sampled_from((["m"], ["n", "m"])), st.integers(0, 12), st.lists(REPORTS, max_size=2))


@settings(max_examples=examples(ci=200, long=5000))
@given(
    st.lists(st.tuples(st.lists(REPORTS, max_size=4), READS | st.none(), st.sampled_from((0, 0, 0, 1))), max_size=10)
)
def test_answers_equal_a_search(
    steps: list[tuple[list[StoredHolding], tuple[list[str], int, list[StoredHolding]] | None, int]],
) -> None:
    memory = PresentHoldings()
    table = Table(memory)
    reports: dict[tuple[HoldingPlace, int], StoredHolding] = {}

    def unique(rows: Sequence[StoredHolding]) -> list[StoredHolding]:
        """Return the same report for a place in the order, as after a retry."""
        return [reports.setdefault((holding_place(row), row.reported_at), row) for row in rows]

    for written, read, is_dropped in steps:
        table.write(unique(written))
        if is_dropped:
            memory.drop()
        if read is not None:
            machines, at, during = read
            table.read(machines, T0 + at * STEP, unique(during))
            expected = [one for one in table.newest(machines) if may_overlap(one, T0 + at * STEP, LATEST)]
            assert table.read(machines, T0 + at * STEP) == expected


def test_machine_is_loaded_once() -> None:
    table = Table(PresentHoldings())
    first, second = report("m", "p", since=0, at=1), report("m", "q", since=1, at=2)
    table.write([first])
    assert table.read(["m"], T0 + STEP) == [first]
    table.write([second, report("other", "q", since=1, at=2)])
    assert table.read(["m"], T0 + 2 * STEP) == [first, second]
    assert table.loads == 1


def test_machine_is_loaded_again_after_a_step_of_the_clock() -> None:
    table = Table(PresentHoldings())
    ended = report("m", "p", since=0, at=1, until=1)
    table.write([ended])
    assert table.read(["m"], T0 + 12 * STEP) == []
    for _ in range(3):
        assert table.read(["m"], T0) == [ended]
    assert table.loads == 2
    assert table.read(["m"], T0 + PRUNE_NS // 2) == [ended]
    assert table.loads == 2


def test_late_report_does_not_reopen_an_ended_holding() -> None:
    table = Table(PresentHoldings())
    table.write([report("m", "p", since=0, at=3, until=3)])
    assert table.read(["m"], T0 + 4 * STEP) == []
    table.read(["m"], T0 + 5 * STEP)  # the end is still needed
    table.write([report("m", "p", since=0, at=2)])
    assert table.read(["m"], T0 + 5 * STEP) == []
    assert table.loads == 1


def test_ended_holdings_take_no_memory() -> None:
    memory = PresentHoldings()
    table = Table(memory)
    table.read(["m"], T0)
    empty = memory.size
    for at in range(1, 100):
        table.write([report("m", f"pod {at}", since=at, at=at), report("m", f"pod {at}", since=at, at=at, until=at)])
        table.read(["m"], T0 + at * STEP)
    assert memory.size <= empty + 10 * SIZE
    assert table.loads == 1


def test_only_the_largest_cluster_is_dropped_above_the_limit() -> None:
    memory = PresentHoldings(limit=10 * SIZE)
    small = report("m", "p", since=0, at=0)
    memory.fetch("a", ["m"], T0, lambda _: [SizedHolding(small, SIZE)])
    memory.fetch("b", ["m"], T0, lambda _: [])
    pods = [report("m", f"pod {number}", since=0, at=0, cluster="b") for number in range(20)]
    memory.add([SizedHolding(pod, SIZE) for pod in pods])
    assert memory.fetch("a", ["m"], T0, lambda _: []) == [small]
    assert memory.fetch("b", ["m"], T0, lambda _: []) == []
    assert memory.size < 10 * SIZE


def test_queries_for_other_holdings_are_recognised() -> None:
    query = HoldingQuery(cluster="a", machines=("m",), start=T0, end=LATEST)
    assert is_of_machines(query)
    for changes in ({"end": T0 + 1}, {"machines": None}, {"ids": ("p",)}, {"name": "p"}, {"limit": 1}):
        assert not is_of_machines(msgspec.structs.replace(query, **changes))
