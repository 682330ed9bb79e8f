"""Checks the tables of processes of a batch, as `normalise` checks its samples. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import ValueType
from gpufleet.model.process import PROCESS_READINGS, ProcessReading
from gpufleet.model.wire import Cell, MachinePart, ProcessList, WireAbsence

Explain = Callable[[int, Sequence[WireAbsence]], int]
"""Takes the position of a set of absences and further ones; returns the position of the set with them."""


class ProcessWork:
    """The lists of one batch on their way.

    Attributes:
        unknown: name to cells dropped, of readings that this build does not know.
        invalid: name to cells that were made absent.
        future: processes dropped because their list says that it was read in the future.
        repeated: processes dropped because their list, or a process of it, was there already.
    """

    def __init__(
        self,
        latest: int,
        names: Callable[[int, str], bool],
        extend: Explain,
        unknown: Counter[str],
        invalid: Counter[str],
    ) -> None:
        """Take the latest instant allowed, whether a set names a reading, what extends a set, and where to count."""
        self.unknown = unknown
        self.invalid = invalid
        self.future = 0
        self.repeated = 0
        self._latest, self._names, self._extend = latest, names, extend

    def clean(self, part: MachinePart, views: Sequence[str]) -> MachinePart:
        """Return the part with lists that the store can keep; `views` are the keys of the batch's views."""
        if not part.processes:
            return part
        kept: dict[tuple[str, str, int], ProcessList] = {}
        for told in part.processes:
            place = (views[told.view], told.reader, told.measured_at)
            if told.measured_at > self._latest:
                self.future += len(told.pids)
            elif place in kept:
                self.repeated += len(told.pids)
            else:
                kept[place] = self._clean(told)
        return msgspec.structs.replace(part, processes=list(kept.values()))

    def _clean(self, told: ProcessList) -> ProcessList:
        first = {pid: row for row, pid in reversed(list(enumerate(told.pids)))}
        rows = sorted(first.values())
        self.repeated += len(told.pids) - len(rows)
        added: dict[int, list[WireAbsence]] = {}
        given = dict(zip(told.readings, told.columns, strict=True))
        for name in given.keys() - PROCESS_READINGS.keys():
            self.unknown[name] += len(rows)
        columns: list[list[Cell]] = []
        for name, kind in PROCESS_READINGS.items():
            column = given.get(name)
            fit: list[Cell] = []
            for row in rows:
                cell, problem = _judge(kind, None if column is None else column[row])
                fit.append(cell)
                if problem:
                    self.invalid[name] += 1
                    added.setdefault(row, []).append(WireAbsence(name, Reason.INVALID_VALUE, problem))
                elif cell is None and not self._names(told.absence[row], name):
                    added.setdefault(row, []).append(WireAbsence(name, Reason.NOT_REPORTED))
            columns.append(fit)
        return msgspec.structs.replace(
            told,
            total=max(told.total, len(rows)),
            readings=list(PROCESS_READINGS),
            pids=[told.pids[row] for row in rows],
            start_times=[told.start_times[row] for row in rows],
            kinds=[[kind for kind in told.kinds[row] if kind.isidentifier()] for row in rows],
            names=[told.names[row] for row in rows],
            absence=[
                self._extend(told.absence[row], added[row]) if row in added else told.absence[row] for row in rows
            ],
            columns=columns,
        )


def _judge(kind: ProcessReading, cell: Cell) -> tuple[Cell, str]:
    """Return the cell and no problem, or None and the problem in words that never quote the value."""
    if cell is None:
        return None, ""
    if isinstance(cell, str):
        return None, "not a number"
    if isinstance(cell, float) and not math.isfinite(cell):
        return None, "not a finite number"
    if kind.low is not None and cell < kind.low:
        return None, f"below {kind.low:g}"
    if kind.high is not None and cell > kind.high:
        return None, f"above {kind.high:g}"
    if kind.type is ValueType.INT:
        return (int(cell), "") if cell == int(cell) < 2**64 else (None, "not an integer of 64 bits")
    return float(cell), ""
