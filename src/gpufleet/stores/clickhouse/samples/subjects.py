"""Numbers of subjects, which large tables have instead of texts.

A subject is a view of a machine, or the machine itself, as read by one reader in one lane. The one writer of a store
allots its number and stores it before the first row with it. A number never gets a second meaning:

- New subjects are inserted in chunks, each confirmed before the next. If an insert fails, or its process is killed, its
  rows may still appear later. So a writer that starts leaves out a chunk after the greatest number of any table, and
  stores the number at which it continues.
- If such rows appear after their subjects got other numbers, the greater number is the one in use.
"""

import threading
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

import numpy as np

from gpufleet.model.errors import StoreError
from gpufleet.stores.clickhouse.connection.client import Handle
from gpufleet.stores.clickhouse.schema.arrow import arrow_table
from gpufleet.stores.clickhouse.schema.columns import (
    NO_NUMBER,
    Columns,
    DictionaryColumn,
    IdIndex,
    IndexedColumn,
    NumericArray,
    mix_hashes,
    text_hashes,
)
from gpufleet.stores.clickhouse.schema.tables import SUBJECT_KEY, SUBJECT_NUMBER, SUBJECTS, TableDefinition

CHUNK = 65_536
"""Maximum number of new subjects per insert."""

_END = 1 << 32

ROWS_PER_PAGE = 500_000
"""About as many subjects are loaded with one query, which bounds its time and the memory of a start."""

TextColumn = DictionaryColumn | IndexedColumn


class SubjectNumbers:
    """Numbers of all subjects of a store. One thread assigns them, any thread finds them. About 30 bytes per subject.

    Args:
        first: the first number to allot.
    """

    def __init__(self, first: int = 1) -> None:
        self._next = first
        self._lock = threading.Lock()
        self._index = IdIndex()
        self._numbers = np.empty(0, np.uint32)
        self._checks = np.empty(0, np.int64)
        self._new: list[tuple[int, tuple[str, ...]]] = []

    def add_known(self, columns: Columns, numbers: NumericArray) -> None:
        """Add subjects that the store has; each of them once."""
        self._assign(_texts(columns), lambda firsts: numbers[firsts])

    def assign(self, columns: Columns) -> NumericArray:
        """Return the number of each row's subject. New subjects get the next numbers, in order of their texts.

        Raises:
            StoreError: if no number is left.
        """
        texts = _texts(columns)
        return self._assign(texts, lambda firsts: self._allot(texts, firsts))

    def find(self, columns: Columns) -> NumericArray:
        """Return the number of each row's subject, `NO_NUMBER` for an unknown subject."""
        hashes = [text_hashes(column) for column in _texts(columns)]
        names, checks = _mix(hashes), _mix(hashes[::-1])
        with self._lock:
            if not len(self._index):
                return np.full(len(names), NO_NUMBER)
            while True:
                places = self._index.find(names)
                collides = (places != NO_NUMBER) & (self._checks[places] != checks)
                if not collides.any():
                    return np.where(places == NO_NUMBER, NO_NUMBER, self._numbers[places].astype(np.int64))
                names[collides] = mix_hashes(names[collides], 1)

    @property
    def new_rows(self) -> Columns:
        """The rows of allotted subjects that the store lacks."""
        names = [list(column) for column in zip(*(texts for _, texts in self._new), strict=True)]
        columns = dict(zip(SUBJECT_KEY, names or [[] for _ in SUBJECT_KEY], strict=True))
        return {"number": [number for number, _ in self._new], **columns}

    def confirm_new(self) -> None:
        """Note that the store has the new rows."""
        self._new = []

    def _assign(self, texts: Sequence[TextColumn], numbers_of: Callable[[NumericArray], NumericArray]) -> NumericArray:
        hashes = [text_hashes(column) for column in texts]
        names, checks = _mix(hashes), _mix(hashes[::-1])
        with self._lock:
            while True:
                places, firsts = self._index.assign(names)
                if len(firsts):
                    self._numbers = np.concatenate([self._numbers, numbers_of(firsts).astype(np.uint32)])
                    self._checks = np.concatenate([self._checks, checks[firsts]])
                collides = self._checks[places] != checks
                if not collides.any():
                    return self._numbers[places]
                names[collides] = mix_hashes(names[collides], 1)

    def _allot(self, texts: Sequence[TextColumn], rows: NumericArray) -> NumericArray:
        _check_left(self._next + len(rows))
        subjects = [tuple(column.texts[column.rows[row]] for column in texts) for row in rows.tolist()]
        order = sorted(range(len(subjects)), key=subjects.__getitem__)
        numbers = np.empty(len(subjects), np.int64)
        numbers[order] = np.arange(self._next, self._next + len(subjects))
        self._new += [(self._next + place, subjects[row]) for place, row in enumerate(order)]
        self._next += len(subjects)
        return numbers


