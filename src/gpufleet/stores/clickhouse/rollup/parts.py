"""Expressions that the statements share, rendered from the catalogue. Everything in them is the catalogue's own."""

from gpufleet.model.catalogue import CATALOGUE, Metric, Storage, ValueType
from gpufleet.model.retention import SPEAKS_SECONDS
from gpufleet.model.time import NANOS

BUSY = (CATALOGUE["gpu_utilization_ratio"], CATALOGUE["gpu_graphics_activity_ratio"])
"""What says whether a device is used: the first that a sample has."""

WATTS, ENERGY = CATALOGUE["gpu_power_watts"], CATALOGUE["gpu_energy_joules_total"]

DRAWS_AT_MOST_WATTS = 4000
"""No GPU draws as much. Energy that would have taken more was not drawn: a clock was set, or a reading was wrong."""

OF_THE_DRIVER = frozenset(
    {
        "gpu_energy_joules_total",
        "gpu_ecc_corrected_errors_total",
        "gpu_ecc_uncorrected_errors_total",
        "gpu_ecc_location_errors_total",
        "gpu_sram_errors_total",
    }
)
"""Counters that begin at zero with every load of the driver; what others do then is seen where they fall."""

TELLER = "cluster, machine, view, reader, lane, provenance"

RANGE = """cluster = {cluster:String} AND machine IN {machines:Array(String)}
    AND measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')"""

CHUNK = """cluster = {cluster:String} AND machine >= {first_machine:String} AND machine <= {last_machine:String}
    AND measured_at >= fromUnixTimestamp64Nano({since:Int64}, 'UTC')
    AND measured_at < fromUnixTimestamp64Nano({until:Int64}, 'UTC')"""
"""What a statement reads: neighbouring machines of a cluster, and a span of time."""

_SHORTEST = min(SPEAKS_SECONDS.values())

SPEAKS_NS = (
    "multiIf("
    + ", ".join(f"lane = '{lane.value}', {seconds * NANOS}" for lane, seconds in SPEAKS_SECONDS.items())
    + f", {_SHORTEST * NANOS})"
)
"""Nanoseconds for which a reading of a row's lane speaks at most."""

NEXT = """leadInFrame(toUnixTimestamp64Nano(measured_at), 1, toInt64(9223372036854775807)) OVER (
        PARTITION BY cluster, machine, view, reader, lane ORDER BY measured_at
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"""
"""When the next sample of a row's lane was measured: there the row ends to speak, whatever that sample says."""


def speaks_ns(lane: str) -> int:
    """Return the nanoseconds for which a reading of a lane speaks at most."""
    return NANOS * next((seconds for known, seconds in SPEAKS_SECONDS.items() if known.value == lane), _SHORTEST)


def column(metric: Metric) -> str:
    """Return what a row has of a metric, or NULL."""
    if metric.storage is Storage.CORE:
        return f"`{metric.name}`"
    tail = "tail_float" if metric.type is ValueType.FLOAT else "tail_int"
    return f"if(has({tail}_ids, {metric.id}), {tail}_values[indexOf({tail}_ids, {metric.id})], NULL)"
