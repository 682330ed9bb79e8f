"""Validation of every value of a batch against the catalogue. Pure.

An invalid value becomes `Absent(invalid_value)`; the rest of its row, column and batch is kept. Valid columns are only
checked by whole-column operations; other columns are checked cell by cell. Process lists are checked likewise.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import compress
from typing import TypeVar

import msgspec

from gpufleet.hub.flush.cluster_parts import clean_cluster_part
from gpufleet.hub.flush.screening import SUBJECTS, SuspectColumns, are_valid, screen
from gpufleet.model.absence import Reason
from gpufleet.model.catalogue import CATALOGUE, Metric, Subject, ValueType
from gpufleet.model.holdings import Holding
from gpufleet.model.process import PROCESS_READINGS, ProcessReading
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewList, keys_of
from gpufleet.model.wire.batch import Cell, DimBlock, MachinePart, ProcessList, SampleBlock, WireAbsence, WireBatch

ExtendAbsences = Callable[[int, Sequence[WireAbsence]], int]
"""Function of the position of an absence set and further absences; returns the position of the extended set."""


class ProcessCleaner:
    """Cleaner of the process lists of one batch.

    Attributes:
        unknown: cells dropped, by the name of readings unknown to this build.
        invalid: cells made absent, by name.
        future: processes dropped because their list was measured in the future.
        repeated: processes dropped because their list, or a process in it, occurred before.
    """

    def __init__(
        self,
        latest: int,
        names: Callable[[int, str], bool],
        extend: ExtendAbsences,
        unknown: Counter[str],
        invalid: Counter[str],
    ) -> None:
        """Prepare a cleaner.

        Args:
            latest: the latest allowed instant, nanoseconds since 1970.
            names: returns whether the absence set at a position names a reading.
            extend: extends an absence set.
            unknown: counter for dropped cells.
            invalid: counter for cells made absent.
        """
        self.unknown = unknown
        self.invalid = invalid
        self.future = 0
        self.repeated = 0
        self._latest, self._names, self._extend = latest, names, extend

    def clean(self, part: MachinePart, views: Sequence[str]) -> MachinePart:
        """Return the part with valid process lists; `views` are the keys of the batch's views."""
        if not part.processes:
            return part
        kept: dict[tuple[str, str, int], ProcessList] = {}
        for listing in part.processes:
            place = (views[listing.view], listing.reader, listing.measured_at)
            if listing.measured_at > self._latest:
                self.future += len(listing.pids)
            elif place in kept:
                self.repeated += len(listing.pids)
            else:
                kept[place] = self._clean(listing)
        return msgspec.structs.replace(part, processes=list(kept.values()))

    def _clean(self, listing: ProcessList) -> ProcessList:
        first = {pid: row for row, pid in reversed(list(enumerate(listing.pids)))}
        rows = sorted(first.values())
        self.repeated += len(listing.pids) - len(rows)
        added: dict[int, list[WireAbsence]] = {}
        given = dict(zip(listing.readings, listing.columns, strict=True))
        for name in given.keys() - PROCESS_READINGS.keys():
            self.unknown[name] += len(rows)
        columns: list[list[Cell]] = []
        for name, kind in PROCESS_READINGS.items():
            column = given.get(name)
            fit: list[Cell] = []
            for row in rows:
                cell, problem = _check_process_cell(kind, None if column is None else column[row])
                fit.append(cell)
                if problem:
                    self.invalid[name] += 1
                    added.setdefault(row, []).append(WireAbsence(name, Reason.INVALID_VALUE, problem))
                elif cell is None and not self._names(listing.absence[row], name):
                    added.setdefault(row, []).append(WireAbsence(name, Reason.NOT_REPORTED))
            columns.append(fit)
        return msgspec.structs.replace(
            listing,
            total=max(listing.total, len(rows)),
            readings=list(PROCESS_READINGS),
            pids=[listing.pids[row] for row in rows],
            start_times=[listing.start_times[row] for row in rows],
            kinds=[[kind for kind in listing.kinds[row] if kind.isidentifier()] for row in rows],
            names=[listing.names[row] for row in rows],
            absence=[
                self._extend(listing.absence[row], added[row]) if row in added else listing.absence[row] for row in rows
            ],
            columns=columns,
        )


def _check_process_cell(kind: ProcessReading, cell: Cell) -> tuple[Cell, str]:
    """Return the cell and an empty text, or None and a problem description that never quotes the value."""
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


FUTURE_TOLERANCE_SECONDS = 600
"""Clock skew allowed ahead of the hub before a sender's rows, events and holdings are dropped."""

_NO_COUNTS: Counter[str] = Counter()
"""Shared empty counter of batches without counts. It must not be modified."""