def _check_left(end: int) -> None:
    if end > _END:
        raise StoreError(f"no subject number is left: the store has had {_END} of them; start with a new store")


def _texts(columns: Columns) -> list[TextColumn]:
    found = []
    for name in SUBJECT_KEY:
        column = columns[name]
        assert isinstance(column, DictionaryColumn | IndexedColumn)
        found.append(column)
    return found


def _mix(hashes: Sequence[NumericArray]) -> NumericArray:
    mixed = hashes[0]
    for column in hashes[1:]:
        mixed = mix_hashes(mixed, column)
    return mixed


def numbered(columns: Columns, numbers: SubjectNumbers) -> Columns:
    """Return columns with the subject's number instead of its texts."""
    rest = {name: cells for name, cells in columns.items() if name not in SUBJECT_KEY}
    return {SUBJECT_NUMBER.name: numbers.assign(columns), **rest}


_PAGE = f"""
SELECT {", ".join(column.name for column in SUBJECTS.columns)} FROM subjects FINAL
WHERE cityHash64(cluster, machine) % {{pages:UInt32}} = {{page:UInt32}}
"""  # noqa: S608 - names are constants


def load_subjects(handle: Handle, tables: Sequence[TableDefinition]) -> SubjectNumbers:
    """Return the numbers of all subjects, for a new writer; `tables` are all tables of the store."""
    numbers_in = {SUBJECTS.name: "number"} | {
        table.name: SUBJECT_NUMBER.name for table in tables if SUBJECT_NUMBER in table.columns
    }
    newest = " UNION ALL ".join(f"SELECT max({column}) AS newest FROM {name}" for name, column in numbers_in.items())  # noqa: S608 - as above
    found = handle.query(f"SELECT max(newest), (SELECT count() FROM subjects) FROM ({newest})").result_rows  # noqa: S608 - as above
    first, count = int(found[0][0]) + CHUNK, int(found[0][1])
    _check_left(first + 1)
    numbers = SubjectNumbers(first + 1)
    pages = 1 + count // ROWS_PER_PAGE
    for page in range(pages):
        table = handle.query_arrow(
            _PAGE,
            parameters={"pages": pages, "page": page},
            settings={"output_format_arrow_low_cardinality_as_dictionary": 1},
        )
        if table.num_rows:
            columns: Columns = {name: _text_column(table.column(name)) for name in SUBJECT_KEY}
            numbers.add_known(columns, table.column("number").to_numpy())
    marker: Columns = {"number": [first], **{name: [""] for name in SUBJECT_KEY}}
    handle.insert_arrow(
        SUBJECTS.name, arrow_table(SUBJECTS, marker), settings={"insert_deduplication_token": token_hex(16)}
    )
    return numbers


def _text_column(column: Any) -> TextColumn:
    """Return an Arrow column of texts."""
    coded = column.combine_chunks()
    coded = coded if hasattr(coded, "dictionary") else coded.dictionary_encode()
    return DictionaryColumn(coded.dictionary.to_pylist(), coded.indices.to_numpy())
