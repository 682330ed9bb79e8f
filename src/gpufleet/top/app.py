"""The screen of `gpufleet top` in a terminal, with textual. It reads only; no key changes a device."""

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from gpufleet.model.errors import GpufleetError
from gpufleet.top.history import UtilizationHistory
from gpufleet.top.lines import Line, cell, fitted
from gpufleet.top.rows import ObservedRows, list_rows
from gpufleet.top.screen import (
    DEVICE_SORTS,
    PROCESS_SORTS,
    BodyLine,
    BodyPage,
    PollStatus,
    ViewState,
    render_screen,
)
from gpufleet.top.source import Playback, TopSource

KEYS = (
    ("1 2 3 4 5 6, Tab", "overview devices processes holders sums topology"),
    ("Up Down PgUp PgDn Home End", "move"),
    ("s", "next sort order"),
    ("r", "reverse the order"),
    ("f", "filter: show only rows with all of these terms"),
    ("/", "search; n and N go to the next and the previous match"),
    ("Esc", "end filter, search or help"),
    ("Space", "pause or continue"),
    ("Left Right, [ ]", "replay: 10 s or 60 s back and forward"),
    ("+ -", "replay: double or halve the speed"),
    ("?", "this list"),
    ("q, Ctrl-C", "quit"),
)
"""Keys and their actions, as `?` lists them."""

FOOTER = "? keys  1-6 page  s sort  f filter  / search  space pause  q quit"

_STYLES = {
    "": RichStyle(),
    "title": RichStyle(bold=True),
    "head": RichStyle(bold=True, underline=True),
    "dim": RichStyle(dim=True),
    "good": RichStyle(color="green"),
    "warn": RichStyle(color="yellow"),
    "bad": RichStyle(color="red"),
}
_CURSOR = RichStyle(reverse=True)


def _strip(line: Line, width: int, style: RichStyle | None = None) -> Strip:
    strip = Strip([Segment(span.text, _STYLES[span.style]) for span in line]).adjust_cell_length(width)
    return strip if style is None else strip.apply_style(style)


class FixedLines(Widget):
    """Lines that do not scroll."""

    DEFAULT_CSS = "FixedLines { height: auto; }"

    def __init__(self, id: str) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Show lines; each is cut to the width of the terminal."""
        resized = len(lines) != len(self.lines)
        self.lines = lines
        self.refresh(layout=resized)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines."""
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        """Return a line of the widget."""
        return _strip(self.lines[y] if y < len(self.lines) else (), self.size.width)


