"""Text parser: numbers, series, comments, timestamps and OpenMetrics, at any chunk boundary."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpufleet.codecs.prometheus_text.page import LineProblem, TextPage
from gpufleet.codecs.prometheus_text.parser import TextParser

PAGES = Path(__file__).parents[2] / "data" / "exposition"


def parse(text: str, *, openmetrics: bool = False) -> TextPage:
    return TextParser(openmetrics=openmetrics).parse(text.encode())


def samples(page: TextPage) -> list[tuple[str, dict[str, str], int | float]]:
    return [(s.name, s.labels, value) for s, value in zip(page.series, page.values, strict=True)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-3", -3),
        ("+7", 7),
        ("18014398509481985", 18014398509481985),  # above 2**53, not representable as float
        ("8.4e6", 8.4e6),
        ("1e-07", 1e-7),
        ("-0.5", -0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("+Inf", math.inf),
        ("-Inf", -math.inf),
        ("inf", math.inf),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["first page", "known series"])
def test_numbers_are_parsed(text: str, value: float, again: bool) -> None:
    parser = TextParser()
    if again:
        parser.parse(b'm{a="b"} 1\n')
    page = parser.parse(f'm{{a="b"}} {text}\n'.encode())
    assert page.values == [value]
    assert type(page.values[0]) is type(value)
    assert not page.problems


@pytest.mark.parametrize("again", [False, True], ids=["first page", "known series"])
@pytest.mark.parametrize(
    "text", ["1_0", "1_0.5", "0x10", "one", "--1", "1e", "1e400", "1.0e400", "9" * 63 + "x", "", "٣", "1.2.3", "nano"]
)
def test_invalid_number_drops_its_line(text: str, again: bool) -> None:
    parser = TextParser()
    if again:
        parser.parse(b'm{a="b"} 1\n')
    page = parser.parse(f'm{{a="b"}} {text}\nok 1\n'.encode())
    assert samples(page) == [("ok", {}, 1)]
    assert sum(page.problems.values()) == 1
    assert set(page.problems) <= {LineProblem.VALUE, LineProblem.SYNTAX}


def test_nan_is_a_value() -> None:
    (value,) = parse("m NaN\n").values
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("line", "name", "labels"),
    [
        ("up 1", "up", {}),
        ("up\t1", "up", {}),
        ("up{} 1", "up", {}),
        ("  up 1", "up", {}),
        ("up {a='x'} 1".replace("'", '"'), "up", {"a": "x"}),
        ('up{a="x",} 1', "up", {"a": "x"}),
        ('up{ a = "x" , b="y" } 1', "up", {"a": "x", "b": "y"}),
        ('up{a="x"}1', "up", {"a": "x"}),
        ('up{a="}"} 1', "up", {"a": "}"}),
        ('up{cmd="for (;;) { x }, y"} 1', "up", {"cmd": "for (;;) { x }, y"}),
        ('{"my.metric",a="x"} 1', "my.metric", {"a": "x"}),
        ('{"my.metric","la.bel"="x"} 1', "my.metric", {"la.bel": "x"}),
        ('up{a="é漢"} 1', "up", {"a": "é漢"}),
        ('up{a="\x1b[2J\x00b"} 1', "up", {"a": "[2Jb"}),
    ],
)
def test_series_syntax(line: str, name: str, labels: dict[str, str]) -> None:
    page = parse(line + "\n")
    assert [s.name for s in page.series] == [name]
    assert page.series[0].labels == labels


def test_escapes_of_the_format_are_decoded() -> None:
    (series,) = parse(r'up{a="quo\"te",b="back\\slash",c="new\nline",d="\t kept",e="\\n"} 1' + "\n").series
    assert series.labels == {"a": 'quo"te', "b": "back\\slash", "c": "newline", "d": "\\t kept", "e": "\\n"}


def test_carriage_return_escape_of_all_smi_is_decoded() -> None:
    """It becomes a control character, and these are removed; an escaped backslash before `r` is not this escape."""
    (series,) = parse(r'up{a="H200\r",b="one\rtwo",c="C:\\run"} 1' + "\n").series
    assert series.labels == {"a": "H200", "b": "onetwo", "c": r"C:\run"}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1up 1", LineProblem.NAME),
        ("u-p 1", LineProblem.NAME),
        ("{} 1", LineProblem.NAME),
        ("{a='x'} 1".replace("'", '"'), LineProblem.NAME),
        ('up{"other",a="x"} 1', LineProblem.NAME),
        ('up{1a="x"} 1', LineProblem.NAME),
        ('up{="x"} 1', LineProblem.NAME),
        ('up{a="x",a="y"} 1', LineProblem.LABEL_TWICE),
        ('up{a="x} 1', LineProblem.SYNTAX),
        ("up{a=x} 1", LineProblem.SYNTAX),
        ('up{a="x"', LineProblem.SYNTAX),
        ('up{a="x" b="y"} 1', LineProblem.SYNTAX),
        ("up", LineProblem.SYNTAX),
        ("up 1 2 3", LineProblem.SYNTAX),
        ("up1", LineProblem.SYNTAX),
        ("up 1 x", LineProblem.TIMESTAMP),
        ("up 1 1.5", LineProblem.TIMESTAMP),
        ("up 1 0", LineProblem.TIMESTAMP),
        ("up 1 -5", LineProblem.TIMESTAMP),
        ("up 1 99999999999999999", LineProblem.TIMESTAMP),
        ("up 1 9999999999999999", LineProblem.TIMESTAMP),
        ("u" * 257 + " 1", LineProblem.NAME),
        ("é 1", LineProblem.NAME),
        ('up{a="' + "x" * 4097 + '"} 1', LineProblem.LABEL_TOO_LONG),
        ("up{" + ",".join(f'l{i}="x"' for i in range(257)) + "} 1", LineProblem.TOO_MANY_LABELS),
        ("x" * 70_000 + " 1", LineProblem.LINE_TOO_LONG),
    ],
)
def test_invalid_line_is_counted_and_dropped(line: str, problem: LineProblem) -> None:
    page = parse(f'first 1\n{line}\nlast{{a="b"}} 2\n')
    assert page.problems == {problem: 1}
    assert page.examples[0][0] is problem
    assert len(page.examples[0][1]) <= 1000
    assert samples(page) == [("first", {}, 1), ("last", {"a": "b"}, 2)]


@pytest.mark.parametrize("size", [4096, 4095])
def test_label_length_limit_is_exact(size: int) -> None:
    page = parse(f'up{{a="{"x" * size}"}} 1\n')
    assert len(page.series[0].labels["a"]) == size


def test_label_length_is_measured_in_bytes() -> None:
    assert parse('up{a="' + "é" * 2048 + '"} 1\n').series
    assert parse('up{a="' + "é" * 2049 + '"} 1\n').problems == {LineProblem.LABEL_TOO_LONG: 1}


def test_label_value_cannot_forge_a_label() -> None:
    (series,) = parse(r'up{name="x\",host=\"evil",uuid="GPU-1",gpu="0"} 1' + "\n").series
    assert series.labels == {"name": 'x",host="evil', "uuid": "GPU-1", "gpu": "0"}


def test_type_help_and_unit_comments() -> None:
    page = parse("# HELP m  What it is: a \\n test\n# TYPE m gauge\n# UNIT m bytes\n# anything else\n#\nm 1\n")
    assert page.families["m"].type == "gauge"
    assert page.families["m"].help == "What it is: a \\n test"
    assert page.families["m"].unit == "bytes"
    assert not page.problems


def test_first_type_of_a_metric_counts() -> None:
    page = parse('# TYPE m gauge\nm 1\n# TYPE m counter\nm{a="b"} 2\n')
    assert page.families["m"].type == "gauge"
    assert page.problems == {LineProblem.TYPE_TWICE: 1}
    assert len(page.series) == 2


def test_duplicate_series_are_dropped() -> None:
    parser = TextParser()
    for _ in range(2):
        page = parser.parse(b'm{a="1",b="2"} 1\nm{b="2",a="1"} 2\nm{a="1",b="2"} 3\nm{a="1",b="2",} 4\n')
        assert page.values == [1]
        assert page.problems == {LineProblem.SERIES_TWICE: 3}


def test_series_objects_are_reused_between_pages() -> None:
    parser = TextParser()
    first = parser.parse(b'm{a="1",b="2"} 1\nup 1\n')
    second = parser.parse(b'up 2\nm{b="2",a="1"} 2.5\n')
    assert first.series[0] is second.series[1]
    assert first.series[1] is second.series[0]


def test_known_series_is_not_matched_by_prefix() -> None:
    parser = TextParser()
    parser.parse(b'up 1\nm{a="1"} 1\n')
    page = parser.parse(b'up1\nup2 5\nm{a="1"}x1\nm{a="1"} \n')
    assert samples(page) == [("up2", {}, 5)]
    assert page.problems == {LineProblem.SYNTAX: 2, LineProblem.VALUE: 1}


@pytest.mark.parametrize("again", [False, True], ids=["first page", "known series"])
def test_sample_timestamps(again: bool) -> None:
    parser = TextParser()
    text = b'm{a="1"} 5 1700000000123\nm{a="2"} 5.5\nn 1 1700000000456\n'
    if again:
        parser.parse(text)
    page = parser.parse(text)
    assert page.values == [5, 5.5, 1]
    assert page.times == {0: 1_700_000_000_123_000_000, 2: 1_700_000_000_456_000_000}


def test_openmetrics_page() -> None:
    text = (
        "# TYPE requests counter\n# UNIT requests bytes\n"
        'requests_total{a="1"} 17.0 1700000000.25 # {trace_id="x} y"} 0.5 1700000000.1\n'
        'requests_created{a="1"} 1699999999.5\n# EOF\n'
    )
    parser = TextParser(openmetrics=True)
    for _ in range(2):
        page = parser.parse(text.encode())
        assert page.complete
        assert not page.problems
        assert page.values == [17.0, 1699999999.5]
        assert page.times == {0: 1_700_000_000_250_000_000}
        assert page.series[0].labels == {"a": "1"}


def test_openmetrics_page_without_eof_is_incomplete() -> None:
    assert not parse("m 1\n", openmetrics=True).complete
    assert parse("m 1\n").complete


def test_crlf_line_ends() -> None:
    parser = TextParser()
    for _ in range(2):
        page = parser.parse(b'# TYPE m gauge\r\nm{a="b"} 12\r\nn 1.5\r\n\r\n')
        assert page.values == [12, 1.5]
        assert type(page.values[0]) is int
        assert page.families["m"].type == "gauge"
        assert not page.problems


def test_invalid_utf_8_affects_only_its_line() -> None:
    parser = TextParser()
    for _ in range(2):
        page = parser.parse(b'm{a="\xff\xfe"} 1\nm{a="ok"} 2\n')
        assert [s.labels["a"] for s in page.series] == ["\ufffd\ufffd", "ok"]


@given(st.data())
def test_page_can_be_cut_anywhere(data: st.DataObject) -> None:
    text = (
        'm{a="é漢",b="}"} 1.5\r\n# TYPE n counter\nn 18014398509481985 1700000000000\n'
        + "y" * 70_000
        + ' 1\nlast{x="y"} 3'
    )
    whole = TextParser().parse(text.encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text.encode())), max_size=8)))
    parser = TextParser()
    for _ in range(2):
        for start, end in zip([0, *cuts], [*cuts, None], strict=True):
            parser.feed(text.encode()[start:end])
        page = parser.finish()
        assert samples(page) == samples(whole)
        assert page.times == whole.times
        assert page.problems == whole.problems == {LineProblem.LINE_TOO_LONG: 1}


_NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
_LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True),  # the reference rejects names with a leading __
    st.text(
        st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]) | st.just("\\") | st.just('"'), max_size=12
    ),
    max_size=4,
)
_VALUES = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _line(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    number = repr(value) if not math.isinf(value) else ("+Inf" if value > 0 else "-Inf")
    return f"{name}{{{inside}}} {number}\n" if labels else f"{name} {number}\n"


@given(st.lists(st.tuples(_NAMES, _LABELS, _VALUES), max_size=12))
def test_parser_agrees_with_the_reference_parser(
    rows: list[tuple[str, dict[str, str], float]],
) -> None:
    unique = {(name, tuple(sorted(labels.items()))): (name, labels, value) for name, labels, value in rows}
    text = "".join(_line(*row) for row in unique.values())
    parser = TextParser()
    for _ in range(2):
        page = parser.parse(text.encode())
        assert not page.problems
        reference = [s for family in text_string_to_metric_families(text) for s in family.samples]
        assert sorted(map(repr, samples(page))) == sorted(map(repr, unique.values()))
        assert sorted((s.name, sorted(s.labels.items()), float(s.value)) for s in reference) == sorted(
            (name, sorted(labels.items()), float(value)) for name, labels, value in samples(page)
        )


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.txt")), ids=lambda path: path.stem)
def test_pages_of_other_exporters_are_read_completely(path: Path) -> None:
    text = path.read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    page = TextParser().parse(text.encode())
    assert page.problems.keys() <= {LineProblem.TYPE_TWICE}
    assert len(page.series) == len(lines) > 0
    for line, series, value in zip(lines, page.series, page.values, strict=True):
        assert line.startswith(series.name)
        assert float(line.rpartition(" ")[2]) == value
        assert line.count('="') == len(series.labels)
