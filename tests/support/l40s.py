"""Captured page of a dcgm-exporter, and its expected readings."""

from pathlib import Path

from gpufleet.codecs.prometheus_text.parser import TextParser
from gpufleet.dialects.dcgm_exporter import DCGM_EXPORTER
from gpufleet.dialects.reading import convert
from gpufleet.model.absence import Absent
from gpufleet.model.catalogue import CATALOGUE

PAGE = (Path(__file__).parents[1] / "data" / "exposition" / "dcgm-exporter-l40s-vm.txt").read_bytes()


def expected() -> dict[tuple[str, str], object]:
    """Return the value of each (UUID, metric) of the page; None for an absent value."""
    page = TextParser().parse(PAGE)
    found: dict[tuple[str, str], object] = {}
    for series, value in zip(page.series, page.values, strict=True):
        family = DCGM_EXPORTER.families.get(series.name)
        if family is None or family.unread or CATALOGUE[family.metric].dims:
            continue
        converted = convert(family, CATALOGUE[family.metric], value)
        found[series.labels["UUID"], family.metric] = None if isinstance(converted, Absent) else converted
    return found
