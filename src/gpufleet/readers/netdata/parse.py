"""Parsing of Netdata's page of charts. Pure; the page is untrusted."""

import math

import msgspec

from gpufleet.model.errors import WireError

MAX_CHARTS, MAX_DIMENSIONS, MAX_NAME = 20_000, 1_000, 300


class Chart(msgspec.Struct, frozen=True):
    """Chart of a page.

    Attributes:
        id: such as `system.ram` or `nvidia_smi.gpu0_temperature`.
        context: kind of the chart, shared by several charts.
        family: group of the chart on the dashboard.
        units: of its values.
        updated: time of the last collection, in seconds since 1970.
        values: newest value of each dimension; values that are not numbers are left out.
    """

    id: str
    context: str
    family: str
    units: str
    updated: int
    values: dict[str, float]


class _ChartDimension(msgspec.Struct):
    name: str
    value: float | None = None


class _ChartDocument(msgspec.Struct):
    dimensions: dict[str, _ChartDimension]
    last_updated: int
    context: str = ""
    family: str = ""
    units: str = ""


class ChartPage(msgspec.Struct):
    """Parsed page: charts by id, and error messages about unreadable charts."""

    charts: dict[str, Chart]
    errors: list[str]


_decode_page = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_chart = msgspec.json.Decoder(_ChartDocument).decode


def parse(page: bytes) -> ChartPage:
    """Parse a page of `allmetrics`; an unreadable chart is skipped.

    Raises:
        WireError: if the page is not of this format, or has more than `MAX_CHARTS` charts.
    """
    try:
        documents = _decode_page(page)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("allmetrics", f"not a page of Netdata charts: {error}") from None
    if len(documents) > MAX_CHARTS:
        raise WireError("allmetrics", f"{len(documents)} charts, at most {MAX_CHARTS} are allowed")
    found = ChartPage({}, [])
    for name, raw in documents.items():
        try:
            document = _decode_chart(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            found.errors.append(f"chart {name[:100]!r}: {error}")
            continue
        lengths = max(len(name), len(document.context), len(document.family), len(document.units))
        long = len(document.dimensions) > MAX_DIMENSIONS or lengths > MAX_NAME
        if long or not 0 < document.last_updated < 2**33:
            found.errors.append(f"chart {name[:100]!r}: a field exceeds its limits")
            continue
        values = {
            dimension.name: dimension.value
            for dimension in document.dimensions.values()
            if dimension.value is not None and math.isfinite(dimension.value)
        }
        found.charts[name] = Chart(
            name, document.context, document.family, document.units, document.last_updated, values
        )
    return found
