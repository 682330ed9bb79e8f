"""Texts of values, and Markdown reports with hostile texts."""

import pytest
from markdown_it import MarkdownIt

from gpufleet.bench.compare import compare
from gpufleet.bench.factors import factor_matrix
from gpufleet.bench.markdown import comparison_markdown, matrix_markdown, shown_fact, shown_value
from gpufleet.probe.records import Fact, MeasuredUnit
from tests.support.benchmarks import loaded, measured, noisy

HOSTILE = "a|b\n# c [d](javascript:e) <script>f</script> `g` **h** _i_ &lt; ~~j~~ \\|"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123456, MeasuredUnit.SECONDS, "12.35 ms"),
        (1.8e-6, MeasuredUnit.SECONDS, "1.8 µs"),
        (0.0, MeasuredUnit.SECONDS, "0 µs"),
        (-2.5e9, MeasuredUnit.BYTES_PER_SECOND, "-2.5 GB/s"),
        (12_500.0, MeasuredUnit.OPERATIONS_PER_SECOND, "12.5 k/s"),
        (3.0, MeasuredUnit.NONE, "3"),
    ],
)
def test_value_has_a_readable_unit(value: float, unit: MeasuredUnit, text: str) -> None:
    assert shown_value(value, unit) == text


def test_fact_has_all_digits_of_an_integer() -> None:
    assert (
        shown_fact(Fact(name="host_memory_bytes", value=25276063744, unit=MeasuredUnit.BYTES)) == "25,276,063,744 bytes"
    )
    assert shown_fact(Fact(name="host_gdrcopy", value=False)) == "no"


def test_hostile_texts_of_markdown_stay_texts() -> None:
    one = loaded(*noisy("a"), measured("odd", (1.0,) * 5, target=HOSTILE), file=HOSTILE, labels={"x": HOSTILE})
    other = loaded(*noisy("b"), measured("odd", (1.0,) * 5, tool_version=HOSTILE), name=HOSTILE)
    for page in (comparison_markdown(compare([one, other])), matrix_markdown(factor_matrix([one, other], [HOSTILE]))):
        parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
        found = {token.type for token in parser.parse(page)}
        inline = {child.type for token in parser.parse(page) for child in token.children or ()}
        assert inline == {"text"}
        assert not found & {"html_block", "fence", "code_block"}
        assert page.count("\n# ") == 0
