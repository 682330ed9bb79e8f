"""Questions that block are asked on threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

from gpufleet.hub.query.targets import QueryExecutor


async def test_two_questions_are_asked_at_once() -> None:
    meeting = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        places = await QueryExecutor(threads).run_both(lambda: meeting.wait(30), lambda: meeting.wait(30))
    assert sorted(places) == [0, 1]


async def test_two_questions_are_answered_where_one_thread_has_to_do() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert await QueryExecutor(threads).run_both(lambda: "one", lambda: 2) == ("one", 2)