class BodyLines(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines that scroll, with a cursor. Only the visible ones are drawn."""

    DEFAULT_CSS = "BodyLines { height: 1fr; scrollbar-size: 1 1; overflow-x: hidden; }"

    def __init__(self) -> None:
        super().__init__(id="body")
        self.lines: Sequence[BodyLine] = ()
        self.cursor = 0

    def show(self, lines: Sequence[BodyLine]) -> None:
        """Show lines; cursor and position stay."""
        self.lines = lines
        self.cursor = max(0, min(self.cursor, len(lines) - 1))
        self.virtual_size = Size(self.size.width, len(lines))
        self.refresh()

    def move_to(self, place: int) -> None:
        """Move the cursor to a line, and scroll it into view."""
        self.cursor = max(0, min(place, len(self.lines) - 1))
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if not top <= self.cursor < top + height:
            self.scroll_to(y=max(0, self.cursor - height // 2), animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line of the widget."""
        place = y + self.scroll_offset.y
        line = self.lines[place].line if place < len(self.lines) else ()
        return _strip(line, self.size.width, _CURSOR if place == self.cursor and self.lines else None)


class TopApp(App[None]):
    """The application.

    A failed poll keeps the last frame; the header then has its age and the reason.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = "Input { display: none; height: 1; border: none; padding: 0; } Input.active { display: block; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"page({number - 1})", show=False) for number in range(1, len(BodyPage) + 1)),
        Binding("tab", "next_page", show=False, priority=True),
        Binding("s", "sort", show=False),
        Binding("r", "reverse", show=False),
        Binding("f", "prompt('filter')", show=False),
        Binding("slash", "prompt('search')", show=False),
        Binding("n", "find(1)", show=False),
        Binding("N", "find(-1)", show=False),
        Binding("escape", "cancel", show=False, priority=True),
        Binding("space", "pause", show=False),
        Binding("left", "skip(-10)", show=False),
        Binding("right", "skip(10)", show=False),
        Binding("left_square_bracket", "skip(-60)", show=False),
        Binding("right_square_bracket", "skip(60)", show=False),
        Binding("plus", "speed(2.0)", show=False),
        Binding("minus", "speed(0.5)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown", "move_page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("question_mark", "help", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, source: TopSource, interval: float) -> None:
        """Take the source, and the seconds between two polls."""
        super().__init__()
        self.state = ViewState()
        self._source, self._interval = source, interval
        self._history = UtilizationHistory()
        self._rows: ObservedRows | None = None
        self._received = 0.0
        self._error = ""
        self._search = ""
        self._prompted = ""
        self._is_help = False
        self._is_frozen = False

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield FixedLines("header")
        yield BodyLines()
        yield Input(id="question")
        yield FixedLines("footer")

    def on_mount(self) -> None:
        """Start to poll."""
        self.query_one(BodyLines).focus()
        self.query_one("#footer", FixedLines).show([(cell(FOOTER, style="dim"),)])
        self.run_worker(self._poll_repeatedly(), exclusive=True)
        self.set_interval(1.0, self._show_age)

    def on_resize(self, _: Resize) -> None:
        """Lay the frame out again."""
        self.show()

    async def _poll_repeatedly(self) -> None:
        while True:
            began = time.monotonic()
            if not self._is_frozen:
                await self.poll()
            await asyncio.sleep(max(0.05, self._interval - (time.monotonic() - began)))

    async def poll(self) -> None:
        """Poll the source once, and show the result."""
        try:
            observation = await self._source.poll()
        except GpufleetError as error:
            self._error = str(error).splitlines()[0] if str(error) else "unknown error"
        else:
            if self._rows is None or observation is not self._rows.observation:
                self._rows = list_rows(observation)
                self._history.add(self._rows.devices)
            self._error, self._received = "", time.monotonic()
        self.show()

    def _show_age(self) -> None:
        if self._error or self._is_frozen:
            self.show()

    def show(self) -> None:
        """Show the newest observation."""
        header, body = self.query_one("#header", FixedLines), self.query_one(BodyLines)
        width = self.size.width - 1  # the scroll bar
        if self._is_help:
            header.show([(cell("Keys", style="title"),)])
            body.show([_key_line(keys, action, width) for keys, action in KEYS])
            return
        if self._rows is None:
            reason = f"no data: {self._error}" if self._error else "waiting for the first readings"
            header.show([fitted((cell(reason, style="bad" if self._error else "dim"),), width)])
            return
        age = time.monotonic() - self._received if self._error or self._is_frozen else 0.0
        status = PollStatus(age_seconds=age, error=self._error, mode=self._mode())
        screen = render_screen(self._rows, self._history, self.state, status, width)
        header.show(screen.header)
        body.show(screen.body)

    def _mode(self) -> str:
        if isinstance(self._source, Playback):
            return self._source.mode
        return "paused" if self._is_frozen else ""

    def _change(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        self.show()

    def action_page(self, number: int) -> None:
        """Show a page."""
        self._is_help = False
        self._change(page=list(BodyPage)[number])
        self.query_one(BodyLines).move_to(0)

    def action_next_page(self) -> None:
        """Show the next page."""
        self.action_page((list(BodyPage).index(self.state.page) + 1) % len(BodyPage))

    def action_sort(self) -> None:
        """Use the next sort order of the page."""
        if self.state.page in (BodyPage.OVERVIEW, BodyPage.DEVICES):
            self._change(device_sort=_next(tuple(DEVICE_SORTS), self.state.device_sort))
        elif self.state.page not in (BodyPage.SUMS, BodyPage.TOPOLOGY):
            self._change(process_sort=_next(tuple(PROCESS_SORTS), self.state.process_sort))

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._change(reverse=not self.state.reverse)

    def action_prompt(self, what: str) -> None:
        """Open the input for a filter or a search."""
        question = self.query_one("#question", Input)
        self._prompted = what
        question.placeholder = what
        question.value = self.state.filter if what == "filter" else ""
        question.add_class("active")
        question.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Use the filter or search."""
        if self._prompted == "filter":
            self._change(filter=event.value.strip())
        else:
            self._search = event.value.strip().lower()
            self.action_find(1)
        self._close_question()

    def _close_question(self) -> None:
        self.query_one("#question", Input).remove_class("active")
        self.query_one(BodyLines).focus()
        self._prompted = ""

    def action_find(self, step: int) -> None:
        """Move the cursor to the next line that has the searched text, round the end."""
        body = self.query_one(BodyLines)
        count = len(body.lines)
        places = ((body.cursor + step * offset) % count for offset in range(1, count + 1)) if self._search else ()
        found = next((place for place in places if body.lines[place].matches(self._search)), None)
        if found is not None:
            body.move_to(found)

    def action_cancel(self) -> None:
        """End the input, else the help, else the filter."""
        if self._prompted:
            self._close_question()
        elif self._is_help:
            self.action_help()
        elif self.state.filter:
            self._change(filter="")

    def action_pause(self) -> None:
        """Pause or continue."""
        if isinstance(self._source, Playback):
            self._source.toggle_pause()
        else:
            self._is_frozen = not self._is_frozen
        self.show()

    async def action_skip(self, seconds: float) -> None:
        """Move the playing time of a recording."""
        if isinstance(self._source, Playback):
            self._source.skip(seconds)
            self._history = UtilizationHistory()  # it would not be in the order of time
            await self.poll()

    def action_speed(self, factor: float) -> None:
        """Change the speed of a recording."""
        if isinstance(self._source, Playback):
            self._source.change_speed(factor)
            self.show()

    def action_move(self, lines: int) -> None:
        """Move the cursor."""
        body = self.query_one(BodyLines)
        body.move_to(body.cursor + lines)

    def action_move_page(self, pages: int) -> None:
        """Move the cursor by the height of the body."""
        self.action_move(pages * max(1, self.query_one(BodyLines).size.height - 1))

    def action_help(self) -> None:
        """Show or hide the keys."""
        self._is_help = not self._is_help
        self.show()
        self.query_one(BodyLines).move_to(0)


def _next(names: tuple[str, ...], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]


def _key_line(keys: str, action: str, width: int) -> BodyLine:
    return BodyLine(lambda: (cell(keys, 28, "title"), cell(action)), width)
