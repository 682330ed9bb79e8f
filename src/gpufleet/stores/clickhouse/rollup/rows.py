"""Samples as numeric columns, ordered by subject and time. Pure: Arrow table to arrays."""

import importlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from gpufleet.dialects.all_smi import AMBIGUOUS
from gpufleet.model.catalogue import CATALOGUE, Storage
from gpufleet.model.reading import Provenance

Array = np.ndarray[Any, np.dtype[Any]]

_PLAIN = {metric.name: metric.id for metric in CATALOGUE.values() if metric.storage is Storage.CORE}

AMBIGUOUS_COLUMNS = {name: f"{name}_ambiguous" for name in sorted(AMBIGUOUS)}
"""Metric to the column of the rows in which it is absent with `ambiguous_zero`."""

NEVER = np.iinfo(np.int64).max


class MetricCells(msgspec.Struct, frozen=True):
    """Values of a metric: the rows that have one, in order, and their values."""

    rows: Array
    values: Array


class SubjectLanes(msgspec.Struct, frozen=True):
    """Lanes of subjects, as far as rollups depend on them.

    Attributes:
        numbers: of subjects, ascending.
        valid_ns: nanoseconds for which a reading of the subject's lane is valid at most.
        of_device: whether the subject is a device, not the machine itself.
    """

    numbers: Array
    valid_ns: Array
    of_device: Array


class SampleColumns(msgspec.Struct, frozen=True):
    """Samples in columns, ordered by subject and time.

    Attributes:
        subject: row to number of its subject.
        of_device: row to whether its subject is a device.
        provenance: row to code, and texts by code in sort order.
        reporter: row to number of its subject and provenance.
        at: row to measurement time, nanoseconds since 1970.
        next_at: row to time of the next sample of its subject, or `NEVER`.
        valid_until: row to the latest end of its validity.
        session: row to driver session.
        sequence: row to its position in order of subject and sender sequence number; None if rows are in that order.
        cells: metric id to values.
        means: metric id to the values of its mean, if some readings are `ambiguous_zero`: these are NaN.
    """

    subject: Array
    of_device: Array
    provenance: tuple[Array, list[str]]
    reporter: Array
    at: Array
    next_at: Array
    valid_until: Array
    session: Array
    sequence: Array | None
    cells: dict[int, MetricCells]
    means: dict[int, MetricCells]

    @property
    def has_duplicates(self) -> bool:
        """Return whether a subject has two samples of the same instant."""
        return bool(np.any(self.next_at == self.at))


def read_rows(table: Any, lanes: SubjectLanes) -> SampleColumns:
    """Sort a table of samples and convert it.

    Samples whose subject is not in `lanes` are left out: tables of a store that were restored to different times may
    have some.
    """
    is_known = np.isin(table.column("subject").to_numpy(), lanes.numbers)
    if not is_known.all():
        table = table.filter(is_known).combine_chunks()
    codes, names = _ranked(table.column("provenance"))
    subject = table.column("subject").to_numpy().astype(np.int64)
    at = table.column("measured_at").cast("int64").to_numpy()
    order = np.lexsort((at, subject))
    if np.any(order[1:] < order[:-1]):
        table = table.take(order).combine_chunks()
        codes, subject, at = codes[order], subject[order], at[order]
    next_at = np.full(len(at), NEVER)
    same = subject[1:] == subject[:-1]
    next_at[:-1][same] = at[1:][same]
    place = np.searchsorted(lanes.numbers, subject)
    cells = _cells(table)
    return SampleColumns(
        subject=subject,
        of_device=lanes.of_device[place],
        provenance=(codes, names),
        reporter=subject * len(names) + codes,
        at=at,
        next_at=next_at,
        valid_until=at + lanes.valid_ns[place],
        session=table.column("driver_session").to_numpy(),
        sequence=_sequence(subject, *_epochs_and_numbers(table, (codes, names))),
        cells=cells,
        means=_means(table, cells),
    )


