"""Commands and fields of each lane. Pure."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.readers.nvidia_smi.mapping.devices import ALL_METRICS, GpuModes, RequestedMetrics
from gpufleet.readers.nvidia_smi.mapping.rows import (
    ACTIVE,
    ECC_QUERY,
    FAN,
    FAN_QUERY,
    MASK,
    PATHS,
    PROCESSES,
    QUERIES,
    RESET_QUERY,
    SUMS,
)
from gpufleet.readers.nvidia_smi.mapping.tables import SUPPORTED, TABLES, fields_of

HELP = ("--help-query-gpu",)
LOG = ("-q", "-x")
LIST = ("-L",)
APPS_COLUMNS = ("gpu_uuid", "pid", "used_memory")
APPS = (f"--query-compute-apps={','.join(APPS_COLUMNS)}", "--format=csv,noheader")

IDENTITY = (
    *("pci.bus_id", "index", "count", "name", "driver_version", "kmd_version", "mig.mode.current"),
    *(ECC_QUERY, RESET_QUERY),
)
"""Fields of every table, if supported. `uuid` is the last column, so that a truncated row is detected."""


class Plan(NamedTuple):
    """Plan of one pass of one lane.

    Attributes:
        columns: fields of the CSV table; empty for no table.
        log: whether to request the XML, and the list that identifies MIG devices.
        apps: whether to request the table of processes; the XML contains the processes.
        requested: metrics that the outputs have to provide.
    """

    columns: tuple[str, ...]
    log: bool
    apps: bool
    requested: RequestedMetrics


def plan_of(lane: Lane, offered: Collection[str], modes: Iterable[GpuModes]) -> Plan:
    """Plan a pass.

    CSV costs a tenth of XML and has most metrics of the fast and slow lanes. Only XML has MIG devices and a guest's
    licence: it is requested too if there are any.

    Args:
        lane: lane of the pass.
        offered: fields that this nvidia-smi supports.
        modes: known modes of the GPUs.
    """
    log = lane is Lane.STATIC or any(mode.mig or (mode.guest and lane is Lane.SLOW) for mode in modes)
    metrics, missing, columns = set[str](), set[str](), list[str]()
    for metric, queries in (*QUERIES.items(), (FAN, (FAN_QUERY,))):
        if CATALOGUE[metric].lane is not lane or (lane is Lane.STATIC and (metric in PATHS or metric in SUMS)):
            continue
        metrics.add(metric)
        field = next((query for query in queries if query in offered), None)
        if field is None:
            missing.add(metric)
        else:
            columns.append(field)
    for metric in (*TABLES, SUPPORTED):
        if CATALOGUE[metric].lane is lane:
            fields = fields_of(metric, offered)
            columns += fields
            if fields or metric not in TABLES or lane is not Lane.STATIC:
                metrics.add(metric)
            if not fields:
                missing.add(metric)
    if MASK in metrics:
        metrics.add(ACTIVE)
    apps = lane is Lane.FAST and not log
    if apps:
        metrics.add(PROCESSES)
    if log:
        metrics |= {metric for metric in ALL_METRICS.metrics if CATALOGUE[metric].lane is lane}
        missing -= ALL_METRICS.metrics
    if columns:
        columns = [field for field in IDENTITY if field in offered and field not in columns] + columns + ["uuid"]
    return Plan(tuple(dict.fromkeys(columns)), log, apps, RequestedMetrics(frozenset(metrics), frozenset(missing)))


def table_arguments(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments of a query for these fields; empty if there are no fields."""
    return (f"--query-gpu={','.join(columns)}", "--format=csv,noheader") if columns else ()
