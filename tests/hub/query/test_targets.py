"""Query executor: blocking queries run on threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

from gpufleet.hub.query.targets import QueryExecutor


async def test_two_queries_run_concurrently() -> None:
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        places = await QueryExecutor(threads).run_both(lambda: barrier.wait(30), lambda: barrier.wait(30))
    assert sorted(places) == [0, 1]


async def test_two_queries_complete_on_one_thread() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert await QueryExecutor(threads).run_both(lambda: "one", lambda: 2) == ("one", 2)
