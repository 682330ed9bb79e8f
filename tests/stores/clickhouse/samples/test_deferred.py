"""Deferred rows of `latest`: the newest of each subject, written when they are late, old or too large."""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.stores.clickhouse.samples.deferred import MAX_SECONDS, SLACK_NS, DeferredRows

POSITION = 1_000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def add(deferred: DeferredRows, *rows: tuple[int, int, int], received_at: int = POSITION, size: int = 1) -> None:
    """Add rows of a subject, place in the order of reports, and time of measurement."""
    subject, known_at, measured_at = np.array(rows).T
    table = pa.table(
        {
            "row": pa.array(list(map(str, rows))).dictionary_encode(),  # each table has its own dictionary
            "cells": pa.array(["x" * size] * len(rows)),
        }
    )
    latest = {"known_at": known_at, "measured_at": measured_at, "received_at": np.full(len(rows), received_at)}
    deferred.add(table, {"subject": subject}, latest)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_newest_row_of_each_subject_is_left(writes: list[list[tuple[int, int, int]]]) -> None:
    deferred = DeferredRows(POSITION, Clock())
    for rows in writes:
        add(deferred, *rows)
    every = [row for rows in writes for row in rows]
    newest = {max(row for row in every if row[0] == subject) for subject, _, _ in every}
    assert sorted(deferred.newest().column("row").to_pylist()) == sorted(map(str, newest))


def test_rows_are_due_when_they_are_old() -> None:
    clock = Clock()
    deferred = DeferredRows(POSITION, clock)
    clock.now = 2 * MAX_SECONDS
    assert not deferred.is_due
    add(deferred, (1, 1, 1))
    clock.now += MAX_SECONDS / 2
    add(deferred, (1, 2, 2))
    assert not deferred.is_due
    clock.now += MAX_SECONDS
    assert deferred.is_due


@pytest.mark.parametrize(("received_at", "is_due"), [(POSITION, False), (POSITION - 1, True)])
def test_row_received_before_the_position_is_due(received_at: int, is_due: bool) -> None:
    deferred = DeferredRows(POSITION, Clock())
    add(deferred, (1, 1, 1), received_at=received_at)
    assert deferred.is_due is is_due


def test_position_follows_the_newest_receipt() -> None:
    deferred = DeferredRows(POSITION, Clock())
    newest = POSITION + 2 * SLACK_NS
    add(deferred, (1, 1, 1), received_at=newest)
    add(deferred, (1, 2, 2), received_at=newest - 1)
    deferred.clear()
    assert deferred.position == newest - SLACK_NS
    assert deferred.last_position == newest
    assert not deferred
    add(deferred, (1, 3, 3), received_at=newest - SLACK_NS)
    assert not deferred.is_due
    add(deferred, (1, 4, 4), received_at=newest - SLACK_NS - 1)
    assert deferred.is_due
    deferred.clear()
    assert deferred.position == newest - SLACK_NS


def test_position_without_rows_stays() -> None:
    deferred = DeferredRows(POSITION, Clock())
    assert (deferred.next_position, deferred.last_position) == (POSITION, POSITION)


def test_many_newest_rows_are_due_and_replaced_rows_are_not() -> None:
    deferred = DeferredRows(POSITION, Clock(), limit=10_000)
    for number in range(4):
        add(deferred, (1, number, number), size=4_000)
    assert not deferred.is_due
    for subject in range(3):
        add(deferred, (subject, 9, 9), size=4_000)
    assert deferred.is_due
