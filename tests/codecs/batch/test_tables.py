"""Table cache: equal bytes give the same object, in bounded memory."""

from collections.abc import Sequence

import msgspec
import pytest

from gpufleet.codecs.batch.tables import ENTRY_BYTES, LARGEST_BYTES, TableCache
from gpufleet.model.errors import WireError
from gpufleet.model.machine import Machine

NAMED = ENTRY_BYTES * 2
"""Memory of a cached list of one machine beside its bytes."""


def raw(*names: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode([Machine(name=name) for name in names]))


def size(table: msgspec.Raw) -> int:
    return len(bytes(table)) + NAMED


class Checks:
    """Counter of decoded lists."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, machines: Sequence[Machine]) -> None:
        self.times += 1
        if any(not machine.name for machine in machines):
            raise WireError("machines", "empty")


def test_repeated_table_is_decoded_once() -> None:
    checks = Checks()
    tables = TableCache("machines", Machine, checks, most_bytes=10_000)
    first = tables.of(raw("a"))
    assert first == [Machine(name="a")]
    assert tables.of(raw("a")) is first
    assert checks.times == 1


def test_least_recently_used_table_is_evicted() -> None:
    checks = Checks()
    tables = TableCache("machines", Machine, checks, most_bytes=3 * size(raw("a")))
    for name in ("a", "b", "c", "a", "d"):  # no room for the fourth: b goes
        tables.of(raw(name))
    assert checks.times == 4
    for name in ("a", "c", "d"):
        tables.of(raw(name))
    assert checks.times == 4
    tables.of(raw("b"))
    assert checks.times == 5


def test_fleet_within_the_limit_stays_cached() -> None:
    fleet = [raw(f"node-{number:03}") for number in range(100)]
    checks = Checks()
    tables = TableCache("machines", Machine, checks, most_bytes=sum(map(size, fleet)))
    for _ in range(3):
        for table in fleet:
            tables.of(table)
    assert checks.times == len(fleet)


def test_very_long_table_is_not_cached() -> None:
    checks = Checks()
    tables = TableCache("machines", Machine, checks, most_bytes=1 << 30)
    long = raw(*("n" * 200 for _ in range(LARGEST_BYTES // 200)))
    assert tables.of(long) == tables.of(long)
    assert checks.times == 2


def test_malformed_table_is_rejected_each_time() -> None:
    tables = TableCache("machines", Machine, Checks(), most_bytes=10_000)
    for _ in range(2):
        with pytest.raises(WireError) as caught:
            tables.of(raw(""))
        assert caught.value.field == "machines"
        with pytest.raises(WireError) as caught:
            tables.of(msgspec.Raw(msgspec.msgpack.encode([1])))
        assert caught.value.field == "machines[0]"