_Block = TypeVar("_Block", SampleBlock, DimBlock)


class NormalisedBatch(msgspec.Struct, kw_only=True):
    """A valid batch, and counts of the changes made.

    Attributes:
        batch: every value is valid for its catalogue row, or absent with a reason.
        unknown_metrics: cells dropped, by the name of metrics that are not in this build's catalogue.
        invalid_values: cells made absent, or dropped because their labels do not fit, by metric name.
        future_rows: rows, events and holdings dropped because their time is in the future.
        repeated_rows: rows dropped because an earlier row of the batch has the same subject, reader, lane and instant
            (and metric and labels). The store has room for one, and which is right is unknown. Only the repeated rows
            are dropped, because rejecting the batch would lose valid rows.
        dropped_objects: objects of Kubernetes, and ends of them, dropped because their identity is invalid or repeated.
    """

    batch: WireBatch
    unknown_metrics: Counter[str]
    invalid_values: Counter[str]
    future_rows: int
    repeated_rows: int
    dropped_objects: int = 0


def normalise(batch: WireBatch, came_at: int, suspects: Sequence[SuspectColumns] | None = None) -> NormalisedBatch:
    """Return a valid copy of a batch decoded by `codecs.batch.decode`; the input is not changed.

    Args:
        batch: as decoded.
        came_at: receipt by this hub, nanoseconds since 1970; relay delays are not subtracted.
        suspects: result of `screen` for this batch; computed here if None.
    """
    (screened,) = screen([batch]) if suspects is None else (suspects,)
    if batch.cluster_part is not None:
        part, dropped = clean_cluster_part(batch.cluster_part, came_at)
        rest = normalise(msgspec.structs.replace(batch, cluster_part=None), came_at, screened)
        whole = msgspec.structs.replace(rest.batch, cluster_part=part)
        return msgspec.structs.replace(rest, batch=whole, dropped_objects=dropped)
    latest = came_at + FUTURE_TOLERANCE_SECONDS * NANOS
    if not any(screened) and _needs_no_cleaning(batch, latest):
        return NormalisedBatch(
            batch=batch, unknown_metrics=_NO_COUNTS, invalid_values=_NO_COUNTS, future_rows=0, repeated_rows=0
        )
    work = _BatchCleaner(batch, latest)
    samples = [work.clean_samples(block, of_it) for block, of_it in zip(batch.samples, screened, strict=True)]
    dims = [block for block in map(work.clean_dims, batch.dims) if block is not None]
    processes = ProcessCleaner(
        work.latest, work.absences.names, work.absences.extend, work.unknown_metrics, work.invalid_values
    )
    views = keys_of(batch.views)
    parts = [processes.clean(work.drop_future_records(part), views) for part in batch.parts]
    clean = msgspec.structs.replace(batch, samples=samples, dims=dims, parts=parts, absences=work.absences.sets)
    return NormalisedBatch(
        batch=clean,
        unknown_metrics=work.unknown_metrics,
        invalid_values=work.invalid_values,
        future_rows=work.future_rows + processes.future,
        repeated_rows=work.repeated_rows + processes.repeated,
    )


def _last_time(holding: Holding) -> int:
    return holding.since if holding.until is None else max(holding.since, holding.until)


def _needs_no_cleaning(batch: WireBatch, latest: int) -> bool:
    """Return whether a batch without suspect columns needs no further cleaning; a cheap test that most batches pass.

    A batch that fails the test may still be valid.
    """
    if len(batch.machines) != 1 or batch.dims:
        return False
    for part in batch.parts:
        if part.processes or (part.events and max(event.at for event in part.events) > latest):
            return False
        if part.holdings and max(map(_last_time, part.holdings)) > latest:
            return False
    if not isinstance(batch.views, ViewList) or batch.views.has_doubles:
        return False
    reporters: set[tuple[str, str]] = set()
    for block in batch.samples:
        reporters.add((block.reader, block.lane))
        if len(set(block.view)) < len(block.view) or max(block.measured_at, default=0) > latest:
            return False
    return len(reporters) == len(batch.samples)


class _AbsenceSets:
    """The absence sets of a batch, and further sets created on demand."""

    def __init__(self, sets: Sequence[list[WireAbsence]]) -> None:
        self.sets = list(sets)
        self._names: dict[int, frozenset[str]] = {}
        self._made: dict[tuple[int, tuple[WireAbsence, ...]], int] = {}

    def names(self, index: int, metric: str) -> bool:
        """Return whether a set has an entry for a metric."""
        if index < 0:
            return False
        names = self._names.get(index)
        if names is None:
            names = self._names[index] = frozenset(entry.metric for entry in self.sets[index])
        return metric in names

    def extend(self, index: int, added: Iterable[WireAbsence]) -> int:
        """Return the index of a set extended by entries, which replace entries of the same metric."""
        key = index, tuple(added)
        if key not in self._made:
            entries = {entry.metric: entry for entry in (self.sets[index] if index >= 0 else ())}
            entries.update((entry.metric, entry) for entry in key[1])
            self._made[key] = len(self.sets)
            self.sets.append([entries[name] for name in sorted(entries)])
        return self._made[key]


