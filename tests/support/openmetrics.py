"""OpenMetrics pages, read with the strictest parsers."""

import re
import subprocess
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly
from prometheus_client.parser import text_string_to_metric_families as loosely

Found = dict[tuple[str, frozenset[tuple[str, str]]], float]

_NO_TIME = re.compile(r"^(?!#)(.*\S)$", re.MULTILINE)


def openmetrics_series(page: bytes) -> Found:
    """Return the series of a page, read with the strict parser of `prometheus_client`."""
    assert page.endswith(b"\n# EOF\n")
    found: Found = {}
    for family in strictly(page.decode()):  # type: ignore[no-untyped-call]
        assert family.documentation, family.name
        for sample in family.samples:
            assert sample.exemplar is None
            assert not sample.name.endswith("_created")
            known = (sample.name, frozenset(sample.labels.items()))
            assert known not in found, known
            found[known] = sample.value
    return found


def text_series(page: bytes) -> Found:
    """Return the series of a page of the text format, by their names on the page.

    The parser adds `_total` to every counter, so the suffix is removed where the page has none.
    """
    found: Found = {}
    for family in loosely(page.decode()):
        for sample in family.samples:
            name = sample.name if f"\n{sample.name}{{".encode() in page else sample.name.removesuffix("_total")
            found[name, frozenset(sample.labels.items())] = sample.value
    return found


def check_by_promtool(promtool: Path, page: bytes, folder: Path) -> None:
    """Read the page with Prometheus's own parser, which needs a timestamp on every line."""
    body = page.decode().removesuffix("# EOF\n")
    file = folder / "page.om"
    file.write_text(_NO_TIME.sub(r"\1 1767225600", body) + "# EOF\n")
    command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "blocks")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((folder / "blocks").iterdir())
