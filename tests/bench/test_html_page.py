"""HTML reports: complete offline, and hostile texts as text."""

import re
from html.parser import HTMLParser

from gpufleet.bench.compare import compare
from gpufleet.bench.document import CapturedMachine
from gpufleet.bench.factors import factor_matrix
from gpufleet.bench.html_page import comparison_html, matrix_html
from gpufleet.probe.records import Fact
from tests.support.benchmarks import loaded, measured, noisy
from tests.support.hostile import CONTROLS, HOSTILE

SCRIPT = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}
FIVE = (1.0, 2.0, 3.0, 4.0, 5.0)


class Page(HTMLParser):
    """Tags, attributes and texts of a page; every tag is closed in order."""

    VOID = frozenset({"meta", "rect", "line"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def pages(text: str) -> list[Page]:
    hostile = {
        "name": text[:128],
        "machine": CapturedMachine(name=text),
        "labels": {"x": text[:128]},
        "facts": (Fact(name="host_os_name", value=text), Fact(name="host_virtualization", value=text)),
    }
    first = loaded(*noisy("a"), measured("odd", FIVE, target=text), file=text, **hostile)
    other = loaded(*noisy("b"), measured("odd", FIVE, tool_version=text, detail=text), file=text)
    return [Page(comparison_html(compare([first, other]))), Page(matrix_html(factor_matrix([first, other], [text])))]


def test_pages_load_nothing_and_run_nothing() -> None:
    for page in pages("plain"):
        assert "script" not in page.tags
        assert not page.attributes & LOADING
        assert not [name for name in page.attributes if name.startswith("on")]
        style = next(text for text in page.texts if "font:" in text)
        assert not re.search(r"url\(|@import", style)
        assert "svg" in page.tags


def test_hostile_texts_stay_texts() -> None:
    plain = pages("plain")
    for page, known in zip(pages(SCRIPT), plain, strict=True):
        assert (page.tags, page.attributes) == (known.tags, known.attributes)
        assert any("<script>" in text for text in page.texts)


def test_control_characters_are_replaced() -> None:
    for page in pages(HOSTILE):
        assert not CONTROLS & set("".join(page.texts))


def test_measurement_of_zeros_has_no_bars() -> None:
    zeros = loaded(measured(values=(0.0,) * 5))
    assert "svg" not in Page(comparison_html(compare([zeros, zeros]))).tags
