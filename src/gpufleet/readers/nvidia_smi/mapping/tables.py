"""Table of metrics with dimensions: fields and paths of each reading.

Paths are as in `rows`; XML and text use different names. A reading printed as `N/A` is omitted unless all readings of
its metric are.
"""

from collections.abc import Collection, Iterator
from itertools import groupby
from typing import NamedTuple

from gpufleet.codecs.nvidia_smi.records import DeviceRecord, lookup
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.catalogue import CATALOGUE, Lane, Metric
from gpufleet.model.catalogue.gpu import CLOCK_EVENT_REASONS
from gpufleet.model.reading import DimValue, Value
from gpufleet.readers.nvidia_smi.mapping.values import read_text

SUPPORTED = "gpu_clock_event_supported"
SUPPORTED_QUERIES = CATALOGUE[SUPPORTED].nvidia_smi
_MASK = CATALOGUE["gpu_clock_event_reasons_mask"]


class TablePlace(NamedTuple):
    """Fields and paths of one reading.

    Attributes:
        metric: catalogue name.
        labels: values of the metric's dimensions.
        queries: names of `--query-gpu`; the first supported name is used.
        paths: paths of XML and text; the first existing path is used.
    """

    metric: str
    labels: tuple[str, ...]
    queries: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


def _clock_events() -> Iterator[TablePlace]:
    folder = "clocks_event_reasons_counters"
    for label, query, xml, text in (
        ("sw_power_cap", "sw_power_cap", "sw_power_cap", "sw_power_capping"),
        ("sync_boost", "sync_boost", "sync_boost", "sync_boost"),
        ("sw_thermal", "sw_thermal_slowdown", "sw_therm_slowdown", "sw_thermal_slowdown"),
        ("hw_thermal", "hw_thermal_slowdown", "hw_therm_slowdown", "hw_thermal_slowdown"),
        ("hw_power_brake", "hw_power_brake_slowdown", "hw_power_brake", "hw_power_braking"),
    ):
        paths = (f"{folder}/{folder}_{xml}", f"{folder}/{text}")
        yield TablePlace("gpu_clock_event_seconds_total", (label,), (f"{folder}.{query}",), paths)


_LOCATIONS = {
    "l1_cache": ("l1_cache",),
    "l2_cache": ("l2_cache",),
    "dram": ("dram", "device_memory"),
    "register_file": ("register_file",),
    "texture_memory": ("texture_memory",),
    "cbu": ("cbu",),
    "sram": ("sram",),
}
"""Location in the catalogue to its names in CSV. XML and text have DRAM and SRAM only. For Volta and older chips they
have the locations of CSV, by number of wrong bits."""

_SEVERITIES = {"corrected": ("correctable", "single_bit"), "uncorrected": ("uncorrectable", "double_bit")}
_COUNTERS = {"volatile": "gpu_ecc_location_errors_total", "aggregate": "gpu_ecc_location_lifetime_errors_total"}


def _ecc() -> Iterator[TablePlace]:
    for counter, metric in _COUNTERS.items():
        for severity, (name, bits) in _SEVERITIES.items():
            for location, csv_names in _LOCATIONS.items():
                queries = tuple(f"ecc.errors.{severity}.{counter}.{csv_name}" for csv_name in csv_names)
                folder = f"ecc_errors/{counter}"
                of_turing = (f"{folder}/{location}_{name}",) if location in ("dram", "sram") else ()
                of_volta = (f"{folder}/{bits}/{csv_names[-1]}",) if location != "sram" else ()
                yield TablePlace(metric, (location, severity), queries, (*of_turing, *of_volta))
            shared = (f"ecc_errors/{counter}/{bits}/texture_shm", f"ecc_errors/{counter}/{bits}/texture_shared")
            yield TablePlace(metric, ("texture_shm", severity), (), shared)
    for counter, metric in (("volatile", "gpu_sram_errors_total"), ("aggregate", "gpu_sram_lifetime_errors_total")):
        query, path = f"ecc.errors.uncorrected.{counter}.sram", f"ecc_errors/{counter}/sram_uncorrectable"
        yield TablePlace(metric, ("parity",), (f"{query}.parity",), (f"{path}_parity",))
        yield TablePlace(metric, ("secded",), (f"{query}.secded",), (f"{path}_secded", f"{path}_sec_ded"))
        corrected = f"ecc.errors.corrected.{counter}.sram"
        yield TablePlace(metric, ("corrected",), (corrected,), (f"ecc_errors/{counter}/sram_correctable",))
    for unit, short, name in (
        ("l2_cache", "l2", "l2"),
        ("sm", "sm", "sm"),
        ("pcie", "pcie", "pcie"),
        ("microcontroller", "mcu", "microcontroller"),
        ("other", "other", "other"),
    ):
        yield TablePlace(
            "gpu_sram_uncorrected_lifetime_errors_total",
            (unit,),
            (f"ecc.errors.uncorrected.aggregate.sram.{short}",),
            (f"ecc_errors/aggregate_uncorrectable_sram_sources/sram_{name}",),
        )


