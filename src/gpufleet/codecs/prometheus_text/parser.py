"""Incremental parser of pages of metrics: `feed` data, then `finish`.

A source sends the same series with every page. The bytes before a value are therefore looked up in a cache and parsed
only once; a line costs about two dictionary lookups.
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
from gpufleet.codecs.prometheus_text.page import LineProblem, TextFamily, TextLimits, TextPage
from gpufleet.model.errors import WireError, WireLimitError
from gpufleet.model.stored.samples import ImportedSeries
from gpufleet.model.text import clean

MAX_EXAMPLES = 8
"""Maximum number of rejected lines kept as examples."""

MAX_TAIL_BYTES = 128
"""Maximum bytes after a series: value and timestamp. The cost of parsing a number grows with its digits."""

BLANKS = b" \t\r"

_EXAMPLE_BYTES = 200
_COMMENTS = ("TYPE", "HELP", "UNIT")


class TextParser:
    """Parser of the successive pages of one source. Not thread-safe.

    After an error the parser accepts the next page.
    """

    def __init__(self, limits: TextLimits | None = None, *, openmetrics: bool = False) -> None:
        """Create a parser.

        Args:
            limits: limits; None for the defaults.
            openmetrics: whether pages are OpenMetrics text (timestamps in seconds, `# EOF` at the end, exemplars).
        """
        self._limits = limits or TextLimits()
        self._openmetrics = openmetrics
        self._known: dict[bytes, ImportedSeries] = {}  # by their bytes: every spelling
        self._same: dict[tuple[str, tuple[tuple[str, str], ...]], ImportedSeries] = {}  # by name and labels
        self._number = 1  # of the page; a series is marked with the last page it was in
        self._rest = b""
        self._bytes = 0
        self._skipping = self._ended = False
        self._page = TextPage([], [], {}, {}, {}, [])

    def feed(self, data: bytes) -> None:
        """Parse more data of a page, split at any byte.

        Raises:
            WireLimitError: if the page exceeds a page limit; the page is discarded.
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
                self._problem(LineProblem.LINE_TOO_LONG, self._rest)
            self._rest, self._skipping = b"", True

    def finish(self) -> TextPage:
        """End the page and return it.

        Raises:
            WireLimitError: if the last line exceeds a page limit.
        """
        if self._rest and not self._skipping:
            self._lines([self._rest])
        page = self._page
        page.complete = self._ended or not self._openmetrics
        self._begin()
        return page

    def parse(self, data: bytes) -> TextPage:
        """Parse a whole page; raises as `feed` and `finish` do."""
        self.feed(data)
        return self.finish()

    def _begin(self) -> None:
        self._page = TextPage([], [], {}, {}, {}, [])
        self._rest = b""
        self._bytes = 0
        self._skipping = self._ended = False
        self._number += 1
        if len(self._known) > self._limits.kept:
            self._known.clear()
            self._same.clear()

    def _fail(self, field: str, reason: str) -> None:
        self._begin()
        raise WireLimitError(field, reason)

    def _lines(self, lines: list[bytes]) -> None:
        """Parse whole lines: the hot loop for every scraped sample."""
        page, known, number = self._page, self._known, self._number
        series_of, values, times = page.series, page.values, page.times
        stamp, at = b"", 0
        for line in lines:
            end = line.rfind(b"}") + 1 or line.find(b" ")
            series = known.get(line[:end]) if end > 0 else None
            if series is None or series.mark == number or len(line) - end > MAX_TAIL_BYTES:
                self._line(line)
                continue
            number_text = line[end:].strip(BLANKS)
            own = b""
            if b" " in number_text:
                number_text, _, own = number_text.partition(b" ")
                if own != stamp:  # most lines of a source have the same timestamp
                    try:
                        stamp, at = own, time_of(own, openmetrics=self._openmetrics)
                    except LineError:
                        self._line(line, series)
                        continue
            if number_text.isdigit() and len(number_text) < INTEGER_DIGITS:
                value: int | float = int(number_text)
            elif b"." in number_text and b"_" not in number_text and len(number_text) <= MAX_NUMBER_BYTES:
                try:
                    value = float(number_text)
                except ValueError:  # after other blanks, or not a number
                    self._line(line, series)
                    continue
                if not -FLOAT_MAX <= value <= FLOAT_MAX:
                    self._problem(LineProblem.VALUE, line)
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

    def _line(self, line: bytes, series: ImportedSeries | None = None) -> None:
        """Parse any line; `series` is its series, if known."""
        if line[:1] == b"#":
            self._comment(line)
        elif len(line) > self._limits.line_bytes:
            self._problem(LineProblem.LINE_TOO_LONG, line)
        elif line and not line.isspace():
            try:
                self._add(line, series)
            except LineError as error:
                self._problem(error.problem, line)

    def _add(self, line: bytes, series: ImportedSeries | None) -> None:
        if series is None:
            series, rest = self._series(line)
        else:
            rest = line[line.rfind(b"}") + 1 or line.find(b" ") :]
        tokens = rest.split()
        if not 1 <= len(tokens) <= 2:
            raise LineError(LineProblem.SYNTAX)
        value = value_of(tokens[0])
        instant = time_of(tokens[1], openmetrics=self._openmetrics) if len(tokens) == 2 else None
        if series.mark == self._number:
            raise LineError(LineProblem.SERIES_TWICE)
        series.mark = self._number
        if instant is not None:
            self._page.times[len(self._page.series)] = instant
        self._page.series.append(series)
        self._page.values.append(value)

    def _series(self, line: bytes) -> tuple[ImportedSeries, bytes]:
        """Parse the series of a line; return it and the rest of the line without an exemplar."""
        text = line.decode("utf-8", "replace").rstrip("\r").lstrip(" \t")
        name, labels, end = parse_series(text, self._limits)
        identity = (name, tuple(sorted(labels.items())))
        series = self._same.get(identity)
        if series is None:
            series = self._same[identity] = ImportedSeries(name, labels)
        key = text[:end].encode()
        if line.startswith(key):  # no blank before it, nothing replaced in it
            self._known[key] = series
        rest = text[end:]
        if self._openmetrics:
            rest = rest.partition(" # ")[0]  # an exemplar is about single events
        return series, rest.encode()

    def _comment(self, line: bytes) -> None:
        """Parse TYPE, HELP, UNIT and EOF; ignore other comments."""
        tokens = line.decode("utf-8", "replace").rstrip("\r").split(None, 3)
        if tokens == ["#", "EOF"]:
            self._ended = True
        if len(tokens) < 3 or tokens[0] != "#" or tokens[1] not in _COMMENTS:
            return
        families, name = self._page.families, clean(tokens[2])
        family = families.get(name)
        if family is None:
            if len(families) == self._limits.families or len(name) > self._limits.name_bytes:
                self._problem(LineProblem.TOO_MANY_FAMILIES, line)
                return
            family = families[name] = TextFamily()
        text = clean(tokens[3])[: self._limits.value_bytes] if len(tokens) == 4 else ""
        if tokens[1] == "TYPE" and family.type:
            self._problem(LineProblem.TYPE_TWICE, line)
        elif tokens[1] == "TYPE":
            family.type = text.strip().lower()
        elif tokens[1] == "HELP":
            family.help = text
        else:
            family.unit = text.strip()

    def _problem(self, problem: LineProblem, line: bytes) -> None:
        page = self._page
        page.problems[problem] = page.problems.get(problem, 0) + 1
        if len(page.examples) < MAX_EXAMPLES:
            shown = line[:_EXAMPLE_BYTES].decode("utf-8", "backslashreplace").encode("unicode_escape").decode("ascii")
            page.examples.append((problem, shown))


def wire_error_of(page: TextPage) -> WireError | None:
    """Return the error for a page with lines but without a single valid sample, else None."""
    if page.series or not page.problems:
        return None
    problem, shown = page.examples[0]
    return WireError("page", f"no valid line; first problem: {problem}: {shown}")
