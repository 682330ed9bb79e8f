"""A Netdata's page of charts, as records. Pure; the page is a stranger's."""

import math

import msgspec

from gpufleet.model.errors import WireError

MAX_CHARTS, MAX_DIMENSIONS, MAX_NAME = 20_000, 1_000, 300


class Chart(msgspec.Struct, frozen=True):
    """One chart.

    Attributes:
        id: such as `system.ram` or `nvidia_smi.gpu0_temperature`.
        context: what kind of chart it is; several charts share one.
        family: the group it is shown in.
        units: of its values.
        updated: when it was last collected, in whole seconds since 1970.
        values: name of a dimension to its newest value; one that is no number is not here.
    """

    id: str
    context: str
    family: str
    units: str
    updated: int
    values: dict[str, float]


class _Dimension(msgspec.Struct):
    name: str
    value: float | None = None


class _Document(msgspec.Struct):
    dimensions: dict[str, _Dimension]
    last_updated: int
    context: str = ""
    family: str = ""
    units: str = ""


class Page(msgspec.Struct):
    """What was read: charts by id, and what could not be read."""

    charts: dict[str, Chart]
    errors: list[str]


_decode_page = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_chart = msgspec.json.Decoder(_Document).decode


def parse(page: bytes) -> Page:
    """Read a page of `allmetrics`; a chart that cannot be read costs itself.

    Raises:
        WireError: if it is no such page, or has more charts than any host.
    """
    try:
        documents = _decode_page(page)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError("allmetrics", f"it is not a Netdata's page of charts: {error}") from None
    if len(documents) > MAX_CHARTS:
        raise WireError("allmetrics", f"{len(documents)} charts, of {MAX_CHARTS} allowed")
    found = Page({}, [])
    for name, raw in documents.items():
        try:
            document = _decode_chart(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            found.errors.append(f"chart {name[:100]!r}: {error}")
            continue
        lengths = max(len(name), len(document.context), len(document.family), len(document.units))
        long = len(document.dimensions) > MAX_DIMENSIONS or lengths > MAX_NAME
        if long or not 0 < document.last_updated < 2**33:
            found.errors.append(f"chart {name[:100]!r}: not as Netdata writes one")
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
