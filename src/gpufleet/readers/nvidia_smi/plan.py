"""What to ask of nvidia-smi on each lane. Pure."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gpufleet.model.catalogue import CATALOGUE, Lane
from gpufleet.readers.nvidia_smi.mapping.devices import WHOLE, Asked, Modes
from gpufleet.readers.nvidia_smi.mapping.rows import ACTIVE, FAN, FAN_QUERY, MASK, PATHS, PROCESSES, QUERIES, SUMS
from gpufleet.readers.nvidia_smi.mapping.tables import SUPPORTED, TABLES, fields_of

HELP = ("--help-query-gpu",)
LOG = ("-q", "-x")
LIST = ("-L",)
APPS_COLUMNS = ("gpu_uuid", "pid", "used_memory")
APPS = (f"--query-compute-apps={','.join(APPS_COLUMNS)}", "--format=csv,noheader")

IDENTITY = ("pci.bus_id", "index", "count", "driver_version", "mig.mode.current")
"""Asked with every table, where the driver offers them; `uuid` comes last, so that a row that is cut off shows."""


class Plan(NamedTuple):
    """One pass of one lane.

    Attributes:
        columns: fields of one CSV table; empty where none is asked.
        log: whether the XML is asked, too, and the list that names MIG devices.
        apps: whether the table of processes is asked: the XML has its own.
        asked: what they answer for.
    """

    columns: tuple[str, ...]
    log: bool
    apps: bool
    asked: Asked


def plan_of(lane: Lane, offered: Collection[str], modes: Iterable[Modes]) -> Plan:
    """Plan a pass.

    CSV costs a tenth of XML and tells most of the fast and slow lanes. Only XML tells of MIG devices and of a
    guest's licence, so where there are such it is asked as well.

    Args:
        lane: which.
        offered: the fields that this nvidia-smi knows.
        modes: what is known of the GPUs.
    """
    known = tuple(modes)
    log = lane is Lane.STATIC or any(one.mig or (one.guest and lane is Lane.SLOW) for one in known)
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
        metrics |= {metric for metric in WHOLE.metrics if CATALOGUE[metric].lane is lane}
        missing -= WHOLE.metrics
    if columns:
        columns = [field for field in IDENTITY if field in offered and field not in columns] + columns + ["uuid"]
    return Plan(tuple(dict.fromkeys(columns)), log, apps, Asked(frozenset(metrics), frozenset(missing)))


def table(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments that ask for these fields; none where there are none."""
    return (f"--query-gpu={','.join(columns)}", "--format=csv,noheader") if columns else ()
