"""Reads pages of metrics, as text comes in: `feed` it, then `finish`.

A source sends the same series page after page. What stands before a value is therefore looked up as bytes, and
taken apart only when it was never seen; that makes a page cost about two dictionary lookups a line.
"""

from gpufleet.codecs.prometheus_text.labels import (
    FLOAT_MAX,
    INTEGER_DIGITS,
    MAX_NUMBER_BYTES,
    LineError,
    parse_series,
    time_of,
    value_of,
)
from gpufleet.codecs.prometheus_text.page import Family, Page, Problem, TextLimits
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.stored.samples import Series
from gpufleet.model.text import clean

MAX_EXAMPLES = 8
"""Lines that were not taken and are kept to be shown."""

MAX_TAIL_BYTES = 128
"""Behind a series: room for a number and an instant. The work on a number grows with its digits."""

BLANKS = b" \t\r"

_EXAMPLE_BYTES = 200
_COMMENTS = ("TYPE", "HELP", "UNIT")


class TextParser:
    """Reads the pages of one source, one after the other. Not safe to share between threads.

    After an error the parser takes the next page as if nothing had been.
    """

    def __init__(self, limits: TextLimits | None = None, *, openmetrics: bool = False) -> None:
        """Prepare it.

        Args:
            limits: bounds; None for the defaults.
            openmetrics: whether pages are OpenMetrics text (timestamps in seconds, `# EOF` at the end, exemplars).
        """
        self._limits = limits or TextLimits()
        self._openmetrics = openmetrics
        self._known: dict[bytes, Series] = {}  # by their bytes: every spelling that was seen
        self._same: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}  # by what they mean
        self._number = 1  # of the page; a series remembers the last one it was in
        self._rest = b""
        self._bytes = 0
        self._skipping = self._ended = False
        self._page = Page([], [], {}, {}, {}, [])

    def feed(self, data: bytes) -> None:
        """Take more of a page, cut anywhere.

        Raises:
            WireLimitError: if the page passes a bound of a page; the page is over.
        """
        self._bytes += len(data)
        if self._bytes > self._limits.page_bytes:
            self._fail("page", f"more than {self._limits.page_bytes} bytes")
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._skipping and lines:
            del lines[0]
            self._skipping = False
        self._lines(lines)
        if len(self._rest) > self._limits.line_bytes:
            if not self._skipping:
                self._problem(Problem.LINE_TOO_LONG, self._rest)
            self._rest, self._skipping = b"", True

    def finish(self) -> Page:
        """End the page and return what it said.

        Raises:
            WireLimitError: if its last line passes a bound of a page.
        """
        if self._rest and not self._skipping:
            self._lines([self._rest])
        page = self._page
        page.complete = self._ended or not self._openmetrics
        self._begin()
        return page

    def parse(self, data: bytes) -> Page:
        """Read a whole page at once; raises as `feed` and `finish` do."""
        self.feed(data)
        return self.finish()

    def _begin(self) -> None:
        self._page = Page([], [], {}, {}, {}, [])
        self._rest = b""
        self._bytes = 0
        self._skipping = self._ended = False
        self._number += 1
        if len(self._known) > self._limits.kept:
            self._known.clear()
            self._same.clear()

    def _fail(self, field: str, words: str) -> None:
        self._begin()
        raise WireLimitError(field, words)

    def _lines(self, lines: list[bytes]) -> None:
        """Take whole lines; the loop every sample of a fleet passes through."""
        page, known, number = self._page, self._known, self._number
        series_of, values, times = page.series, page.values, page.times
        stamp, at = b"", 0
        for line in lines:
            end = line.rfind(b"}") + 1 or line.find(b" ")
            series = known.get(line[:end]) if end > 0 else None
            if series is None or series.mark == number or len(line) - end > MAX_TAIL_BYTES:
                self._line(line)
                continue
            word = line[end:].strip(BLANKS)
            own = b""
            if b" " in word:
                word, _, own = word.partition(b" ")
                if own != stamp:  # a source writes one instant on many lines
                    try:
                        stamp, at = own, time_of(own, openmetrics=self._openmetrics)
                    except LineError:
                        self._line(line, series)
                        continue
            if word.isdigit() and len(word) < INTEGER_DIGITS:
                value: int | float = int(word)
            elif b"." in word and b"_" not in word and len(word) <= MAX_NUMBER_BYTES:
                try:
                    value = float(word)
                except ValueError:  # behind other blanks, or no number at all
                    self._line(line, series)
                    continue
                if not -FLOAT_MAX <= value <= FLOAT_MAX:
                    self._problem(Problem.VALUE, line)
                    continue
            else:
                self._line(line, series)
                continue
            series.mark = number
            if own:
                times[len(values)] = at
            series_of.append(series)
            values.append(value)
        if len(series_of) > self._limits.series:
            self._fail("page", f"more than {self._limits.series} series")

    def _line(self, line: bytes, series: Series | None = None) -> None:
        """Take any line, word by word; `series` is what it begins with, if that is known."""
        if line[:1] == b"#":
            self._comment(line)
        elif len(line) > self._limits.line_bytes:
            self._problem(Problem.LINE_TOO_LONG, line)
        elif line and not line.isspace():
            try:
                self._add(line, series)
            except LineError as error:
                self._problem(error.problem, line)

    def _add(self, line: bytes, series: Series | None) -> None:
        if series is None:
            series, rest = self._series(line)
        else:
            rest = line[line.rfind(b"}") + 1 or line.find(b" ") :]
        words = rest.split()
        if not 1 <= len(words) <= 2:
            raise LineError(Problem.SYNTAX)
        value = value_of(words[0])
        instant = time_of(words[1], openmetrics=self._openmetrics) if len(words) == 2 else None
        if series.mark == self._number:
            raise LineError(Problem.SERIES_TWICE)
        series.mark = self._number
        if instant is not None:
            self._page.times[len(self._page.series)] = instant
        self._page.series.append(series)
        self._page.values.append(value)

    def _series(self, line: bytes) -> tuple[Series, bytes]:
        """Take a line's series apart; return it and what stands behind it, without an exemplar."""
        text = line.decode("utf-8", "replace").rstrip("\r").lstrip(" \t")
        name, labels, end = parse_series(text, self._limits)
        identity = (name, tuple(sorted(labels.items())))
        series = self._same.get(identity)
        if series is None:
            series = self._same[identity] = Series(name, labels)
        key = text[:end].encode()
        if line.startswith(key):  # no blank before it, nothing replaced in it
            self._known[key] = series
        rest = text[end:]
        if self._openmetrics:
            rest = rest.partition(" # ")[0]  # an exemplar is about single events
        return series, rest.encode()

    def _comment(self, line: bytes) -> None:
        """Take TYPE, HELP, UNIT and EOF; every other comment says nothing."""
        words = line.decode("utf-8", "replace").rstrip("\r").split(None, 3)
        if words == ["#", "EOF"]:
            self._ended = True
        if len(words) < 3 or words[0] != "#" or words[1] not in _COMMENTS:
            return
        families, name = self._page.families, clean(words[2])
        family = families.get(name)
        if family is None:
            if len(families) == self._limits.families or len(name) > self._limits.name_bytes:
                self._problem(Problem.TOO_MANY_FAMILIES, line)
                return
            family = families[name] = Family()
        text = clean(words[3])[: self._limits.value_bytes] if len(words) == 4 else ""
        if words[1] == "TYPE" and family.type:
            self._problem(Problem.TYPE_TWICE, line)
        elif words[1] == "TYPE":
            family.type = text.strip().lower()
        elif words[1] == "HELP":
            family.help = text
        else:
            family.unit = text.strip()

    def _problem(self, problem: Problem, line: bytes) -> None:
        page = self._page
        page.problems[problem] = page.problems.get(problem, 0) + 1
        if len(page.examples) < MAX_EXAMPLES:
            shown = line[:_EXAMPLE_BYTES].decode("utf-8", "backslashreplace").encode("unicode_escape").decode("ascii")
            page.examples.append((problem, shown))


def wire_error_of(page: Page) -> WireError | None:
    """Return the error for a page of which nothing could be read although it had something to read, else None."""
    if page.series or not page.problems:
        return None
    problem, shown = page.examples[0]
    return WireError("page", f"no line of it could be read; the first: {problem}: {shown}")
