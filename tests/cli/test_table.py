"""Tables: columns that fit a terminal, and tab-separated rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.cli.options import OptionError
from gpufleet.cli.table import Cell, Layout, TextColumn, TextTable, cut_to, display_width, render

UUID = "GPU-5a61abb5-f88e-4df2-8e2f-bd67b3cf7a55"
TABLE = TextTable(
    (
        TextColumn("id"),
        TextColumn("model", cut=True),
        TextColumn("power", rank=1, right=True),
        TextColumn("node", rank=2),
        TextColumn("pci", wide=True),
    ),
    (
        (Cell("GPU-5a61abb5", full=UUID), "H200", Cell("9 W", key=9), "node-a", "1b"),
        (Cell("GPU-6a61abb5"), "H100 80GB HBM3", Cell("100 W", key=100), "node-b", "1c"),
        (Cell("GPU-7a61abb5"), "L40S", Cell(absent="timeout"), "node-c", "1d"),
    ),
    "GPUs",
)


def rows(layout: Layout, width: int | None = None) -> list[list[str]]:
    lines = render([TABLE], layout, width=width).text.splitlines()
    return [line.split("\t") if width is None else line.split() for line in lines]


def test_rows_without_a_terminal_are_complete_and_tab_separated() -> None:
    assert rows(Layout())[:2] == [
        ["id", "model", "power", "node", "pci"],
        [UUID, "H200", "9 W", "node-a", "1b"],
    ]


def test_absent_cell_is_a_dash_with_its_reason_in_one_note() -> None:
    page = render([TABLE], Layout(), width=80)
    assert page.text.splitlines()[3].split() == ["GPU-7a61abb5", "L40S", "-", "node-c"]
    assert page.notes.count("timeout (1)") == 1


def test_terminal_shows_short_ids_and_no_wide_columns() -> None:
    assert rows(Layout(), 80)[:2] == [["id", "model", "power", "node"], ["GPU-5a61abb5", "H200", "9", "W", "node-a"]]
    assert rows(Layout(wide=True), 80)[1] == [UUID, "H200", "9", "W", "node-a", "1b"]


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (80, ["id", "model", "power", "node"]),
        (40, ["id", "model", "power", "node"]),
        (33, ["id", "model", "power"]),
        (25, ["id", "model"]),
        (5, ["id", "model"]),
    ],
)
def test_narrow_terminal_omits_columns_by_rank(width: int, titles: list[str]) -> None:
    page = render([TABLE], Layout(), width=width)
    assert page.text.splitlines()[0].split() == titles
    assert all(one[0].startswith("GPU-") and len(one[0]) == 12 for one in rows(Layout(), width)[1:])
    notes = " ".join(page.notes.split())
    for omitted in {"power", "node"} - set(titles):
        assert omitted in notes


def test_text_is_cut_before_columns_are_omitted() -> None:
    assert rows(Layout(), 40)[2] == ["GPU-6a61abb5", "H100", "80GB", "…", "100", "W", "node-b"]


def test_text_wraps_at_spaces() -> None:
    table = TextTable(
        (TextColumn("id"), TextColumn("why", wrap=True)), (("a", "one two three four five six seven"),), "rows"
    )
    assert render([table], Layout(), width=28).text == "id  why\na   one two three four five\n    six seven\n"


def test_columns_are_selected_in_the_given_order() -> None:
    assert rows(Layout(columns=("Power", "id")))[1] == ["9 W", UUID]
    assert rows(Layout(columns=("pci", "id")), 10)[1] == ["1b", "GPU-5a61abb5"]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("power", ["9 W", "100 W", "-"]),
        ("-power", ["100 W", "9 W", "-"]),
        ("-node", ["-", "100 W", "9 W"]),
    ],
)
def test_rows_are_sorted_by_value_and_absent_ones_are_last(sort: str, expected: list[str]) -> None:
    assert [row[0] for row in rows(Layout(columns=("power",), sort=sort))[1:]] == expected


@pytest.mark.parametrize("layout", [Layout(columns=("x",)), Layout(sort="x"), Layout(sort="-"), Layout(states=("ok",))])
def test_unknown_column_is_an_option_error(layout: Layout) -> None:
    with pytest.raises(OptionError):
        render([TABLE], layout, width=80)


def test_state_selects_by_key() -> None:
    table = TextTable(
        (TextColumn("state"),), ((Cell("late, not verified", key="late"),), (Cell("live", key="live"),)), "machines"
    )
    assert render([table], Layout(states=("late",)), width=None).text == "state\nlate, not verified\n"


def test_empty_table_has_titles_only_without_a_terminal() -> None:
    empty = TextTable((TextColumn("id"),), (), "GPUs")
    assert render([empty], Layout(), width=None).text == "id\n"
    assert render([empty], Layout(), width=80).text == ""
    assert render([empty], Layout(), width=80).notes == "no GPUs\n"


def test_group_becomes_a_heading_on_a_terminal() -> None:
    table = TextTable(
        (TextColumn("theme"), TextColumn("name")), (("a", "one"), ("a", "two"), ("b", "three")), "rows", group="theme"
    )
    assert render([table], Layout(), width=80).text == "name\n\na\none\ntwo\n\nb\nthree\n"
    assert render([table], Layout(), width=None).text.splitlines()[1] == "a\tone"


@given(st.lists(st.text(), min_size=1, max_size=4), st.integers(min_value=1, max_value=60))
def test_text_from_other_machines_stays_on_its_line(cells: list[str], width: int) -> None:
    columns = [TextColumn(f"c{number}", cut=True) for number in range(len(cells))]
    for of in (None, width):
        page = render([TextTable(columns, (cells,), "rows")], Layout(), width=of)
        assert len(page.text.splitlines()) == 2
        assert page.text.replace("\t", "").replace("\n", "").isprintable()
    assert page.text.count("\n") == 2


@given(st.text(), st.integers(min_value=1, max_value=20))
def test_cut_text_is_not_wider_than_the_limit(text: str, width: int) -> None:
    assert display_width(cut_to(text, width)) <= max(width, 1)
