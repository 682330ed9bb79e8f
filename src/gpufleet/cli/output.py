"""Printing of a hub's answers, as tables or JSON."""

import contextlib
import datetime as dt
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

import msgspec

from gpufleet.cli.options import CommandError, OptionError
from gpufleet.cli.table import Layout, TextTable, render
from gpufleet.cli.times import parse_span

MIN_WATCH = dt.timedelta(seconds=1)

CLEAR = "\x1b[H\x1b[2J"
"""Terminal sequence: cursor to the top left corner, clear the screen."""


def print_tables(parts: Iterable[TextTable | str], layout: Layout | None = None) -> None:
    """Print tables and notes.

    On a terminal, tables fit its width and notes follow them. Otherwise stdout has only tab-separated rows, and notes
    go to stderr.
    """
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((80, 24)).columns if is_terminal else None
    page = render(parts, layout or Layout(), width=width, colour=is_terminal)
    sys.stdout.write(page.text)
    (sys.stdout if is_terminal else sys.stderr).write(page.notes)


def repeat(action: Callable[[], None], watch: str | None) -> None:
    """Run the action once, or repeatedly at an interval until the process is interrupted.

    The first failure ends the command. A later failure is printed, and the action is tried again.

    Raises:
        OptionError: if `watch` is not a duration of at least a second.
    """
    if watch is None:
        action()
        return
    interval = parse_span("--watch", watch)
    if interval < MIN_WATCH:
        raise OptionError("--watch", "must be at least 1s")
    is_terminal = sys.stdout.isatty()
    is_first = True
    with interrupts() as interrupted:
        while not interrupted.is_set():
            if is_terminal:
                sys.stdout.write(f"{CLEAR}{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%SZ}, every {watch}\n\n")
            try:
                action()
            except CommandError as error:
                if is_first:
                    raise
                print(f"gpufleet: {error}", file=sys.stderr)
            is_first = False
            sys.stdout.flush()
            interrupted.wait(interval.total_seconds())
    raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Yield an event that SIGINT sets. The signal also raises KeyboardInterrupt, as usual.

    Python drops an exception that is raised while a finalizer runs. The event is set nevertheless.
    """
    interrupted = threading.Event()

    def interrupt(_number: int, _frame: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, earlier)


_CONTROLS = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]"  # U+007F to U+009F: some terminals execute U+009B like ESC [
    rb"|\xd8\x9c|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]"  # marks that reverse the order of the text
)


def escape_controls(body: bytes) -> bytes:
    """Return a JSON document with the characters escaped that can control a terminal; its meaning is the same.

    JSON encoders leave control characters from U+007F and marks of direction as they are.
    """
    return _CONTROLS.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), body)


def write_json(body: bytes) -> None:
    """Write a JSON document to stdout."""
    sys.stdout.buffer.write(escape_controls(body.rstrip()) + b"\n")


def print_json(body: bytes) -> None:
    """Print a JSON document with indentation.

    Raises:
        CommandError: if the body is not JSON.
    """
    try:
        document = msgspec.json.format(body, indent=2)
    except msgspec.DecodeError as error:
        raise CommandError(f"the hub did not return JSON: {error}") from error
    write_json(document)
