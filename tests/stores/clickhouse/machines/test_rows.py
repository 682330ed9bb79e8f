"""Views are written when they are news, whoever says them again and however."""

import msgspec
import pytest

from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.view import Side, View, ViewKind, ViewList
from gpufleet.model.wire.batch import SampleBlock
from gpufleet.stores.clickhouse.machines.rows import PartRows
from gpufleet.stores.clickhouse.schema.sets import WriteCache
from tests.hub.flush.test_normalise import NOW, batch_of


def views(index: int, count: int = 2) -> ViewList:
    return ViewList(
        View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}", index=index + number) for number in range(count)
    )


def written(known: WriteCache, *told: tuple[ViewList, list[int], int], reader: str = "nvml") -> list[list[object]]:
    """Return uuid and index of the views that are written of batches, each with the views that it tells of and when."""
    parts = PartRows(known)
    for table, of, at in told:
        batch = msgspec.structs.replace(batch_of({"gpu_power_watts": [1.0] * len(of)}), views=table)
        block: SampleBlock = batch.samples[0]
        block.view, block.reader = of, reader
        parts.add(AcceptedBatch(received_at=NOW, reported_at=at, machine_ids=("m",), batch=batch))
    columns = parts.tables["views"].columns
    return [list(row) for row in zip(columns["uuid"], columns["index"], strict=True)]  # type: ignore[arg-type]


FIRST, MOVED = views(0), views(5)


@pytest.mark.parametrize("again", [FIRST, views(0)], ids=["the same list", "an equal list"])
def test_what_is_said_again_is_written_once(again: ViewList) -> None:
    known = WriteCache()
    assert written(known, (FIRST, [0, 1], 1), (again, [0, 1], 2)) == [["GPU-0", 0], ["GPU-1", 1]]
    assert written(known, (again, [0, 1], 3), (FIRST, [0, 1], 4)) == []


def test_a_view_of_the_list_that_was_not_told_of_before_is_news() -> None:
    known = WriteCache()
    assert written(known, (FIRST, [0], 1), (FIRST, [0], 2), (FIRST, [0, 1], 3)) == [["GPU-0", 0], ["GPU-1", 1]]
    assert written(known, (FIRST, [0, 1], 4), reader="dcgm") == [["GPU-0", 0], ["GPU-1", 1]]


def test_what_was_otherwise_in_between_is_news_again() -> None:
    known = WriteCache()
    assert len(written(known, (FIRST, [0, 1], 1), (MOVED, [0], 2))) == 3
    assert written(known, (FIRST, [0, 1], 3)) == [["GPU-0", 0]]


def test_late_word_is_no_news_and_does_not_hide_what_is() -> None:
    known = WriteCache()
    assert len(written(known, (MOVED, [0, 1], 10), (FIRST, [0, 1], 5), (FIRST, [0, 1], 6))) == 2
    assert written(known, (FIRST, [0, 1], 20)) == [["GPU-0", 0], ["GPU-1", 1]]