class _BatchCleaner:
    """Cleaner of the samples, dimensioned values and events of one batch."""

    def __init__(self, batch: WireBatch, latest: int) -> None:
        self.absences = _AbsenceSets(batch.absences)
        self.unknown_metrics: Counter[str] = Counter()
        self.invalid_values: Counter[str] = Counter()
        self.future_rows = 0
        self.repeated_rows = 0
        self.latest = latest
        # Several entries may name the same machine or view: all of them count as the first.
        self._machines = _first_positions(batch.machines)
        self._views = _first_positions(keys_of(batch.views))
        if self._views is not None:
            self._views.append(-1)
        self._taken: dict[tuple[str, ...], set[tuple[object, ...]]] = {}
        self._batch_views = batch.views

    def clean_samples(self, block: SampleBlock, suspects: SuspectColumns) -> SampleBlock:
        """Return the block with known metrics and valid cells only; `suspects` are the columns to check."""
        block = self._drop_repeated(self._drop_future(block), (block.reader, block.lane))
        if not suspects:
            return block
        kinds = self._kinds(block.view)
        added: dict[int, list[WireAbsence]] = {}
        columns: list[list[Cell] | None] = list(block.columns)
        for suspect in suspects:
            name, column = block.metrics[suspect.column], block.columns[suspect.column]
            metric = CATALOGUE.get(name)
            if metric is None:
                self.unknown_metrics[name] += len(column)
                columns[suspect.column] = None
            elif metric.dims:
                self.invalid_values[name] += len(column)
                columns[suspect.column] = None
            elif suspect.values:
                columns[suspect.column] = self._clean_column(metric, column, block, kinds, added)
            else:
                self._add_not_reported(name, column, block.absence, added)
        kept = [(name, column) for name, column in zip(block.metrics, columns, strict=True) if column is not None]
        return msgspec.structs.replace(
            block,
            metrics=[name for name, _ in kept],
            columns=[column for _, column in kept],
            absence=self._extend_rows(block.absence, added),
        )

    def clean_dims(self, block: DimBlock) -> DimBlock | None:
        """Return the block with valid cells only, or None if its metric is unknown or its labels do not fit."""
        metric = CATALOGUE.get(block.metric)
        if metric is None:
            self.unknown_metrics[block.metric] += len(block.values)
            return None
        if not metric.dims or len(block.labels) != len(metric.dims):
            self.invalid_values[block.metric] += len(block.values)
            return None
        shared = (block.reader, block.lane, block.metric)
        block = self._drop_future(block)
        block = self._drop_repeated(block, shared, block.labels)
        added: dict[int, list[WireAbsence]] = {}
        values = self._clean_column(metric, block.values, block, self._kinds(block.view), added)
        return msgspec.structs.replace(block, values=values, absence=self._extend_rows(block.absence, added))

    def drop_future_records(self, part: MachinePart) -> MachinePart:
        """Return the part without events and holdings that are dated after the latest instant allowed."""
        events = [event for event in part.events if event.at <= self.latest]
        holdings = [holding for holding in part.holdings if _last_time(holding) <= self.latest]
        dropped = len(part.events) - len(events) + len(part.holdings) - len(holdings)
        if not dropped:
            return part
        self.future_rows += dropped
        return msgspec.structs.replace(part, events=events, holdings=holdings)

    def _drop_future(self, block: _Block) -> _Block:
        """Return the block without rows that are dated after the latest instant allowed."""
        if max(block.measured_at, default=0) <= self.latest:
            return block
        keep = [at <= self.latest for at in block.measured_at]
        self.future_rows += keep.count(False)
        return filter_rows(block, keep)

    def _drop_repeated(self, block: _Block, shared: tuple[str, ...], labels: Sequence[list[str]] = ()) -> _Block:
        """Return the block without rows that repeat the machine, view, instant and labels of an earlier row."""
        machines = block.machine if self._machines is None else map(self._machines.__getitem__, block.machine)
        views = block.view if self._views is None else map(self._views.__getitem__, block.view)
        places = list(zip(machines, views, block.measured_at, *labels, strict=True))
        taken = self._taken.setdefault(shared, set())
        if len(set(places)) == len(places) and taken.isdisjoint(places):
            taken.update(places)
            return block
        keep: list[bool] = []
        for place in places:
            keep.append(place not in taken)
            taken.add(place)
        self.repeated_rows += keep.count(False)
        return filter_rows(block, keep)

    def _kinds(self, views: Sequence[int]) -> set[Subject]:
        return set(map(self._subject, set(views)))

    def _subject(self, view: int) -> Subject:
        return SUBJECTS[self._batch_views[view].kind] if view >= 0 else Subject.MACHINE

    def _clean_column(
        self,
        metric: Metric,
        column: list[Cell],
        block: SampleBlock | DimBlock,
        kinds: set[Subject],
        added: dict[int, list[WireAbsence]],
    ) -> list[Cell]:
        """Return the column or a corrected copy; add the absences that rows need in addition to `added`."""
        present = [cell for cell in column if cell is not None] if None in column else column
        if not kinds.issubset(metric.subjects) or not are_valid(metric, present):
            column = self._clean_cells(metric, column, block, added)
        if None in column:
            self._add_not_reported(metric.name, column, block.absence, added)
        return column

    def _clean_cells(
        self,
        metric: Metric,
        column: list[Cell],
        block: SampleBlock | DimBlock,
        added: dict[int, list[WireAbsence]],
    ) -> list[Cell]:
        fixed: list[Cell] = []
        for row, (cell, view) in enumerate(zip(column, block.view, strict=True)):
            fit, problem = (cell, "") if cell is None else _check_cell(metric, self._subject(view), cell)
            fixed.append(fit)
            if problem:
                self.invalid_values[metric.name] += 1
                added.setdefault(row, []).append(WireAbsence(metric.name, Reason.INVALID_VALUE, problem))
        return fixed

    def _add_not_reported(
        self, name: str, column: list[Cell], absence: Sequence[int], added: dict[int, list[WireAbsence]]
    ) -> None:
        """Add the reason `not_reported` for cells that are absent without a reason."""
        empty = [cell is None for cell in column]
        if all(self.absences.names(index, name) for index in set(compress(absence, empty))):
            return
        for row in compress(range(len(column)), empty):
            explained = any(entry.metric == name for entry in added.get(row, ()))
            if not explained and not self.absences.names(absence[row], name):
                added.setdefault(row, []).append(WireAbsence(name, Reason.NOT_REPORTED))

    def _extend_rows(self, absence: list[int], added: dict[int, list[WireAbsence]]) -> list[int]:
        if not added:
            return absence
        extended = list(absence)
        for row, entries in added.items():
            extended[row] = self.absences.extend(absence[row], entries)
        return extended


