"""Embedded handles after a statement that failed midway."""

import pytest

from gpufleet.model.errors import SqlError
from gpufleet.stores.clickhouse import ClickHouseStore
from gpufleet.stores.clickhouse.connection.client import translate_errors

FAILS = "SELECT toString(number) AS a, throwIf(number = 300000) AS b FROM numbers(1000000)"
"""A statement that returns rows of two columns before it fails."""


def test_rows_of_a_failed_query_are_in_no_later_result(embedded: ClickHouseStore) -> None:
    handle = embedded._handles.reader
    for number in range(3):
        with pytest.raises(Exception, match="throwIf"), translate_errors("it"):
            handle.query(FAILS)
        found = handle.query(f"SELECT 'mine' AS a, toUInt8({number}) AS b")
        assert found.result_rows == [("mine", number)]
    with pytest.raises(Exception, match="throwIf"):
        handle.query_arrow(FAILS)
    assert handle.command("SELECT 7") == 7


def test_handle_keeps_its_limits_after_a_failure(embedded: ClickHouseStore) -> None:
    embedded.select("SELECT 1")  # opens the restricted handle
    handle = embedded._handles.restricted({})
    for _ in range(2):
        with pytest.raises(Exception, match=r"(?i)readonly"):
            handle.command("CREATE TABLE x (a Int8) ENGINE = Memory")


def test_select_works_after_a_result_over_the_limit(embedded: ClickHouseStore) -> None:
    digits = "(SELECT arrayJoin([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]) AS d)"
    many = f"SELECT toString(a.d) AS n FROM {', '.join(f'{digits} AS {name}' for name in 'abcdef')}"
    for number in range(3):
        with pytest.raises(SqlError, match="Limit for result exceeded"):
            embedded.select(many)
        assert embedded.select(f"SELECT {number} AS n").rows == [(number,)]