def _epochs_and_numbers(table: Any, provenance: tuple[Array, list[str]]) -> tuple[Array, Array]:
    """Return epoch and sequence number of each row; 0 for imported samples, which arrive in any order."""
    codes, names = provenance
    ours = np.array([name != Provenance.IMPORTED for name in names], bool)[codes]
    epochs = table.column("epoch").combine_chunks().indices.to_numpy().astype(np.int64) + 1
    return np.where(ours, epochs, 0), np.where(ours, table.column("seq").to_numpy(), 0)


def _sequence(subject: Array, epoch: Array, seq: Array) -> Array | None:
    """Return `SampleColumns.sequence` of rows in order of subject and time.

    Within an epoch, rows follow their sequence numbers, whatever the clock was. Rows of other epochs (such as a memory
    spool's while the disk was full) are placed between them by time.
    """
    same = subject[1:] == subject[:-1]
    if not np.any(same & ((epoch[1:] != epoch[:-1]) | (seq[1:] < seq[:-1]))):
        return None
    count = len(subject)
    order = np.lexsort((seq, epoch, subject))
    course = np.zeros(count, np.int64)
    course[1:] = np.cumsum((subject[order][1:] != subject[order][:-1]) | (epoch[order][1:] != epoch[order][:-1]))
    latest = np.maximum.accumulate(course * count + order) - course * count  # newest time so far in this epoch
    order = order[np.argsort(latest, kind="stable")]
    sequence = np.empty(count, np.int64)
    sequence[order] = np.arange(count)
    return sequence


def _ranked(column: Any) -> tuple[Array, list[str]]:
    """Return a column of texts as codes that sort like the texts, and the texts by code."""
    array = column.combine_chunks()
    names = array.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda number: names[number].encode())
    ranks = np.empty(len(names), np.int64)
    ranks[order] = np.arange(len(names))
    return ranks[array.indices.to_numpy()], [names[number] for number in order]


def _cells(table: Any) -> dict[int, MetricCells]:
    masks: dict[bytes, Array] = {}
    found: dict[int, MetricCells] = {}
    for name, number in _PLAIN.items():
        if name not in table.column_names:
            continue
        column = table.column(name)
        if column.null_count < len(column):
            present = column.is_valid().to_numpy()
            rows = masks.setdefault(present.tobytes(), np.flatnonzero(present))
            found[number] = MetricCells(rows, column.drop_null().to_numpy())
    for tail in ("int", "float"):
        found.update(_tail_cells(table.column(f"tail_{tail}_ids"), table.column(f"tail_{tail}_values")))
    return found


def _means(table: Any, cells: Mapping[int, MetricCells]) -> dict[int, MetricCells]:
    """Return `SampleColumns.means`."""
    found: dict[int, MetricCells] = {}
    for name, column in AMBIGUOUS_COLUMNS.items():
        if column not in table.column_names:
            continue
        ambiguous = np.flatnonzero(table.column(column).fill_null(0).to_numpy())
        if len(ambiguous):
            number = CATALOGUE[name].id
            known = cells.get(number, MetricCells(ambiguous[:0], ambiguous[:0]))
            values = np.full(table.num_rows, np.nan)
            values[known.rows] = known.values
            values[ambiguous] = np.nan
            rows = np.union1d(known.rows, ambiguous)
            found[number] = MetricCells(rows, values[rows])
    return found


def _tail_cells(ids: Any, values: Any) -> dict[int, MetricCells]:
    """Split tail columns by metric: sort by id and cut at each change."""
    pc = importlib.import_module("pyarrow.compute")
    numbers = pc.list_flatten(ids).to_numpy()
    if not len(numbers):
        return {}
    lengths = pc.fill_null(pc.list_value_length(ids), 0).to_numpy()
    order = np.argsort(numbers, kind="stable")
    rows = np.repeat(np.arange(len(lengths)), lengths)[order]
    flat = pc.list_flatten(values).to_numpy()[order]
    edges = np.flatnonzero(np.diff(numbers[order])) + 1
    starts = [0, *edges.tolist()]
    shared: dict[bytes, Array] = {}
    found = {}
    for start, end in zip(starts, [*edges.tolist(), len(numbers)], strict=True):
        mine = rows[start:end]
        mine = shared.setdefault(mine.tobytes(), mine)
        found[int(numbers[order[start]])] = MetricCells(mine, flat[start:end])
    return found
