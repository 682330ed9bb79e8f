"""How many writers a cluster may have at once, and what that is to another cluster."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpufleet.codecs.remote_write.encode import Point, encode_1
from gpufleet.hub.counters import Counters
from gpufleet.hub.imported.writes import ROWS_KEPT_SECONDS, SERIES_KEPT, WRITERS_KEPT, Writer, Writes
from gpufleet.hub.imported.written import Written
from gpufleet.model.errors import WireLimitError
from tests.fakes.clock import FakeClock

NOW = 1_800_000_000_000_000_000
NOTHING = Written(machines={}, samples=0, drift={}, others={}, nameless=0, problems={})


@contextlib.contextmanager
def running(clock: FakeClock, series_kept: int = SERIES_KEPT) -> Iterator[Writes]:
    with ThreadPoolExecutor(1) as thread:
        yield Writes(
            ingest=None,  # type: ignore[arg-type]  # nothing comes to it
            registry=None,  # type: ignore[arg-type]
            store=None,  # type: ignore[arg-type]
            clusters=("many", "one"),
            counters=Counters(),
            clock=clock,
            threads=thread,
            is_caught_up=lambda: True,
            series_kept=series_kept,
        )


async def test_a_cluster_of_many_writers_leaves_room_for_another_and_silent_ones_are_forgotten() -> None:
    clock = FakeClock()
    with running(clock) as writes:

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


async def test_the_series_of_all_writers_together_are_bounded() -> None:
    kept: dict[str, Writer] = {}
    clock = FakeClock()
    with running(clock, series_kept=25) as writes:
        for name in ("a", "b", "c", "d"):

            def read(writer: Writer, name: str = name) -> Written:
                kept[name] = writer
                points = [Point({"__name__": "DCGM_X", "UUID": f"{name}-{i}"}, 1.0, NOW) for i in range(10)]
                writer.decoder.decode_1(encode_1([*points, Point({"__name__": "node_x", "i": name}, 1.0, NOW)]))
                return NOTHING

            await writes.take("many", name, read)
            clock.advance(1)
    # Who wrote last keeps its own; what is of no known project is not kept at all.
    assert {name: one.decoder.kept for name, one in kept.items()} == {"a": 0, "b": 0, "c": 10, "d": 10}
