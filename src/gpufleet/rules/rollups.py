"""Metrics that the rules aggregate. Names, units and conversions come from the catalogue and the dialects."""

from collections.abc import Callable, Mapping

import msgspec

from gpufleet.dialects.dialect import FamilyMapping
from gpufleet.model.catalogue import CATALOGUE, Metric

OPERATIONS = {"ratio": "avg", "celsius": "max"}
"""Aggregation over devices by unit; other units are summed."""

USED, TOTAL = "gpu_memory_used_bytes", "gpu_memory_total_bytes"
UTILIZATION = "gpu_utilization_ratio"

ROLLUPS = (
    UTILIZATION,
    "gpu_sm_activity_ratio",
    USED,
    TOTAL,
    "gpu_power_watts",
    "gpu_temperature_celsius",
)


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """Aggregated metric.

    Attributes:
        metric: row of the catalogue.
        operation: aggregation over devices.
        series: name of the series of one input.
        times, over: value of the series `* times / over` is in the catalogue's unit.
        is_zero_absent: whether a value of 0 is none.
    """

    metric: Metric
    operation: str
    series: str
    times: int = 1
    over: int = 1
    is_zero_absent: bool = False

    def convert(self, expr: str) -> str:
        """Convert a query of `series` to the catalogue's unit, without values that are none."""
        if self.is_zero_absent:
            expr = f"({expr} > 0)"
        if self.times == self.over:
            return expr
        return f"{expr} * {self.times}" if self.over == 1 else f"{expr} / {self.over}"


def rollup(name: str, series: str, *, times: int = 1, over: int = 1, is_zero_absent: bool = False) -> Rollup:
    """Return the aggregation of a metric of the catalogue."""
    metric = CATALOGUE[name]
    operation = OPERATIONS.get(metric.unit, "sum")
    return Rollup(
        metric=metric, operation=operation, series=series, times=times, over=over, is_zero_absent=is_zero_absent
    )


def memory_share(sums: Callable[[str, str], str]) -> str:
    """Return the query of used memory over total memory. A device that reports only one of them counts in neither.

    Args:
        sums: returns the query of the sums of a metric, over the devices that also report another metric.
    """
    return f"{sums(USED, TOTAL)}\n/ ({sums(TOTAL, USED)} > 0)"


def foreign_rollups(families: Mapping[str, FamilyMapping]) -> tuple[Rollup, ...]:
    """Return the aggregated metrics that a dialect exports."""
    by_metric = {family.metric: family for family in families.values() if family.written}
    found = [(name, by_metric[name]) for name in ROLLUPS if name in by_metric]
    return tuple(
        rollup(name, one.name, times=one.times, over=one.over, is_zero_absent=one.zero is not None)
        for name, one in found
    )
