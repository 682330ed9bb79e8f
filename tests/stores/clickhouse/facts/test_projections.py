"""Projections of sets: numbers of contents, unknown sets, and limits."""

import numpy as np
import pytest

from gpufleet.stores.clickhouse.facts import projections
from gpufleet.stores.clickhouse.facts.projections import ProjectionCache, SetProjection, read_reasons
from gpufleet.stores.clickhouse.schema.columns import NO_NUMBER


def ids(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(numbers, np.uint64)


def test_sets_with_equal_content_have_the_same_number() -> None:
    projection = SetProjection(["a"])
    projection.add([(2**63 + 5, {"a": "x"}), (7, {"a": "x"}), (9, {"a": "y"}), (11, {})])
    found = projection.find(ids(7, 2**63 + 5, 9, 11, 0, 12))
    assert found[0] == found[1] != found[2]
    assert found[3:].tolist() == [0, 0, NO_NUMBER]
    assert projection.contents(found[:5]) == {0: {}, found[0]: {"a": "x"}, found[2]: {"a": "y"}}


def test_added_again_a_set_keeps_its_number() -> None:
    projection = SetProjection(["a"])
    projection.add([(7, {"a": "x"}), (8, {"a": "y"})])
    before = projection.find(ids(7, 8))
    projection.add([(8, {"a": "y"}), (6, {"a": "z"})])
    assert projection.find(ids(7, 8)).tolist() == before.tolist()
    assert projection.contents(projection.find(ids(6))) == {int(projection.find(ids(6))[0]): {"a": "z"}}


def test_projection_is_kept_for_equal_requests_only() -> None:
    cache = ProjectionCache()
    first = cache.of("info", ["a", "b"])
    assert cache.of("info", ("b", "a")) is first
    assert cache.of("info", ["a"]) is not first
    assert cache.of("absence_sets", ["a", "b"]) is not first
    for name in "cdefg":
        cache.of("info", [name])
    assert cache.of("info", ["a", "b"]) is not first


@pytest.mark.parametrize("limit", ["MAX_IDS", "MAX_CONTENT_BYTES"])
def test_full_projection_is_read_again(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    cache = ProjectionCache()
    projection = cache.of("info", ["a"])
    monkeypatch.setattr(projections, limit, 1)
    projection.add([(number, {"a": str(number)}) for number in (1, 2)])
    assert cache.of("info", ["a"]) is not projection


class EmptyHandle:
    """Handle of a store without sets, which records the queried ids."""

    def __init__(self) -> None:
        self.queried: list[list[int]] = []
        self.result_rows: list[tuple[object, ...]] = []

    def query(self, _statement: str, parameters: dict[str, list[int]]) -> "EmptyHandle":
        self.queried.append(parameters["ids"])
        return self


def test_set_that_the_store_lacks_is_empty_and_read_again() -> None:
    handle, projection = EmptyHandle(), SetProjection(["a"])
    for _ in range(2):
        assert read_reasons(handle, projection, ids(3, 0, 3)).tolist() == [0, 0, 0]
    assert handle.queried == [[3], [3]]
    handle.result_rows = [(3, ["a", "b"], ["timeout", "timeout"])]
    found = read_reasons(handle, projection, ids(3))
    assert projection.contents(found) == {int(found[0]): {"a": "timeout"}}
