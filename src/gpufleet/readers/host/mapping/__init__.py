"""Mapping of parsed records to the catalogue; converts units."""

from gpufleet.model.absence import Absent
from gpufleet.model.reading import DimValue, Value


class Readings:
    """Accumulates the readings of one pass."""

    def __init__(self) -> None:
        self.values: dict[str, Value | Absent] = {}
        self.dims: list[DimValue] = []

    def dim(self, metric: str, labels: tuple[str, ...], value: Value | Absent) -> None:
        """Add a value of a metric with dimensions."""
        self.dims.append(DimValue(metric, labels, value))
