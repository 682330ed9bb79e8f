"""Values that come one by one, gathered into samples. Pure."""

import math

from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric, ValueType
from gpufleet.model.provenance import Provenance
from gpufleet.model.reading import DimValue, Sample, Value
from gpufleet.model.view import View


class Gathering:
    """Values of one machine as they come."""

    def __init__(self) -> None:
        self._rows: dict[tuple[View | None, Lane, int], _Row] = {}
        self._texts: dict[View | None, dict[str, tuple[str, int]]] = {}

    def tell(
        self, view: View | None, metric: str, value: Value | Absent, at: int, labels: tuple[str, ...] = ()
    ) -> None:
        """Take one value; `at` in nanoseconds since 1970."""
        row = self._rows.setdefault((view, CATALOGUE[metric].lane, at), _Row())
        if CATALOGUE[metric].dims:
            row.dims[metric, labels] = _agreed(row.dims.get((metric, labels)), value)
        else:
            row.values[metric] = _agreed(row.values.get(metric), value)

    def text(self, view: View | None, metric: str, text: str, at: int) -> None:
        """Take a text that many series repeat, such as a product's name; the newest counts."""
        texts = self._texts.setdefault(view, {})
        if at >= texts.get(metric, ("", 0))[1]:
            texts[metric] = text, at

    def samples(self, reader: str) -> list[Sample]:
        """Return the samples; the texts of a subject come together, as of the newest of them."""
        for view, texts in self._texts.items():
            newest = max(at for _, at in texts.values())
            for metric, (text, _) in texts.items():
                self.tell(view, metric, text, newest)
        return [
            Sample(
                view=view,
                reader=reader,
                lane=lane,
                measured_at=at,
                values=row.values,
                dims=tuple(DimValue(metric, labels, value) for (metric, labels), value in row.dims.items()),
                provenance=Provenance.IMPORTED,
            )
            for (view, lane, at), row in self._rows.items()
        ]


class _Row:
    def __init__(self) -> None:
        self.values: dict[str, Value | Absent] = {}
        self.dims: dict[tuple[str, tuple[str, ...]], Value | Absent] = {}


def bounded(metric: Metric, value: float, source: str) -> int | float | Absent:
    """Return a number in the catalogue's type, or why it is none; `source` is what it is called where it came from."""
    if not math.isfinite(value):
        return Absent(Reason.INVALID_VALUE, source)
    ours = round(value) if metric.type is ValueType.INT else value
    if (metric.low is not None and ours < metric.low) or (metric.high is not None and ours > metric.high):
        return Absent(Reason.INVALID_VALUE, source)
    return ours


def _agreed(before: Value | Absent | None, told: Value | Absent) -> Value | Absent:
    """Return what several series of one device say: an exporter repeats a GPU for each pod that shares it.

    Where they differ each is one sharer's part, and none of them is the device's.
    """
    if before is None or before == told:
        return told
    return Absent(Reason.INVALID_VALUE, "several series of one device differ")