def _spares() -> Iterator[TablePlace]:
    folder = "remapped_rows"
    for name in ("max", "high", "partial", "low", "none"):
        paths = (
            f"{folder}/row_remapper_histogram/row_remapper_histogram_{name}",
            f"{folder}/bank_remap_availability_histogram/{name}",
        )
        yield TablePlace("gpu_row_remap_banks", (name,), (f"{folder}.histogram.{name}",), paths)
    for cause, name in (("correctable", "corr"), ("uncorrectable", "unc")):
        paths = (f"{folder}/remapped_row_{name}_inactive", f"{folder}/inactive_{cause}_error")
        yield TablePlace("gpu_remapped_rows_inactive", (cause,), (f"{folder}.{cause}_inactive",), paths)
    for cause, query, xml in (
        ("single_bit", "single_bit_ecc", "multiple_single_bit_retirement"),
        ("double_bit", "double_bit", "double_bit_retirement"),
    ):
        paths = (f"retired_pages/{xml}/retired_count", f"retired_pages/{cause}_ecc")
        yield TablePlace("gpu_retired_pages", (cause,), (f"retired_pages.{query}.count",), paths)


def _thresholds() -> Iterator[TablePlace]:
    for label, xml, text in (
        ("shutdown", "gpu_temp_max", "gpu_shutdown"),
        ("slowdown", "gpu_temp_slow", "gpu_slowdown"),
        ("memory_max", "gpu_temp_max_mem", "memory_max_operating"),
        ("gpu_max", "gpu_temp_max_gpu", "gpu_max_operating"),
    ):
        degrees = (f"temperature/{xml}_threshold", f"temperature/{text}_temp")
        yield TablePlace("gpu_temperature_threshold_celsius", (label,), (), degrees)
        margins = (f"temperature/{xml}_tlimit_threshold", f"temperature/{text}_t_limit_temp")
        yield TablePlace("gpu_temperature_margin_threshold_celsius", (label,), (), margins)


def _links() -> Iterator[TablePlace]:
    for condition, name in (
        ("degraded_bandwidth", "bandwidth"),
        ("route_recovery", "route_recovery_in_progress"),
        ("route_unhealthy", "route_unhealthy"),
        ("access_timeout_recovery", "access_timeout_recovery"),
        ("partition_assigned", "partition_assigned"),
    ):
        yield TablePlace("gpu_fabric_health", (condition,), (f"fabric.health.{name}",), (f"fabric/health/{name}",))
    rollovers = ("pci/replay_rollover_counter", "pci/replay_number_rollovers")
    yield TablePlace("gpu_pcie_errors_total", ("replay_rollover",), (), rollovers)


MIG_SRAM_ERRORS = TablePlace(
    "gpu_ecc_location_errors_total",
    ("sram", "uncorrected"),
    (),
    ("ecc_error_count/volatile_count/sram_uncorrectable", "ecc_errors/volatile/sram_uncorrectable"),
)
"""The only memory errors printed for a MIG device."""

