"""Judgement of imported rows by what is known of their boards at the time of each row. Pure.

Whether a zero is a measurement follows from other readings of the board: its product, its ECC mode. Those can be in an
earlier row, in another part of the scrape, or in a part that arrives later.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gpufleet.dialects.registry import lists_ecc_modes
from gpufleet.dialects.sample_builder import SERIES_ENDED
from gpufleet.fleet.board import DECIDING, RACK_PLACE, may_have_defaults, without_defaults
from gpufleet.fleet.ecc import (
    ECC_MODE,
    NO_ECC,
    EccMode,
    board_ecc_mode,
    board_of,
    has_ecc_counts,
    missing_ecc_mode,
    with_ecc_mode,
)
from gpufleet.model.absence import Absent
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample, Value

Device = tuple[Machine, str, str]
"""Machine, key of the view (empty for the machine itself) and reader."""

Readings = Mapping[str, Value | Absent]
"""Readings without dimensions, by metric."""

_JUDGING = DECIDING | {ECC_MODE}


def device_of(machine: Machine, row: Sample) -> Device:
    """Return the device of a row of a machine."""
    return machine, row.view.key if row.view is not None else "", row.reader


def judging_readings(row: Sample) -> dict[str, Value | Absent]:
    """Return the readings by which other readings of the board are judged.

    An absent place in a rack can itself be the result of such a judgement, and the end of a series proves nothing about
    a board.
    """
    if _JUDGING.isdisjoint(row.values):  # most rows
        return {}
    return {
        name: value
        for name in _JUDGING & row.values.keys()
        if (value := row.values[name]).__class__ is not Absent or (value != SERIES_ENDED and name not in RACK_PLACE)
    }


class KnownReadings:
    """Judging readings of a device by time: the newest ones until then are known, or else the first ones after."""

    def __init__(self, rows: Iterable[Sample], before: Readings) -> None:
        """Take rows of any order, and what was known before them. Of equal times, the later row counts."""
        entries = [(row.measured_at, found) for row in rows if (found := judging_readings(row))]
        entries.sort(key=lambda entry: entry[0])
        known: dict[str, Value | Absent] = {}
        for _, found in reversed(entries):
            known |= found
        self._known = [{**known, **before}]
        self._times: list[int] = []
        for at, found in entries:
            if not found.items() <= self._known[-1].items():
                self._times.append(at)
                self._known.append(self._known[-1] | found)

    def at(self, at: int) -> Readings:
        """Return what is known at a time, nanoseconds since 1970."""
        return self._known[bisect_right(self._times, at)]


class RowsOfDevices(Protocol):
    """Source of the rows by which others are judged."""

    def rows(self, device: Device) -> Sequence[Sample]:
        """Return the rows of a device."""
        ...

    def rows_of_board(self, board: Device) -> Sequence[Sample]:
        """Return the rows of a GPU and of its MIG devices: their counts can show that it has ECC."""
        ...

    def known_before(self, device: Device) -> Readings:
        """Return the judging readings from before the rows of a device."""
        ...


class RowJudge:
    """Judges rows by a set of rows: the driver's defaults for what a board does not have become absent."""

    def __init__(self, rows: RowsOfDevices, merge_window_ns: int) -> None:
        """Take the rows, and the time within which rows are of one scrape."""
        self._rows = rows
        self._window = merge_window_ns
        self._known: dict[Device, KnownReadings] = {}
        self._modes: dict[tuple[Device, EccMode], EccMode] = {}

    def known(self, device: Device, at: int) -> Readings:
        """Return what is known of a device at a time."""
        known = self._known.get(device)
        if known is None:
            known = self._known[device] = KnownReadings(self._rows.rows(device), self._rows.known_before(device))
        return known.at(at + self._window)

    def judged(self, machine: Machine, row: Sample) -> Sample:
        """Return a row without the defaults of its driver, and without ECC counts that its board rules out."""
        if may_have_defaults(row):
            row = without_defaults(row, self.known(device_of(machine, row), row.measured_at))
        board = board_of(row)
        if board is None or not has_ecc_counts(row):
            return row
        device = machine, board, row.reader
        return with_ecc_mode(row, self._ecc_mode(device, self.known(device, row.measured_at).get(ECC_MODE)))

    def _ecc_mode(self, board: Device, mode: EccMode) -> EccMode:
        """Return the ECC mode in which the counts of a board count, given its mode as read."""
        if mode is not None and not isinstance(mode, Absent):
            return mode
        place = board, mode
        if place not in self._modes:
            rows = self._rows.rows_of_board(board)
            if mode is None:
                mode = NO_ECC if lists_ecc_modes(board[2]) else missing_ecc_mode(rows)
            self._modes[place] = board_ecc_mode(mode, rows)
        return self._modes[place]
