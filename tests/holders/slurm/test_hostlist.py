"""Host lists: expansion, membership, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.holders.slurm.hostlist import contains, expand
from gpufleet.model.errors import WireError

LITERALS = st.text("abz09-._", max_size=6)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Return a bracket and its numbers."""
    pieces: list[str] = []
    numbers: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        width = draw(st.integers(1, 4))
        first = draw(st.integers(0, 120))
        last = first + draw(st.integers(0, 12))
        low = f"{first:0{width}d}"
        pieces.append(low if first == last and draw(st.booleans()) else f"{low}-{last:0{width}d}")
        numbers += [f"{value:0{len(low)}d}" for value in range(first, last + 1)]
    return f"[{','.join(pieces)}]", numbers


@st.composite
def hostlists(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Return a list and its names, built independently of the parser."""
    terms: list[str] = []
    names: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        text, grown = "h" + draw(LITERALS), [""]
        grown = [text]
        for _ in range(draw(st.integers(0, 2))):
            bracket, numbers = draw(ranges())
            literal = draw(LITERALS)
            text += bracket + literal
            grown = [name + number + literal for name in grown for number in numbers]
        terms.append(text)
        names += grown
    return ",".join(terms), names


@given(hostlists())
def test_expansion_has_each_name_in_order(case: tuple[str, list[str]]) -> None:
    text, names = case
    assert list(expand(text, 100_000)) == names


@given(hostlists(), st.text("habz09-._", min_size=1, max_size=12))
def test_membership_agrees_with_expansion(case: tuple[str, list[str]], other: str) -> None:
    text, names = case
    assert all(contains(text, name) for name in names[:: max(1, len(names) // 50)])
    assert contains(text, other) == (other in names)


@given(st.text("an0189[],-", max_size=30) | st.text(max_size=40))
def test_any_text_is_a_list_or_a_wire_error(text: str) -> None:
    try:
        names = expand(text, 1000)
    except WireError:
        return
    assert len(names) <= 1000
    assert all(contains(text, name) for name in names[:20])


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("cw-h100-220-[037,039]", "cw-h100-220-039", True),
        ("cw-h100-220-[037,039]", "cw-h100-220-38", False),
        ("cw-h100-220-[037,039]", "cw-h100-220-0037", False),
        ("a1,b2", "b2", True),
        ("n[1-2]", "n10", False),
        ("n[1-10]", "n10", True),
        ("r[1-2]n[01-03]-x", "r2n03-x", True),
        ("n[0-999999999999]", "n123456789012", True),
        ("n[1-2][0-9]", "n15", True),
    ],
)
def test_membership_with_digits_padding_and_brackets(text: str, name: str, expected: bool) -> None:
    assert contains(text, name) is expected


@pytest.mark.parametrize("text", ["n[1-2", "n1]", "n[[1]]", "n[2-1]", "n[a-b]", "n[]", "n[1-99999999]", "n[1]" * 20])
def test_malformed_or_huge_list_is_an_error(text: str) -> None:
    with pytest.raises(WireError):
        expand(text, 65_536)
