"""Sums per user and holder, and the tree of holders."""

from gpufleet.top.observation import observe_snapshot
from gpufleet.top.rows import list_rows
from gpufleet.top.summaries import (
    FREE,
    NOT_COLLECTED,
    SHARED,
    UNKNOWN_USER,
    HolderGroup,
    SumRow,
    holder_groups,
    user_sums,
)
from tests.support.observed import GIB, node_snapshot


def groups() -> dict[str, HolderGroup]:
    return {group.sums.name: group for group in holder_groups(list_rows(observe_snapshot(node_snapshot())))}


def figures(row: SumRow) -> tuple[int, int | None, float | None]:
    return row.devices, row.processes, row.memory


def test_sums_of_each_holder() -> None:
    found = groups()
    assert {name: figures(group.sums) for name, group in found.items()} == {
        "ml/serve-0": (2, 1, 49 * GIB),
        "job 4711 train": (1, 2, 118 * GIB),
        "ml/batch-7": (1, 0, None),
        "render": (1, None, None),
        FREE: (1, None, None),
        NOT_COLLECTED: (1, None, None),
        SHARED: (1, 2, 4 * GIB),
    }
    assert list(found)[:1] == ["ml/serve-0"]
    assert {name for name, group in found.items() if not group.sums.kind} == {FREE, NOT_COLLECTED, SHARED}
    assert (found["ml/serve-0"].sums.owner, found["job 4711 train"].sums.user) == ("Deployment serve", "alice")


def test_each_process_is_in_the_tree_once() -> None:
    listed = [process.pid for group in groups().values() for _, found in group.devices for process in found]
    assert sorted(listed) == [4100, 4101, 5200, 5300, 5301]


def test_split_gpu_is_left_out_of_the_tree() -> None:
    numbers = [device.number for group in groups().values() for device, _ in group.devices]
    assert "1" not in numbers
    assert "2" not in numbers


def test_sums_of_each_user() -> None:
    found = user_sums(list_rows(observe_snapshot(node_snapshot())).processes)
    assert {row.name: figures(row) for row in found} == {
        "alice": (1, 2, 118 * GIB),
        UNKNOWN_USER: (2, 3, 53 * GIB),
    }
