"""Lists that are known by their bytes: told again they are the same object, and memory for them is bounded."""

from collections.abc import Sequence

import msgspec
import pytest

from gpufleet.codecs.batch.tables import ENTRY_BYTES, LARGEST_BYTES, TableCache
from gpufleet.model.errors import WireError
from gpufleet.model.machine import Machine

NAMED = ENTRY_BYTES * 2
"""What a list of one machine takes beside its bytes."""


def raw(*names: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode([Machine(name=name) for name in names]))


def size(told: msgspec.Raw) -> int:
    return len(bytes(told)) + NAMED


class Checks:
    """Counts how often a list was unpacked and looked at."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, machines: Sequence[Machine]) -> None:
        self.times += 1
        if any(not machine.name for machine in machines):
            raise WireError("machines", "empty")


def test_what_is_told_again_is_unpacked_once() -> None:
    checks = Checks()
    tables = TableCache("machines", Machine, checks, most_bytes=10_000)
    first = tables.of(raw("a"))
    assert first == [Machine(name="a")]
    assert tables.of(raw("a")) is first
    assert checks.times == 1


def test_what_was_asked_for_longest_ago_goes_first() -> None:
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


def test_a_fleet_that_fits_is_found_however_often_it_comes_round() -> None:
    fleet = [raw(f"node-{number:03}") for number in range(100)]
    checks = Checks()
    tables = TableCache("machines", Machine, checks, most_bytes=sum(map(size, fleet)))
    for _ in range(3):
        for told in fleet:
            tables.of(told)
    assert checks.times == len(fleet)


def test_a_very_long_list_is_not_kept() -> None:
    checks = Checks()
    tables = TableCache("machines", Machine, checks, most_bytes=1 << 30)
    long = raw(*("n" * 200 for _ in range(LARGEST_BYTES // 200)))
    assert tables.of(long) == tables.of(long)
    assert checks.times == 2


def test_what_breaks_the_format_is_refused_each_time() -> None:
    tables = TableCache("machines", Machine, Checks(), most_bytes=10_000)
    for _ in range(2):
        with pytest.raises(WireError) as caught:
            tables.of(raw(""))
        assert caught.value.field == "machines"
        with pytest.raises(WireError) as caught:
            tables.of(msgspec.Raw(msgspec.msgpack.encode([1])))
        assert caught.value.field == "machines[0]"
