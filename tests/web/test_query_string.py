"""Query strings: values by name; unknown and repeated parameters are rejected by name."""

import pytest

from gpufleet.web.query_string import ParameterError, parse_query_string

KNOWN = {"cluster": False, "metric": True}


@pytest.mark.parametrize(
    ("query", "values"),
    [
        (b"", {}),
        (b"cluster=a%2Fb", {"cluster": ["a/b"]}),
        (b"cluster", {"cluster": [""]}),
        (b"metric=x&metric=y", {"metric": ["x", "y"]}),
    ],
)
def test_values_are_returned_by_parameter(query: bytes, values: dict[str, list[str]]) -> None:
    assert parse_query_string(query, "/v1/x", KNOWN) == values


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"clutser=a", "clutser"),
        (b"cluster=a&cluster=a", "cluster"),
        (b"%ff=a", "\ufffd"),
        (b"x" * 5000, "x" * 100),
    ],
)
def test_unknown_or_repeated_parameter_is_rejected(query: bytes, field: str) -> None:
    with pytest.raises(ParameterError) as raised:
        parse_query_string(query, "/v1/x", KNOWN)
    assert raised.value.field == field
