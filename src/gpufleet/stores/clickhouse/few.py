"""The newest row of each key, of a few machines or many."""

from collections.abc import Callable, Mapping
from typing import Any

from gpufleet.stores.clickhouse.client import Handle

Row = tuple[Any, ...]

_FEW = 16
"""Machines up to which the newest of the rows that are not merged yet is found here: FINAL takes longer for them."""

_OF_FEW = "optimize_move_to_prewhere = 0, max_threads = 1"
"""Of some hundred rows a part, in a piece or two, all columns are read at once sooner than some after others."""


def fetch_newest(
    handle: Handle,
    select: str,
    table: str,
    parameters: Mapping[str, Any],
    *,
    key: int,
    rank: Callable[[Row], Any],
    view: str | None = None,
) -> list[Row]:
    """Ask for rows of `machines` of a `cluster`; of those with the same first `key` cells the one of the highest rank.

    Args:
        handle: whom to ask.
        select: what, up to FROM.
        table: of which table; its version column ranks rows as `rank` does.
        parameters: those of the statement: `cluster`, `machines`, and what `select` has.
        key: how many cells say which row it is, the machine first; rows come in their order.
        rank: of two rows the newer one has the greater.
        view: of that view alone.
    """
    few = len(parameters["machines"]) <= _FEW
    asked = {**parameters, **({} if view is None else {"view": view})}
    words = [
        f"{select} FROM {table}{'' if few else ' FINAL'}",
        "WHERE cluster = {cluster:String} AND machine IN {machines:Array(String)}",
        *(["AND view = {view:String}"] if view is not None else []),
        *([f"SETTINGS {_OF_FEW}"] if few else []),
    ]
    newest: dict[Row, Row] = {}
    for row in handle.query(" ".join(words), parameters=asked).result_rows:
        before = newest.get(row[:key])
        if before is None or rank(row) >= rank(before):  # of equals the later one stands, as with FINAL
            newest[row[:key]] = row
    return [row for _, row in sorted(newest.items())]
