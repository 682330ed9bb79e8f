"""Rows of views and inventories are written only when they change."""

import msgspec
import pytest

from gpufleet.model.machine import PciFunction
from gpufleet.model.stored.samples import AcceptedBatch
from gpufleet.model.view import Side, View, ViewKind, ViewList
from gpufleet.model.wire.batch import MachinePart, SampleBlock
from gpufleet.stores.clickhouse.machines.rows import PartRows
from gpufleet.stores.clickhouse.schema.sets import WriteCache
from tests.hub.flush.test_normalise import NOW, batch_of


def views(index: int, count: int = 2) -> ViewList:
    return ViewList(
        View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{number}", index=index + number) for number in range(count)
    )


def written(known: WriteCache, *reports: tuple[ViewList, list[int], int], reader: str = "nvml") -> list[list[object]]:
    """Return uuid and index of the written views. A report is a view list, the used indexes and its time."""
    parts = PartRows(known)
    for table, used, at in reports:
        batch = msgspec.structs.replace(batch_of({"gpu_power_watts": [1.0] * len(used)}), views=table)
        block: SampleBlock = batch.samples[0]
        block.view, block.reader = used, reader
        parts.add(AcceptedBatch(received_at=NOW, reported_at=at, machine_ids=("m",), batch=batch))
    columns = parts.tables["views"].columns
    return [list(row) for row in zip(columns["uuid"], columns["index"], strict=True)]  # type: ignore[arg-type]


FIRST, MOVED = views(0), views(5)


@pytest.mark.parametrize("again", [FIRST, views(0)], ids=["the same list", "an equal list"])
def test_repeated_view_is_written_once(again: ViewList) -> None:
    known = WriteCache()
    assert written(known, (FIRST, [0, 1], 1), (again, [0, 1], 2)) == [["GPU-0", 0], ["GPU-1", 1]]
    assert written(known, (again, [0, 1], 3), (FIRST, [0, 1], 4)) == []


def test_newly_used_view_of_a_list_is_written() -> None:
    known = WriteCache()
    assert written(known, (FIRST, [0], 1), (FIRST, [0], 2), (FIRST, [0, 1], 3)) == [["GPU-0", 0], ["GPU-1", 1]]
    assert written(known, (FIRST, [0, 1], 4), reader="dcgm") == [["GPU-0", 0], ["GPU-1", 1]]


def test_view_that_changes_back_is_written_again() -> None:
    known = WriteCache()
    assert len(written(known, (FIRST, [0, 1], 1), (MOVED, [0], 2))) == 3
    assert written(known, (FIRST, [0, 1], 3)) == [["GPU-0", 0]]


def test_late_view_is_skipped_and_hides_no_change() -> None:
    known = WriteCache()
    assert len(written(known, (MOVED, [0, 1], 10), (FIRST, [0, 1], 5), (FIRST, [0, 1], 6))) == 2
    assert written(known, (FIRST, [0, 1], 20)) == [["GPU-0", 0], ["GPU-1", 1]]


def test_late_inventory_is_skipped_and_hides_no_change() -> None:
    known = WriteCache()
    present, absent = (
        [PciFunction(address="0000:01:00.0", vendor=0x10DE, device=0x2335, class_code=0x030200)],
        list[PciFunction](),
    )
    reports = ((0, present, True), (10, present, False), (5, absent, False), (20, absent, True), (30, present, True))
    for at, functions, is_written in reports:
        parts = PartRows(known)
        batch = msgspec.structs.replace(batch_of({}), parts=[MachinePart(machine=0, inventory=functions)])
        parts.add(AcceptedBatch(received_at=NOW, reported_at=at, machine_ids=("m",), batch=batch))
        assert bool(parts.tables["inventory"].columns["machine"]) == is_written, at
