"""Texts from untrusted sources: control and format characters, bounds, formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.text import bounded, clean, counted, escape_formula, printable

DIRECTION_MARKS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff\u00ad\U000e0041"
SEPARATORS = "\u2028\u2029"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("ml/train-0 µ 训练", "ml/train-0 µ 训练"),
        ("a\x1b[2J\x07\n\t\x7f\x9bb", "a[2Jb"),
        ("\u202eabc\u2066", "?abc?"),
        ("lone \ud800", "lone ?"),
        ("non-breaking\u00a0space", "non-breaking\u00a0space"),
        (DIRECTION_MARKS, "?" * len(DIRECTION_MARKS)),
        (ZERO_WIDTH, "?" * len(ZERO_WIDTH)),
        (SEPARATORS, "?" * len(SEPARATORS)),
    ],
)
def test_control_and_format_characters_are_cleaned(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_names_that_differ_in_a_format_character_stay_different() -> None:
    assert len({clean(name) for name in ("train-0", "train\u200b-0", "train-0\u200b")}) == 3


@given(st.text(max_size=40), st.integers(1, 20))
def test_bounded_text_is_clean_and_short(text: str, most: int) -> None:
    found = bounded(text, most)
    assert len(found) <= most
    assert clean(found) == found
    assert bounded(found, most) == found


def test_long_text_is_cut_with_an_ellipsis() -> None:
    assert bounded("x" * 300, 4) == "xxx…"
    assert bounded("\x1b\n" * 300 + "xxxx", 4) == "xxxx"


def test_every_unprintable_character_is_replaced_for_terminals() -> None:
    assert printable("a\x1b\u202e\u00a0b") == "a???b"


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_formula_is_escaped(first: str) -> None:
    assert escape_formula(f"{first}1") == f"'{first}1"
    assert escape_formula(f"1{first}") == f"1{first}"


def test_numbers_have_their_nouns() -> None:
    assert [counted(number, "GPU") for number in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
