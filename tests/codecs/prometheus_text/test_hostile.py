"""Hostile pages: results are bounded, and at most a `WireError` is raised."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.codecs.prometheus_text.page import LineProblem, TextLimits
from gpufleet.codecs.prometheus_text.parser import MAX_EXAMPLES, TextParser, wire_error_of
from gpufleet.model.errors import WireLimitError

_PIECES = st.sampled_from(
    [
        b"m",
        b"up",
        b"{",
        b"}",
        b'"',
        b"\\",
        b",",
        b"=",
        b" ",
        b"\t",
        b"\n",
        b"\r",
        b"#",
        b"# TYPE m gauge",
        b"# EOF",
        b"1",
        b"-",
        b".",
        b"e",
        b"_",
        b"NaN",
        b"1700000000000",
        b"\xff",
        "é".encode(),
        b"\x00",
        b'a="b"',
        b" # ",
    ]
)


@given(st.lists(st.lists(_PIECES, max_size=40).map(b"".join) | st.binary(max_size=200), max_size=4), st.booleans())
def test_any_bytes_give_a_page(chunks: list[bytes], openmetrics: bool) -> None:
    parser = TextParser(openmetrics=openmetrics)
    for _ in range(2):
        for chunk in chunks:
            parser.feed(chunk)
        page = parser.finish()
        assert len(page.series) == len(page.values)
        assert len(set(map(id, page.series))) == len(page.series)
        assert all(label.isprintable() for s in page.series for label in s.labels)
        assert all(shown.isascii() and shown.isprintable() for _, shown in page.examples)


_TAILS = st.lists(
    st.sampled_from([b"1", b"25", b"-", b"+", b".", b"e5", b"_", b"NaN", b" ", b"  ", b"\t", b"\r", b"x"])
    | st.sampled_from([b"1700000000123", b"1700000000.25", b"1" * 16, b"9" * 17, b"1" * 20, b" # {} 1"]),
    max_size=6,
).map(b"".join)


@given(st.lists(_TAILS, max_size=6), st.booleans())
def test_new_and_known_series_parse_their_tail_alike(tails: list[bytes], openmetrics: bool) -> None:
    text = b"".join(b'm{a="%d"} %s\n' % (number, tail) for number, tail in enumerate(tails))
    parser = TextParser(openmetrics=openmetrics)
    parser.parse(b"".join(b'm{a="%d"} 1\n' % number for number in range(len(tails))))
    page, fresh = parser.parse(text), TextParser(openmetrics=openmetrics).parse(text)
    assert repr((page.values, page.times, page.problems)) == repr((fresh.values, fresh.times, fresh.problems))
    assert [one.labels for one in page.series] == [one.labels for one in fresh.series]


@given(st.binary(max_size=300))
def test_previous_page_does_not_affect_the_next(data: bytes) -> None:
    parser = TextParser()
    with contextlib.suppress(WireLimitError):
        parser.parse(data)
    text = b'm{a="b"} 1\nm{a="c"} 2.5\nup 3\n'
    page, fresh = parser.parse(text), TextParser().parse(text)
    assert [(s.name, s.labels) for s in page.series] == [(s.name, s.labels) for s in fresh.series]
    assert (page.values, page.times, page.problems) == (fresh.values, fresh.times, fresh.problems)


def test_oversized_page_does_not_affect_the_next() -> None:
    parser = TextParser(TextLimits(page_bytes=1000))
    with pytest.raises(WireLimitError, match="1000") as caught:
        parser.parse(b"m 1\n" * 251)
    assert caught.value.field == "page"
    assert parser.parse(b"m 1\n").values == [1]


def test_page_with_too_many_series_is_rejected() -> None:
    parser = TextParser(TextLimits(series=100))
    page = b"".join(b'm{i="%d"} 1\n' % i for i in range(101))
    for _ in range(2):
        with pytest.raises(WireLimitError, match="100") as caught:
            parser.parse(page)
        assert caught.value.field == "page"
    assert len(parser.parse(page[:600]).series) > 20


def test_series_cache_is_bounded() -> None:
    parser = TextParser(TextLimits(kept=50))
    for number in range(100):
        page = parser.parse(b"".join(b'm{i="%d-%d"} 1\n' % (number, i) for i in range(40)))
        assert len(page.series) == 40
        assert len(parser._known) <= 90
        assert len(parser._same) <= 90


def test_spellings_of_one_series_are_bounded() -> None:
    parser = TextParser(TextLimits(kept=50))
    for number in range(200):
        parser.parse(b'm{a="1"' + b"," + b" " * number + b"} 1\n")
    assert len(parser._known) <= 51


def test_comments_are_bounded() -> None:
    parser = TextParser(TextLimits(families=10))
    page = parser.parse(b"".join(b"# TYPE m%d gauge\n" % i for i in range(12)) + b"# HELP m1 " + b"x" * 9000 + b"\n")
    assert page.problems == {LineProblem.TOO_MANY_FAMILIES: 2}
    assert len(page.families) == 10
    assert len(page.families["m1"].help) == 4096


def test_only_the_first_invalid_lines_are_kept() -> None:
    page = TextParser().parse(b"\x1b[31mbad\n" * 1000)
    assert page.problems == {LineProblem.SYNTAX: 1000} or page.problems == {LineProblem.NAME: 1000}
    assert len(page.examples) == MAX_EXAMPLES
    assert page.examples[0][1].startswith("\\x1b[31m")


def test_page_with_only_invalid_lines_is_an_error() -> None:
    error = wire_error_of(TextParser().parse(b"<html>no metrics here</html>\n"))
    assert error is not None
    assert "<html>" in str(error)
    assert wire_error_of(TextParser().parse(b"")) is None
    assert wire_error_of(TextParser().parse(b"<html>\nup 1\n")) is None
