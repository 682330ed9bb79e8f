"""Every test that the page on other projects' defects names is where it says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_named_is_there() -> None:
    page = (ROOT / "docs" / "peers.md").read_text()
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./([\w/.]+)\)", page)
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| project")]
    assert len(named) >= len(rows) > 25
    for name, file in named:
        assert f"def {name}(" in (ROOT / file).read_text(), name
