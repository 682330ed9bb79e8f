"""Totals over several GPUs, each with the number of GPUs that reported."""

import math
from collections.abc import Mapping, Sequence

from gpufleet.model.device_state import is_lost
from gpufleet.model.reading import Reading
from gpufleet.model.snapshot import Aggregate, AggregateValue
from gpufleet.model.view import Scope

AGGREGATED: dict[str, str] = {
    "gpu_utilization_ratio": "mean",
    "gpu_memory_activity_ratio": "mean",
    "gpu_encoder_utilization_ratio": "mean",
    "gpu_decoder_utilization_ratio": "mean",
    "gpu_memory_total_bytes": "sum",
    "gpu_memory_used_bytes": "sum",
    "gpu_memory_free_bytes": "sum",
    "gpu_memory_reserved_bytes": "sum",
    "gpu_power_watts": "sum",
    "gpu_power_limit_watts": "sum",
    "gpu_energy_joules_total": "sum",
    "gpu_temperature_celsius": "max",
    "gpu_memory_temperature_celsius": "max",
}
"""Metric to its aggregation. Other metrics have no meaningful total."""


def aggregate(devices: Sequence[Mapping[str, Reading]], expected: int = 0) -> Aggregate:
    """Aggregate the readings of several GPUs.

    Args:
        devices: the readings of each GPU by catalogue name. Pass devices of kind `gpu` only, and each
            physical unit once: a MIG device or vGPU instance is part of a GPU in the list.
        expected: expected number of GPUs; it is the m of "n of m" if fewer are known.

    Returns:
        One total for every metric of `AGGREGATED`, with the value None if no device reported. No totals
        if there is no device. An absent reading, a reading that is not about the device itself (scope other
        than own), and any reading of a lost device count in "m" but not in "n".
    """
    working = [readings for readings in devices if not is_lost(readings)]
    metrics: dict[str, AggregateValue] = {}
    reporting: set[int] = set()
    count = max(len(devices), expected)
    for metric, operation in AGGREGATED.items() if count else ():
        values: list[int | float] = []
        for position, readings in enumerate(working):
            number = _own_number(readings.get(metric))
            if number is not None:
                values.append(number)
                reporting.add(position)
        metrics[metric] = AggregateValue(
            value=_combine(operation, values),
            operation=operation,
            reporting=len(values),
            devices=count,
        )
    return Aggregate(
        coverage=f"{len(reporting)} of {count} devices",
        reporting=len(reporting),
        devices=count,
        metrics=metrics,
    )


def _own_number(reading: Reading | None) -> int | float | None:
    if reading is None or reading.absent is not None or reading.scope is not Scope.OWN:
        return None
    return reading.value if isinstance(reading.value, int | float) else None


def _combine(operation: str, values: list[int | float]) -> int | float | None:
    if not values:
        return None
    if operation == "max":
        return max(values)
    total = sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)
    return total / len(values) if operation == "mean" else total