TABLES: dict[str, tuple[TablePlace, ...]] = {
    metric: tuple(places)
    for metric, places in groupby(
        sorted((*_clock_events(), *_ecc(), *_spares(), *_thresholds(), *_links()), key=lambda place: place.metric),
        key=lambda place: place.metric,
    )
}
"""Metric with dimensions to its places."""

BY_QUERY: dict[str, frozenset[str]] = {
    query: frozenset(metric for metric, places in TABLES.items() if any(query in place.queries for place in places))
    for places in TABLES.values()
    for place in places
    for query in place.queries
} | dict.fromkeys(SUPPORTED_QUERIES, frozenset({SUPPORTED}))
"""CSV field to its metrics."""

PATHS_READ = frozenset(path for places in TABLES.values() for place in places for path in place.paths)


def absence_labels(metric: str) -> tuple[str, ...]:
    """Return the labels of the absence if a metric has no reading."""
    return TABLES[metric][0].labels if metric in TABLES else (CLOCK_EVENT_REASONS[0][0],)


def query_of(metric: str) -> str:
    """Return the CSV field, or else the path, of a metric's first reading."""
    if metric == SUPPORTED:
        return SUPPORTED_QUERIES[0]
    place = TABLES[metric][0]
    return (*place.queries, *place.paths)[0]


def map_table(metric: Metric, record: DeviceRecord) -> list[tuple[tuple[str, ...], Value | Absent]]:
    """Return a metric's readings with their labels; without any, one absence under the first labels."""
    if metric.name == SUPPORTED:
        return _supported(record)
    found: list[tuple[tuple[str, ...], Value | Absent]] = []
    why: Absent | None = None
    for place in TABLES[metric.name]:
        value = _reading(metric, place, record)
        if isinstance(value, Absent) and value.reason in (Reason.NOT_SUPPORTED, Reason.NOT_REPORTED):
            if why is None or (why.reason is Reason.NOT_REPORTED and value.reason is Reason.NOT_SUPPORTED):
                why = value
        else:
            found.append((place.labels, value))
    return found or [(absence_labels(metric.name), why or Absent(Reason.NOT_REPORTED, metric.name))]


def map_mig_table(lane: Lane, record: DeviceRecord) -> list[DimValue]:
    """Return the readings with dimensions of a MIG device."""
    metric = CATALOGUE[MIG_SRAM_ERRORS.metric]
    if metric.lane is not lane:
        return []
    return [DimValue(metric.name, MIG_SRAM_ERRORS.labels, _reading(metric, MIG_SRAM_ERRORS, record))]


def fields_of(metric: str, offered: Collection[str]) -> list[str]:
    """Return the CSV fields to request for a metric, among those that this nvidia-smi supports."""
    places = [place.queries for place in TABLES[metric]] if metric in TABLES else [SUPPORTED_QUERIES]
    first = [next((query for query in queries if query in offered), None) for queries in places]
    return [query for query in first if query is not None]


def _reading(metric: Metric, place: TablePlace, record: DeviceRecord) -> Value | Absent:
    for query in place.queries:
        if query in record.fields:
            return read_text(metric, record.fields[query], query)
    for path in place.paths:
        text = lookup(record.leaves, path)
        if text is not None:
            return read_text(metric, text, path)
    return Absent(Reason.NOT_REPORTED, (*place.paths, *place.queries)[0])


def _supported(record: DeviceRecord) -> list[tuple[tuple[str, ...], Value | Absent]]:
    query = next((name for name in SUPPORTED_QUERIES if name in record.fields), None)
    if query is None:
        return [(absence_labels(SUPPORTED), Absent(Reason.NOT_REPORTED, SUPPORTED_QUERIES[0]))]
    mask = read_text(_MASK, record.fields[query], query)
    if isinstance(mask, int):
        return [((name,), int(bool(mask & bit))) for name, bit in CLOCK_EVENT_REASONS]
    why = mask if isinstance(mask, Absent) else Absent(Reason.INVALID_VALUE, query)
    return [((name,), why) for name, _ in CLOCK_EVENT_REASONS]