def _first_positions(names: Sequence[Hashable]) -> list[int] | None:
    """Return for each entry the position of the first equal entry, or None if all entries differ."""
    if len(names) == 1 or len(set(names)) == len(names):
        return None
    first: dict[Hashable, int] = {}
    return [first.setdefault(name, position) for position, name in enumerate(names)]


def filter_rows(block: _Block, keep: Sequence[bool]) -> _Block:
    """Return the block with only the rows to keep."""
    rows = ("machine", "view", "measured_at", "driver_session", "absence")
    fewer = {name: list(compress(getattr(block, name), keep)) for name in rows}
    if isinstance(block, SampleBlock):
        columns = [list(compress(column, keep)) for column in block.columns]
        return msgspec.structs.replace(block, columns=columns, **fewer)
    labels = [list(compress(column, keep)) for column in block.labels]
    return msgspec.structs.replace(block, labels=labels, values=list(compress(block.values, keep)), **fewer)


def _check_cell(metric: Metric, subject: Subject, cell: float | str) -> tuple[Cell, str]:
    """Return the cell and an empty text, or None and a problem description that never quotes the value."""
    if subject not in metric.subjects:
        return None, f"not a metric of a {subject}"
    if metric.type is ValueType.TEXT:
        return (cell, "") if isinstance(cell, str) else (None, "not a text")
    if metric.type is ValueType.ENUM:
        return (cell, "") if isinstance(cell, str) and cell in metric.states else (None, "not a state")
    if isinstance(cell, (str, bool)):
        return None, "not a number"
    return _check_number(metric, cell)


def _check_number(metric: Metric, number: float) -> tuple[Cell, str]:
    if isinstance(number, float):
        if math.isnan(number):
            return None, "NaN"
        if math.isinf(number):
            return None, "infinite"
    if metric.low is not None and number < metric.low:
        return None, f"below {metric.low:g}"
    if metric.high is not None and number > metric.high:
        return None, f"above {metric.high:g}"
    if metric.type is ValueType.INT and isinstance(number, float):
        if not number.is_integer():
            return None, "not an integer"
        if not -(2**63) <= number < 2**64:
            return None, "does not fit in 64 bits"
        return int(number), ""
    return number, ""
