"""A statement that fails midway, and the one after it on the same handle."""

import pytest

from gpufleet.model.errors import SqlError
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.connection.client import translate_errors

FAILS = "SELECT toString(number) AS a, throwIf(number = 300000) AS b FROM numbers(1000000)"
"""It has written rows of two columns before it fails."""


def test_what_a_failed_question_had_found_is_in_no_other_answer(embedded: ClickHouseStore) -> None:
    handle = embedded._handles.reader
    for number in range(3):
        with pytest.raises(Exception, match="throwIf"), translate_errors("it"):
            handle.query(FAILS)
        found = handle.query(f"SELECT 'mine' AS a, toUInt8({number}) AS b")
        assert found.result_rows == [("mine", number)]
    with pytest.raises(Exception, match="throwIf"):
        handle.query_arrow(FAILS)
    assert handle.command("SELECT 7") == 7


def test_a_handle_keeps_its_bounds_after_a_failure(embedded: ClickHouseStore) -> None:
    embedded.select("SELECT 1")  # opens the handle with its bounds
    handle = embedded._handles.restricted({})
    for _ in range(2):
        with pytest.raises(Exception, match=r"(?i)readonly"):
            handle.command("CREATE TABLE x (a Int8) ENGINE = Memory")


def test_a_statement_of_people_after_one_that_came_to_too_much(embedded: ClickHouseStore) -> None:
    digits = "(SELECT arrayJoin([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]) AS d)"
    many = f"SELECT toString(a.d) AS n FROM {', '.join(f'{digits} AS {name}' for name in 'abcdef')}"
    for number in range(3):
        with pytest.raises(SqlError, match="Limit for result exceeded"):
            embedded.select(many)
        assert embedded.select(f"SELECT {number} AS n").rows == [(number,)]
