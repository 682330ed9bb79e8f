"""Absences of GPUs from their machine, by random histories of two readers and the PCI bus."""

import random
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.usage.absences import HOUR_NS, absences, windows
from gpufleet.fleet.usage.residence import UNBOUNDED, Interval, LastReport
from gpufleet.model.api.inventory import RETURN_GAP_NS, SlotRow, StoredSlot
from tests.support.profiles import examples

A, B = "gpu/GPU-a", "gpu/GPU-b"
ADDRESSES = {A: "0000:01:00.0", B: "0000:02:00.0"}
SLOT = f"gpu/pci/{ADDRESSES[B]}"
STEP = HOUR_NS // 4
PERIODS = ("both", "one", "lost", "lost by address", "no driver", "away", "no agent", "imported")
"""What is reported of B in a period: by two readers, by one, its state only, its slot only, nothing."""


class Machine:
    """A machine with two GPUs and the store of its reports. The second GPU comes and goes."""

    def __init__(self) -> None:
        self.at = 1000 * HOUR_NS
        self.rows: dict[str, list[SlotRow]] = {}
        self.last: dict[tuple[str, str, str], LastReport] = {}
        self.texts: dict[tuple[str, str], int] = {}
        self.hours: dict[str, set[int]] = {A: set(), B: set(), SLOT: set()}
        self.listed: set[int] = set()
        self.imports: set[int] = set()
        self.queried: list[Interval] = []
        self.is_other_lost = False

    def report(self, period: str) -> None:
        """Report a step of a period."""
        self.at += STEP
        if period == "no agent":
            return
        if period == "imported":
            self.imports.add(self.at // HOUR_NS)
        self._read(A, "nvml", has_texts=not self.is_other_lost)
        if period in ("both", "one"):
            for reader in ("nvml", "dcgm") if period == "both" else ("nvml",):
                self._read(B, reader)
        elif period == "lost":
            self._read(B, "nvml", has_texts=False)
        elif period == "lost by address":
            self._read(SLOT, "nvml", has_texts=False)
        elif period == "no driver":
            self._read(SLOT, "pci", has_values=False)
            self.listed.add(self.at // HOUR_NS)

    def _read(self, view: str, reader: str, *, has_texts: bool = True, has_values: bool = True) -> None:
        if has_values:
            self.hours[view].add(self.at // HOUR_NS)
        address = self.last.get(("m", view, reader), LastReport()).address
        self.last["m", view, reader] = LastReport(self.at, self.at if has_texts else address)
        if has_texts:
            before = self.texts.get((view, reader), 0)
            if self.at - before > RETURN_GAP_NS:
                self.rows.setdefault(view, []).append(SlotRow(reader, self.at, before))
            self.texts[view, reader] = self.at

    def read(self, machine: str, views: frozenset[str], start: int, end: int) -> Mapping[str, Collection[int]]:
        self.queried.append((start, end))
        hours = range(start // HOUR_NS, end // HOUR_NS)
        return {view: [hour * HOUR_NS for hour in self.hours.get(view, ()) if hour in hours] for view in views}

    def imported(self, machine: str, views: frozenset[str], start: int, end: int) -> Collection[int]:
        assert {A, B} & views == {B}
        return [hour * HOUR_NS for hour in self.imports if start <= hour * HOUR_NS < end]

    def absences(self, within: Interval = (0, UNBOUNDED)) -> list[Interval]:
        """Return the absences of B."""
        slots = [
            StoredSlot(
                cluster="c",
                machine="m",
                view=view,
                address=ADDRESSES.get(view, ADDRESSES[B]),
                first=rows[0].since,
                newest=rows[-1].since,
                last_seen=0,
                begun=tuple(sorted(row.since for row in rows)),
                rows=tuple(sorted(rows)),
            )
            for view, rows in self.rows.items()
        ]
        found = list(absences(slots, self.last, self, within, self.at))
        assert {place for place, _ in found} <= {("m", B)}
        return [one for _, one in found]

    def is_reported(self, hour: int) -> bool:
        """Return whether B or its slot was reported in an hour."""
        return hour in self.hours[B] | self.hours[SLOT] | self.listed | self.imports


def absent_hours(machine: Machine, found: list[Interval], until: int) -> set[int]:
    """Return the whole hours until a time that are in an absence."""
    hours = range(1001, until // HOUR_NS)
    return {
        hour for hour in hours if any(start <= hour * HOUR_NS < (hour + 1) * HOUR_NS <= end for start, end in found)
    }


@settings(max_examples=examples(60, 3000), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_absences_are_those_of_the_hours_and_stay(seed: int) -> None:
    dice, machine = random.Random(seed), Machine()
    for _ in range(6):
        machine.report("both")
    judged: list[tuple[int, list[Interval]]] = []
    for number in range(7):
        machine.is_other_lost = number == 6
        period = dice.choice(PERIODS)
        for _ in range(dice.randint(1, 24)):
            machine.report(period)
        judged.append((machine.at, machine.absences()))
    away, expected = False, set()
    for hour in range(1001, machine.at // HOUR_NS):
        if away and not machine.is_reported(hour):
            expected.add(hour)
        away = not machine.is_reported(hour) and (away or hour in machine.hours[A])
    final = machine.absences()
    assert absent_hours(machine, final, machine.at) == expected
    for at, found in judged:
        assert absent_hours(machine, found, at) == absent_hours(machine, final, at), (at, found, final)


def test_no_hours_are_read_without_a_pause() -> None:
    machine = Machine()
    for _ in range(40):
        machine.report("both")
    for _ in range(4):
        machine.report("one")
    assert (machine.absences(), machine.queried) == ([], [])


def test_no_hours_are_read_of_a_machine_that_is_off() -> None:
    machine = Machine()
    for period in ("both", "no agent"):
        for _ in range(40):
            machine.report(period)
    assert (machine.absences(), machine.queried) == ([], [])


def test_absences_of_other_times_are_not_searched() -> None:
    machine = Machine()
    for period in ("both", "away", "both"):
        for _ in range(16):
            machine.report(period)
    ((start, end),) = machine.absences()
    assert machine.absences((start - 5 * HOUR_NS, start - 4 * HOUR_NS)) == []
    assert machine.absences((end, UNBOUNDED)) == []
    assert machine.absences((start, end)) == [(start, end)]


@pytest.mark.parametrize("days", [0.5, 3, 1100])
def test_search_of_a_long_time_has_few_parts(days: float) -> None:
    parts = list(windows(0, int(days * 24) * HOUR_NS))
    assert parts[0][0] == 0
    assert [end for _, end in parts[:-1]] == [start for start, _ in parts[1:]]
    assert len(parts) <= 6
    assert all(end - start <= 400 * 24 * HOUR_NS for start, end in parts)
