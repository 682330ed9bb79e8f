"""The application of `gpufleet top`, driven by keys."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from gpufleet.codecs.snapshot_json import encode_snapshot
from gpufleet.model.errors import GpufleetError
from gpufleet.model.snapshot import Snapshot
from gpufleet.recording.reader import RecordingReader
from gpufleet.top.app import KEYS, BodyLines, FixedLines, TopApp
from gpufleet.top.lines import line_text
from gpufleet.top.observation import Observation, observe_snapshot
from gpufleet.top.screen import BodyPage
from gpufleet.top.source import Playback, TopSource
from tests.fakes.clock import FakeClock
from tests.support.hostile import CONTROLS, with_hostile_texts
from tests.support.observed import gpu, node_snapshot, readings
from tests.support.recordings import AT, write_recording

NEVER = 3600.0
"""Interval of polls; the tests poll."""


class FakeSource:
    """Source of one observation, or of an error."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = snapshot or node_snapshot()
        self.error = ""
        self.polls = 0

    async def poll(self) -> Observation:
        self.polls += 1
        if self.error:
            raise GpufleetError(self.error)
        return observe_snapshot(self.snapshot)


class Terminal:
    """The application in a terminal of textual."""

    def __init__(self, app: TopApp, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def poll(self) -> None:
        await self.app.poll()
        await self.pilot.pause()

    @property
    def header(self) -> list[str]:
        return [line_text(line) for line in self.app.query_one("#header", FixedLines).lines]

    @property
    def body(self) -> list[str]:
        return [line_text(one.line) for one in self.app.query_one(BodyLines).lines]

    @property
    def current(self) -> str:
        """The line of the cursor."""
        return self.body[self.app.query_one(BodyLines).cursor]

    @property
    def drawn(self) -> list[str]:
        """The lines of the body that the terminal shows."""
        body = self.app.query_one(BodyLines)
        return [body.render_line(y).text.rstrip() for y in range(body.size.height)]


@contextlib.asynccontextmanager
async def terminal(source: TopSource, size: tuple[int, int] = (80, 24)) -> AsyncIterator[Terminal]:
    app = TopApp(source, NEVER)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Terminal(app, pilot)


async def test_keys_select_pages() -> None:
    async with terminal(FakeSource()) as top:
        assert top.body[1].startswith("0      H200")
        for number, page in enumerate(BodyPage, start=1):
            await top.press(str(number))
            assert top.app.state.page is page
        await top.press("tab")
        assert top.app.state.page is BodyPage.OVERVIEW


async def test_everything_fits_a_terminal_of_80_by_24() -> None:
    async with terminal(FakeSource()) as top:
        assert all(len(line) <= 79 for line in (*top.header, *top.body))
        assert len(top.drawn) == 24 - len(top.header) - 1
        assert top.drawn[1].startswith("0      H200")


async def test_sort_and_reverse() -> None:
    async with terminal(FakeSource()) as top:
        await top.press("2", "s")
        assert top.app.state.device_sort == "utilization"
        await top.press("3", "r", "s")
        assert (top.app.state.process_sort, top.app.state.reverse) == ("utilization", True)


async def test_filter_is_typed_and_cancelled() -> None:
    async with terminal(FakeSource()) as top:
        await top.press("2", "f", *"lost", "enter")
        assert [line[0] for line in top.body] == ["#", "3"]
        await top.press("escape")
        assert len(top.body) > 5
        await top.press("f", *"q1")  # keys of the application are text here
        assert top.app.query_one("#question", Input).value == "q1"
        await top.press("escape")
        assert top.app.state.filter == ""
        assert top.app.is_running


async def test_search_moves_the_cursor_to_the_next_match() -> None:
    async with terminal(FakeSource()) as top:
        await top.press("slash", *"serve", "enter")
        assert top.current.startswith("└1:1/0")
        await top.press("n")
        assert top.current.startswith("└1:2/0")
        await top.press("N")
        assert top.current.startswith("└1:1/0")


async def test_help_lists_every_key() -> None:
    async with terminal(FakeSource()) as top:
        await top.press("question_mark")
        assert len(top.body) == len(KEYS)
        await top.press("question_mark")
        assert top.body[0].startswith("#")


async def test_failed_poll_keeps_the_last_frame() -> None:
    source = FakeSource()
    async with terminal(source) as top:
        before = top.body
        source.error = "connection refused\nsecond line"
        await top.poll()
        assert top.body == before
        assert "connection refused" in top.header[1]
        source.error = ""
        await top.poll()
        assert not any("refused" in line for line in top.header)


async def test_source_without_a_first_frame_is_shown_as_an_error() -> None:
    source = FakeSource()
    source.error = "connection refused"
    async with terminal(source) as top:
        assert "connection refused" in top.header[0]


async def test_scrolling_shows_all_of_many_devices() -> None:
    many = tuple(gpu(number, readings(gpu_utilization_ratio=0.5, gpu_state="ok")) for number in range(800))
    async with terminal(FakeSource(node_snapshot(found=many))) as top:
        await top.press("end")
        assert top.drawn[-1].startswith("799")
        await top.press("home")
        assert top.drawn[1].startswith("0 ")
        await top.press("pagedown", "down", "up")
        assert top.current.startswith(str(len(top.drawn) - 2))


async def test_terminal_of_any_size_is_drawn() -> None:
    async with terminal(FakeSource()) as top:
        for size in ((20, 5), (1, 1), (300, 80), (80, 24)):
            await top.pilot.resize_terminal(*size)
            await top.pilot.pause()
        assert top.drawn[1].startswith("0      H200")


async def test_pause_stops_polling() -> None:
    async with terminal(FakeSource()) as top:
        await top.press("space")
        assert "paused" in top.header[0]
        await top.press("space")
        assert "paused" not in top.header[0]


async def test_hostile_texts_are_not_drawn() -> None:
    async with terminal(FakeSource(with_hostile_texts(node_snapshot())), (200, 50)) as top:
        for key in "123456":
            await top.press(key)
            assert not CONTROLS & set("".join((*top.drawn, *top.header)))


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_key_quits(key: str) -> None:
    async with terminal(FakeSource()) as top:
        await top.press(key)
        assert not top.app.is_running


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "r"
    write_recording(path, [encode_snapshot(node_snapshot(f"frame-{number}")) for number in range(100)])
    return path


async def test_keys_of_a_replay(recording: Path) -> None:
    clock = FakeClock()
    with recording.open("rb") as stream:
        playback = Playback(RecordingReader(stream), AT, clock.monotonic, lambda snapshot: snapshot)
        async with terminal(playback) as top:
            assert top.header[0].startswith("frame-0")
            await top.press("right")
            assert top.header[0].startswith("frame-10")
            await top.press("right_square_bracket", "left")
            assert top.header[0].startswith("frame-60")
            await top.press("plus")
            clock.advance(2)
            await top.poll()
            assert top.header[0].startswith("frame-64")
            await top.press("space")
            clock.advance(10)
            await top.poll()
            assert top.header[0].startswith("frame-64")
            assert "paused" in top.header[0]
