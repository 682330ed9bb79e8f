"""How many writers a cluster may have at once, and what that is to another cluster."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.hub.counters import Counters
from gpufleet.hub.imported.writes import ROWS_KEPT_SECONDS, WRITERS_KEPT, Writes
from gpufleet.hub.imported.written import Written
from gpufleet.model.errors import WireLimitError
from tests.fakes.clock import FakeClock

NOTHING = Written(machines={}, samples=0, drift={}, others={}, nameless=0, problems={})


async def test_a_cluster_of_many_writers_leaves_room_for_another_and_silent_ones_are_forgotten() -> None:
    clock = FakeClock()
    with ThreadPoolExecutor(1) as thread:
        writes = Writes(
            ingest=None,  # type: ignore[arg-type]  # nothing comes to it
            registry=None,  # type: ignore[arg-type]
            store=None,  # type: ignore[arg-type]
            clusters=("many", "one"),
            counters=Counters(),
            clock=clock,
            threads=thread,
            is_caught_up=lambda: True,
        )

        async def write(cluster: str, sender: str) -> None:
            await writes.take(cluster, sender, lambda _: NOTHING)

        for number in range(WRITERS_KEPT):
            await write("many", f"pod-{number}")
        with pytest.raises(WireLimitError, match="'many' has 64 writers"):
            await write("many", "one-more")
        await write("one", "prometheus")
        clock.advance(ROWS_KEPT_SECONDS)
        for number in range(1, WRITERS_KEPT):
            await write("many", f"pod-{number}")
        await write("many", "one-more")  # in the place of pod-0
        with pytest.raises(WireLimitError):
            await write("many", "pod-0")
