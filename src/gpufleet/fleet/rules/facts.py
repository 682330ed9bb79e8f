"""Facts about the subjects of each scope, as columns. Pure.

A hub of 250,000 GPUs judges them once a minute: a column per input lets a rule judge all subjects of its scope at once.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from gpufleet.fleet.rules.inputs import INPUTS, TEXTS
from gpufleet.fleet.rules.logic import Column
from gpufleet.model.finding import RuleScope

NO_ROW = -1
"""Row of a parent that is unknown."""

PARENTS: Mapping[RuleScope, tuple[RuleScope, ...]] = {
    RuleScope.HUB: (),
    RuleScope.CLUSTER: (RuleScope.HUB,),
    RuleScope.MACHINE: (RuleScope.CLUSTER,),
    RuleScope.SENDER: (RuleScope.CLUSTER, RuleScope.MACHINE),
    RuleScope.ALLOCATION: (RuleScope.CLUSTER, RuleScope.MACHINE),
    RuleScope.DEVICE: (RuleScope.MACHINE,),
}
"""Scopes in which a subject can have a parent. The hub is the parent of every cluster."""


class FactTable:
    """Facts about all subjects of one scope. Must not be modified.

    Attributes:
        scope: kind of the subjects.
        keys: unique keys of the subjects, such as `cluster/machine`.
        retired: 1 for a subject that is no longer expected; its findings are closed.
    """

    def __init__(
        self,
        scope: RuleScope,
        keys: Sequence[str] = (),
        columns: Mapping[str, Column | Sequence[float | None]] | None = None,
        *,
        texts: Mapping[str, Sequence[str | None]] | None = None,
        parents: Mapping[RuleScope, Column | Sequence[int]] | None = None,
        retired: Column | Sequence[bool] | None = None,
    ) -> None:
        """Take the columns by input name; a missing column has no value for any subject.

        Args:
            scope: kind of the subjects.
            keys: their keys.
            columns: numbers, None or NaN for a missing one.
            texts: text inputs.
            parents: row of each subject's parent in the table of another scope, or `NO_ROW`.
            retired: subjects that are no longer expected.

        Raises:
            ValueError: if an input or a parent scope does not exist, or a column has another length than `keys`.
        """
        self.scope = scope
        self.keys = keys
        self._columns = {name: _column(name, column, len(keys)) for name, column in (columns or {}).items()}
        self._texts = dict(texts or {})
        self._parents = {one: np.asarray(rows, np.int64) for one, rows in (parents or {}).items()}
        self.retired = np.zeros(len(keys), bool) if retired is None else np.asarray(retired, bool)
        _check_names("input", self._columns, INPUTS[scope], scope)
        _check_names("text input", self._texts, TEXTS[scope], scope)
        _check_names("parent scope", self._parents, PARENTS[scope], scope)
        for name, values in (*self._texts.items(), *self._parents.items(), ("retired", self.retired)):
            if len(values) != len(keys):
                raise ValueError(f"{name} of scope {scope} has {len(values)} rows: give {len(keys)}, one per key")
        self._rows: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def column(self, name: str) -> Column:
        """Return the column of an input, NaN where it is missing."""
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = np.full(len(self.keys), np.nan)
        return column

    def text(self, name: str, row: int) -> str | None:
        """Return a text input of a subject."""
        values = self._texts.get(name)
        return None if values is None else values[row]

    def parent_rows(self, scope: RuleScope) -> Column:
        """Return the row of each subject's parent in another table, `NO_ROW` for an unknown one."""
        rows = self._parents.get(scope)
        if rows is None:
            fill = 0 if scope is RuleScope.HUB else NO_ROW
            rows = self._parents[scope] = np.full(len(self.keys), fill, np.int64)
        return rows

    def row(self, key: str) -> int | None:
        """Return the row of a subject, or None if it is not in the table."""
        if self._rows is None:
            self._rows = {key: row for row, key in enumerate(self.keys)}
        return self._rows.get(key)


class FleetFacts(msgspec.Struct, frozen=True):
    """Facts about the fleet at an instant. A scope without a table has no subjects.

    Attributes:
        tables: table of each scope.
        unread: clusters whose machines or GPUs could not be read: the tables can lack them.
    """

    tables: Mapping[RuleScope, FactTable]
    unread: frozenset[str] = frozenset()

    @classmethod
    def of(cls, *tables: FactTable, unread: frozenset[str] = frozenset()) -> "FleetFacts":
        """Return the facts of these tables.

        Args:
            tables: at most one of each scope.
            unread: clusters whose machines or GPUs could not be read.

        Raises:
            ValueError: if two tables have the same scope, or a parent is not in its table.
        """
        found = {table.scope: table for table in tables}
        if len(found) < len(tables):
            raise ValueError("two tables have the same scope: give one table per scope")
        facts = cls({scope: found.get(scope) or FactTable(scope) for scope in RuleScope}, unread)
        for table in tables:
            for scope in PARENTS[table.scope]:
                rows, parents = table.parent_rows(scope), len(facts.tables[scope])
                if scope is not RuleScope.HUB and len(rows) and (rows.max() >= parents or rows.min() < NO_ROW):
                    raise ValueError(f"a parent of scope {table.scope} is not in the table of scope {scope}")
        return facts

    def inherit(self, scope: RuleScope, columns: Mapping[RuleScope, Column]) -> Column:
        """Return, for each subject of a scope, the first non-zero number of its parents.

        Args:
            scope: kind of the subjects.
            columns: a column of whole numbers for each parent scope.
        """
        table = self.tables[scope]
        result = np.zeros(len(table), np.int64)
        for parent in PARENTS[scope]:
            column = columns[parent]
            if len(column):
                rows = table.parent_rows(parent)
                inherited = np.where(rows == NO_ROW, 0, column[rows])
                result = np.where(result == 0, inherited, result)
        return result

    def retired(self) -> Mapping[RuleScope, Column]:
        """Return the retired subjects of each scope; a part of a retired subject is retired."""
        found: dict[RuleScope, Column] = {}
        for scope in RuleScope:
            found[scope] = self.tables[scope].retired | (self.inherit(scope, found) != 0)
        return found


def _column(name: str, values: Column | Sequence[float | None], rows: int) -> Column:
    column = np.array(values, np.float64)  # None becomes NaN; a copy, so that later changes do not matter
    if column.shape != (rows,):
        raise ValueError(f"input {name} has shape {column.shape}: give {rows} numbers, one per key")
    return column


def _check_names(what: str, names: Collection[str], known: Collection[str], scope: str) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"scope {scope} has no {what} {name!r}: use one of {', '.join(known)}")
