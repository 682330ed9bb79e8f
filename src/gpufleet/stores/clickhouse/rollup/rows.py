"""Samples as numbers in columns, in the order of their lanes and of time. Pure: an Arrow table in, arrays out."""

import importlib
from typing import Any

import msgspec
import numpy as np

from gpufleet.model.catalogue import CATALOGUE, Storage
from gpufleet.model.reading import Provenance
from gpufleet.stores.clickhouse.rollup.tables import speaks_ns

Numbers = np.ndarray[Any, np.dtype[Any]]

TEXTS = ("machine", "view", "reader", "lane", "provenance")
_COLUMNS = ("machine", "view_text", "reader", "lane", "provenance")
_PLAIN = {metric.name: metric.id for metric in CATALOGUE.values() if metric.storage is Storage.CORE}

NEVER = np.iinfo(np.int64).max


class Cells(msgspec.Struct, frozen=True):
    """What there is of one metric: the rows that have it, in order, and what they say."""

    rows: Numbers
    values: Numbers


class Rows(msgspec.Struct, frozen=True):
    """Samples, those of one lane after the other, each lane's in the order of time.

    Attributes:
        texts: name to (row to number, texts by number in the order of sorting).
        lane: row to number of its lane: what shares machine, view, reader and lane.
        teller: row to number of its lane and provenance.
        at: row to nanoseconds since 1970.
        next_at: row to when the next sample of its lane was measured, or `NEVER`.
        speaks_until: row to when it ends to speak, whatever comes.
        session: row to driver session.
        counted: row to its place among all, those of one lane in the order in which their sender counted them; None
            where rows are in that order.
        cells: metric id to what there is of it.
    """

    texts: dict[str, tuple[Numbers, list[str]]]
    lane: Numbers
    teller: Numbers
    at: Numbers
    next_at: Numbers
    speaks_until: Numbers
    session: Numbers
    counted: Numbers | None
    cells: dict[int, Cells]

    @property
    def has_doubles(self) -> bool:
        """Whether a lane has two samples of one instant."""
        return bool(np.any(self.next_at == self.at))


def read_rows(table: Any) -> Rows:
    """Put a table of samples in order and take it apart."""
    texts = {text: _ranked(table.column(name)) for text, name in zip(TEXTS, _COLUMNS, strict=True)}
    lane = _combined([texts[name] for name in TEXTS[:-1]])
    at = table.column("measured_at").cast("int64").to_numpy()
    order = np.lexsort((at, lane))
    if np.any(order[1:] < order[:-1]):
        table = table.take(order).combine_chunks()
        texts = {name: (codes[order], names) for name, (codes, names) in texts.items()}
        lane, at = lane[order], at[order]
    next_at = np.full(len(at), NEVER)
    same = lane[1:] == lane[:-1]
    next_at[:-1][same] = at[1:][same]
    lanes, names = texts["lane"]
    longest = np.array([speaks_ns(name) for name in names], np.int64)
    return Rows(
        texts=texts,
        lane=lane,
        teller=lane * len(texts["provenance"][1]) + texts["provenance"][0],
        at=at,
        next_at=next_at,
        speaks_until=at + longest[lanes],
        session=table.column("driver_session").to_numpy(),
        counted=_counted(lane, *_numbers(table, texts["provenance"])),
        cells=_cells(table),
    )


def _numbers(table: Any, provenance: tuple[Numbers, list[str]]) -> tuple[Numbers, Numbers]:
    """Return the epoch and the number that each row came with; 0 of what is imported, which comes in any order."""
    codes, names = provenance
    ours = np.array([name != Provenance.IMPORTED for name in names], bool)[codes]
    epochs = table.column("epoch").combine_chunks().indices.to_numpy().astype(np.int64) + 1
    return np.where(ours, epochs, 0), np.where(ours, table.column("seq").to_numpy(), 0)


def _counted(lane: Numbers, epoch: Numbers, seq: Numbers) -> Numbers | None:
    """Return `Rows.counted` of rows in the order of lanes and of time.

    A row comes after all of its epoch that were counted before it, wherever the clock stood then. What was counted in
    other epochs meanwhile (a memory's, while the disk was full) stays between them by its time.
    """
    same = lane[1:] == lane[:-1]
    if not np.any(same & ((epoch[1:] != epoch[:-1]) | (seq[1:] < seq[:-1]))):
        return None
    count = len(lane)
    order = np.lexsort((seq, epoch, lane))
    course = np.zeros(count, np.int64)
    course[1:] = np.cumsum((lane[order][1:] != lane[order][:-1]) | (epoch[order][1:] != epoch[order][:-1]))
    latest = np.maximum.accumulate(course * count + order) - course * count  # in time, of the course so far
    order = order[np.argsort(latest, kind="stable")]
    counted = np.empty(count, np.int64)
    counted[order] = np.arange(count)
    return counted


def _ranked(column: Any) -> tuple[Numbers, list[str]]:
    """Return a column of texts as numbers that sort as the texts do, and the texts."""
    array = column.combine_chunks()
    names = array.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda number: names[number].encode())
    ranks = np.empty(len(names), np.int64)
    ranks[order] = np.arange(len(names))
    return ranks[array.indices.to_numpy()], [names[number] for number in order]


def _combined(texts: list[tuple[Numbers, list[str]]]) -> Numbers:
    numbers = texts[0][0]
    for codes, names in texts[1:]:
        numbers = numbers * len(names) + codes
    return numbers


def _cells(table: Any) -> dict[int, Cells]:
    masks: dict[bytes, Numbers] = {}
    found: dict[int, Cells] = {}
    for name, number in _PLAIN.items():
        if name not in table.column_names:
            continue
        column = table.column(name)
        if column.null_count < len(column):
            present = column.is_valid().to_numpy()
            rows = masks.setdefault(present.tobytes(), np.flatnonzero(present))
            found[number] = Cells(rows, column.drop_null().to_numpy())
    for tail in ("int", "float"):
        found.update(_tail_cells(table.column(f"tail_{tail}_ids"), table.column(f"tail_{tail}_values")))
    return found


def _tail_cells(ids: Any, values: Any) -> dict[int, Cells]:
    """Take tails apart by metric: an array of all ids in order, cut where the next begins."""
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
    shared: dict[bytes, Numbers] = {}
    found = {}
    for start, end in zip(starts, [*edges.tolist(), len(numbers)], strict=True):
        mine = rows[start:end]
        mine = shared.setdefault(mine.tobytes(), mine)
        found[int(numbers[order[start]])] = Cells(mine, flat[start:end])
    return found
