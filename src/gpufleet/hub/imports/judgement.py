"""Judgement of imported rows by what is known of their boards at the time of each row. Pure.

Whether a zero is a measurement follows from other readings of the board: its product, its ECC mode. Those can be in an
earlier row, in another part of the scrape, or in a part that arrives later. So can the PCI address of a GPU: some
exporters have it in one series only.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

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
from gpufleet.fleet.facts.metrics import GPU_ADDRESS
from gpufleet.model.absence import Absent
from gpufleet.model.machine import Machine
from gpufleet.model.reading import Sample, Value
from gpufleet.model.view import ViewKind

Device = tuple[Machine, str, str]
"""Machine, key of the view (empty for the machine itself) and reader."""

Readings = Mapping[str, Value | Absent]
"""Readings without dimensions, by metric."""

_JUDGING = DECIDING | {ECC_MODE, GPU_ADDRESS}
_VALUES_ONLY = {*RACK_PLACE, GPU_ADDRESS}
"""Readings whose absence is not judged by."""


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
        if (value := row.values[name]).__class__ is not Absent or (value != SERIES_ENDED and name not in _VALUES_ONLY)
    }


def is_judged(row: Sample) -> bool:
    """Return whether a row depends on the judging readings of its board."""
    return may_have_defaults(row) or has_ecc_counts(row) or _is_addressed(row)


def _is_addressed(row: Sample) -> bool:
    """Return whether a row is about a GPU whose key does not depend on its address."""
    return row.view is not None and row.view.kind is ViewKind.GPU and row.view.uuid is not None


class KnownReadings:
    """Judging readings of a device by time: the newest ones until then are known, or else the first ones after."""

    def __init__(self, rows: Iterable[Sample], before: Readings) -> None:
        """Take rows of any order, and what was known before them. Of equal times, the later row counts."""
        entries = [(row.measured_at, found) for row in rows if (found := judging_readings(row))]
        entries.sort(key=lambda entry: entry[0])
        known: dict[str, Value | Absent] = {}
        for _, found in reversed(entries):
            known |= found
        self._read: list[dict[str, Value | Absent]] = [{}]
        self._times: list[int] = []
        for at, found in entries:
            if not found.items() <= self._read[-1].items():
                self._times.append(at)
                self._read.append(self._read[-1] | found)
        self._known = [{**known, **before, **read} for read in self._read]

    def read_until(self, at: int) -> Readings:
        """Return the newest readings of the rows up to a time, nanoseconds since 1970."""
        return self._read[bisect_right(self._times, at)]

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
    """Judges rows by a set of rows.

    The driver's defaults for what a board does not have become absent, and the rows of a GPU have its address.
    """

    def __init__(self, rows: RowsOfDevices, merge_window_ns: int) -> None:
        """Take the rows, and the time within which rows are of one scrape."""
        self._rows = rows
        self._window = merge_window_ns
        self._known: dict[Device, KnownReadings] = {}
        self._modes: dict[tuple[Device, EccMode], EccMode] = {}

    def known(self, device: Device, at: int) -> Readings:
        """Return what is known of a device at a time."""
        return self._readings(device).at(at + self._window)

    def judged(self, machine: Machine, row: Sample) -> Sample:
        """Return a row with its address, without the driver's defaults and ECC counts that its board rules out."""
        if _is_addressed(row):
            row = self._with_address(machine, row)
        if may_have_defaults(row):
            row = without_defaults(row, self.known(device_of(machine, row), row.measured_at))
        return with_ecc_mode(row, self.ecc_mode(machine, row)) if has_ecc_counts(row) else row

    def ecc_mode(self, machine: Machine, row: Sample) -> EccMode:
        """Return the ECC mode in which the counts of a row count; None for the machine itself."""
        board = board_of(row)
        if board is None:
            return None
        device = machine, board, row.reader
        return self._ecc_mode(device, self.known(device, row.measured_at).get(ECC_MODE))

    def _readings(self, device: Device) -> KnownReadings:
        known = self._known.get(device)
        if known is None:
            known = self._known[device] = KnownReadings(self._rows.rows(device), self._rows.known_before(device))
        return known

    def _with_address(self, machine: Machine, row: Sample) -> Sample:
        """Return a row with the address of its GPU.

        An address that was read up to the time of the row precedes the one of its labels: other instants and ended
        series of a request can have an earlier one. Without both, the address is what is known at that time.
        """
        view, at = row.view, row.measured_at + self._window
        assert view is not None
        known = self._readings(device_of(machine, row))
        read = known.read_until(at).get(GPU_ADDRESS)
        address = read or view.pci_address or known.at(at).get(GPU_ADDRESS)
        if address == view.pci_address or not isinstance(address, str):
            return row
        return msgspec.structs.replace(row, view=msgspec.structs.replace(view, pci_address=address))

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
