"""Diagrams of the documentation: the committed files are those of their sources."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tools.diagrams import SOURCES, is_current

DIAGRAMS = sorted(SOURCES.glob("*.dot"))
DOCS = SOURCES.parent


def texts(svg: Path) -> set[str]:
    return {text for one in ET.parse(svg).iter() if one.tag.endswith("}text") and (text := one.text)}


@pytest.mark.parametrize("source", DIAGRAMS, ids=lambda one: one.stem)
def test_committed_diagram_is_current(source: Path) -> None:
    svg = source.with_suffix(".svg")
    text = source.read_text(encoding="utf-8")
    assert is_current(svg.read_text(encoding="utf-8"), text), "render it: make docs"
    labels = {line for label in re.findall(r'label="(.*?)"', text) for line in label.split(r"\n")}
    assert labels - {one.replace("\xa0", " ") for one in texts(svg)} == set()


@pytest.mark.parametrize("source", DIAGRAMS, ids=lambda one: one.stem)
@pytest.mark.parametrize(("old", "new"), [("disk queue", "memory"), ("<path ", "<path  "), ("#dcebff", "#ffffff")])
def test_changed_diagram_or_source_is_not_current(source: Path, old: str, new: str) -> None:
    svg, text = source.with_suffix(".svg").read_text(encoding="utf-8"), source.read_text(encoding="utf-8")
    assert old in svg
    assert not is_current(svg.replace(old, new, 1), text)
    assert not is_current(svg, f"{text} ")


@pytest.mark.parametrize("source", DIAGRAMS, ids=lambda one: one.stem)
def test_diagram_is_in_a_page_and_loads_nothing(source: Path) -> None:
    svg = source.with_suffix(".svg")
    name = f"diagrams/{svg.name}"
    assert any(name in page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    content = svg.read_text(encoding="utf-8")
    assert not re.search(r"<(script|image|foreignObject|a )|@import|url\(|xlink:href", content)


def test_each_diagram_has_a_source() -> None:
    assert {one.stem for one in SOURCES.glob("*.svg")} == {one.stem for one in DIAGRAMS}
    assert DIAGRAMS
