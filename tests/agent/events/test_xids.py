"""XID counts of GPUs."""

import msgspec
import pytest

from gpufleet.agent.events.xids import MAX_CODES, MAX_DEVICES, XidCounts, with_xid_meaning
from gpufleet.model.event import Event
from gpufleet.model.view import Side, View, ViewKind
from tests.support.passes import gpu

UNNAMED = msgspec.structs.replace(gpu(0), uuid=None)


def event(view: View | None, code: int, at: int = 100, **attributes: str) -> Event:
    return Event(view=view, kind="xid", code=code, at=at, attributes=attributes)


def total_and_last(counts: XidCounts, view: View) -> tuple[object, object]:
    values, _ = counts.values(view, watched=True)
    return values["gpu_xid_events_total"], values["gpu_last_xid"]


def test_newest_xid_is_the_last_one_whatever_the_order() -> None:
    counts = XidCounts(since=90)
    counts.add([event(gpu(0), 79, at=200), event(gpu(0), 31, at=80, count="3"), event(None, 48)])
    assert total_and_last(counts, gpu(0)) == (4, 79)
    assert counts.since == 80, "a record of the kernel log from before the agent's start"


@pytest.mark.parametrize(("at", "last"), [(150, 31), (250, 79)])
def test_counts_of_an_address_are_added_to_those_of_the_uuid(at: int, last: int) -> None:
    counts = XidCounts(since=1)
    counts.add([event(gpu(0), 31, at=200), event(UNNAMED, 79, at=at), event(UNNAMED, 31, at=at - 10)])
    counts.place(gpu(0))
    assert total_and_last(counts, gpu(0)) == (3, last)
    assert total_and_last(counts, UNNAMED) == (3, last)


def test_gpu_without_uuid_has_the_xids_of_its_address_and_of_the_gpu_named_there() -> None:
    counts = XidCounts(since=1)
    counts.add([event(gpu(0), 79), event(UNNAMED, 119, at=200)])
    assert total_and_last(counts, gpu(0)) == (1, 79)
    assert total_and_last(counts, UNNAMED) == (2, 119)
    exchanged = msgspec.structs.replace(gpu(0), uuid="GPU-new")
    counts.place(exchanged)
    assert (total_and_last(counts, gpu(0)), total_and_last(counts, exchanged)) == ((1, 79), (1, 119))


def test_counts_are_bounded() -> None:
    counts = XidCounts(since=1)
    counts.add(event(gpu(0), code) for code in range(MAX_CODES + 1))
    views = (View(kind=ViewKind.GPU, side=Side.HOST, uuid=f"GPU-{n}") for n in range(MAX_DEVICES + 1))
    counts.add(event(view, 31) for view in views)
    assert total_and_last(counts, gpu(0))[0] == MAX_CODES
    assert len(counts.counts) == MAX_DEVICES


def test_meaning_of_an_xid_keeps_what_its_source_states() -> None:
    found = with_xid_meaning(event(gpu(0), 79, name="as the driver names it"))
    assert found.attributes == {"name": "as the driver names it", "class": "hardware", "action": "reboot_node"}
    other = Event(view=gpu(0), kind="gpu_lost", at=1)
    assert with_xid_meaning(other) is other
