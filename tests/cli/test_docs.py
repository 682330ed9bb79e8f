"""Reference pages: the committed pages match the code."""

from pathlib import Path

import pytest

from gpufleet.cli.docs import reference_pages
from gpufleet.model.catalogue import CATALOGUE

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(reference_pages()))
def test_committed_page_is_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text(encoding="utf-8") == reference_pages()[name], "run `make docs`"


def test_every_metric_is_documented() -> None:
    page = reference_pages()["metrics.md"]
    assert [name for name in CATALOGUE if f"### {name}\n" not in page] == []
