"""Feed: the newest number, shared lists of open findings, and names of machines."""

from gpufleet.hub.notify.feed import PAGE_FINDINGS, REFRESH_SECONDS, SHARED_SECONDS
from tests.support.notices import Board


async def test_newest_number_is_read_at_most_once_a_second() -> None:
    board = Board()
    feed = board.feed()
    await feed.refresh()
    board.open()
    await feed.refresh()
    assert feed.newest == 0
    board.clock.advance(REFRESH_SECONDS)
    await feed.refresh()
    assert (feed.newest, await feed.find_newest()) == (1, 1)


async def test_open_findings_are_shared_but_never_behind_a_receiver() -> None:
    board = Board()
    first = board.open()
    feed = board.feed()
    assert [one.id for one in await feed.open_findings(0)] == [first.id]
    board.close(first)
    assert len(await feed.open_findings(0)) == 1  # shared
    (_, closed) = await feed.transitions(0)
    assert await feed.open_findings(closed.number) == ()  # this receiver has processed the closing
    second = board.open(scope="east/m2/gpu/GPU-2")
    assert await feed.open_findings(closed.number) == ()
    board.clock.advance(SHARED_SECONDS)
    assert [one.id for one in await feed.open_findings(closed.number)] == [second.id]


async def test_open_findings_of_several_pages_are_complete() -> None:
    board = Board()
    for number in range(PAGE_FINDINGS + 3):
        board.open(scope=f"east/m{number}")
    assert len({one.id for one in await board.feed().open_findings(0)}) == PAGE_FINDINGS + 3


async def test_unknown_machine_has_no_name() -> None:
    board = Board()
    assert await board.feed().names(["m1", "m2", "m9"]) == {"m1": "node-1", "m2": "node-2"}
    assert board.name_reads == 1
