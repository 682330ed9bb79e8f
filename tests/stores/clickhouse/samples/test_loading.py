"""Load of the newest samples: pages of rows as arguments of `NewestSamples.add`."""

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.stores.clickhouse.samples import loading
from gpufleet.stores.clickhouse.samples.loading import LoadedRows, loaded_rows, with_subjects
from gpufleet.stores.clickhouse.schema.columns import NO_NUMBER, DictionaryColumn, IndexedColumn

pa = importlib.import_module("pyarrow")  # it has no types

Row = tuple[str, str, list[int], list[int]]
"""Machine, view, and the numbers of integer and float metrics."""

ROWS = st.lists(
    st.tuples(
        st.sampled_from("mn"),
        st.sampled_from(("", "gpu/1", "gpu/2")),
        st.lists(st.integers(1, 5), max_size=3, unique=True),
        st.lists(st.integers(6, 9), max_size=3, unique=True),
    ),
    min_size=1,
    max_size=12,
)


def page(rows: Sequence[Row]) -> Any:
    """Return rows as the engine does; a row's values are a hundred times its place, plus the metric."""
    machines, views, ints, floats = zip(*rows, strict=True)
    values = [[[100 * place + one for one in ids] for place, ids in enumerate(some)] for some in (ints, floats)]
    return pa.table(
        {
            "machine": pa.array(machines),
            "view": pa.array(views),
            **{name: pa.array(["x"] * len(rows)) for name in ("reader", "lane", "provenance")},
            **{name: pa.array(range(len(rows)), pa.int64()) for name in ("known_ns", "measured_ns", "received_ns")},
            **{
                name: pa.array([2**63 + place for place in range(len(rows))], pa.uint64())
                for name in ("driver_session", "absence_set", "info_set")
            },
            "has_totals": pa.array([bool(place % 2) for place in range(len(rows))]),
            "int_ids": pa.array(ints, pa.list_(pa.uint16())),
            "int_values": pa.array(values[0], pa.list_(pa.uint64())),
            "float_ids": pa.array(floats, pa.list_(pa.uint16())),
            "float_values": pa.array(values[1], pa.list_(pa.float64())),
        }
    )


def as_rows(loaded: LoadedRows) -> dict[int, tuple[str, str, int, bool, dict[int, float]]]:
    """Return place of a row to its cells."""
    head, groups = loaded
    machine, view = head["machine"], head["view"]
    assert isinstance(machine, DictionaryColumn)
    assert isinstance(view, IndexedColumn)
    values = [
        {metric: float(column[row]) for metric, column in zip(group.metrics, group.columns, strict=True)}
        for group in groups
        for row in range(group.count)
    ]
    places = np.asarray(head["known_at"]).tolist()
    return {
        place: (
            machine.texts[machine.rows[row]],
            view.texts[view.rows[row]],
            int(np.asarray(head["info_set"])[row]),
            bool(np.asarray(head["has_totals"])[row]),
            values[row],
        )
        for row, place in enumerate(places)
    }


def expected(rows: Sequence[Row]) -> dict[int, tuple[str, str, int, bool, dict[int, float]]]:
    return {
        place: (
            machine,
            view,
            2**63 + place,
            bool(place % 2),
            {one: 100.0 * place + one for one in (*ints, *floats)},
        )
        for place, (machine, view, ints, floats) in enumerate(rows)
    }


@given(ROWS, st.booleans())
def test_rows_keep_their_cells(rows: list[Row], collide: bool) -> None:
    """Also if a sender chose metrics with equal hashes."""
    mix = loading._MIX
    try:
        loading._MIX = np.zeros_like(mix) if collide else mix
        loaded = loaded_rows("c", page(rows))
    finally:
        loading._MIX = mix
    assert as_rows(loaded) == expected(rows)
    assert sum(group.count for group in loaded[1]) == len(rows)
    if not collide:
        metrics = {(tuple(ints), tuple(floats)) for _, _, ints, floats in rows}
        assert len(loaded[1]) == len(metrics)


@given(ROWS, st.data())
def test_rows_without_a_subject_are_left_out(rows: list[Row], data: st.DataObject) -> None:
    loaded = loaded_rows("c", page(rows))
    kept = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    places = np.asarray(loaded[0]["known_at"])
    numbers = np.where(np.array(kept)[places], places + 7, NO_NUMBER)
    left, found = with_subjects(loaded, numbers)
    assert as_rows(found) == {place: row for place, row in expected(rows).items() if kept[place]}
    assert left.tolist() == [int(place) + 7 for place in itertools.compress(places, np.array(kept)[places])]
