"""A page that a dcgm-exporter was seen to serve, and what it says."""

from pathlib import Path

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.reading import convert
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE

PAGE = (Path(__file__).parents[1] / "data" / "exposition" / "dcgm-exporter-l40s-vm.txt").read_bytes()


def expected() -> dict[tuple[str, str], object]:
    """Return (UUID, metric) to value as the page has it, read by the dialect's own table; None where it is absent."""
    page = TextParser().parse(PAGE)
    found: dict[tuple[str, str], object] = {}
    for series, value in zip(page.series, page.values, strict=True):
        family = DCGM_EXPORTER.families.get(series.name)
        if family is None or family.unread or CATALOGUE[family.metric].dims:
            continue
        told = convert(family, CATALOGUE[family.metric], value)
        found[series.labels["UUID"], family.metric] = None if isinstance(told, Absent) else told
    return found
