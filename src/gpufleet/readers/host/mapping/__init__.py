"""From parsed records to readings of the catalogue: the table, and the only place that converts units."""

from gpufleet.model.absence import Absent
from gpufleet.model.reading import DimValue, Value


class Readings:
    """The readings of one pass as they gather."""

    def __init__(self) -> None:
        self.values: dict[str, Value | Absent] = {}
        self.dims: list[DimValue] = []

    def dim(self, metric: str, labels: tuple[str, ...], value: Value | Absent) -> None:
        """Add a value of a metric with dimensions."""
        self.dims.append(DimValue(metric, labels, value))
