"""Asks for the samples that minutes and hours are made of: an hour's, and those around it that have a say in it."""

import importlib
from typing import Any

from gpufleet.model.catalogue import Metric, MetricKind, Storage
from gpufleet.stores.clickhouse.client import Handle
from gpufleet.stores.clickhouse.rollup.hours import AROUND_NS
from gpufleet.stores.clickhouse.rollup.parts import BUSY, CHUNK, ENERGY, WATTS
from gpufleet.stores.clickhouse.rollup.tables import HOUR_NS, plain

_COUNTERS, _STATES = plain(MetricKind.COUNTER, Storage.CORE), plain(MetricKind.STATE, Storage.CORE)
_CORE = [*plain(MetricKind.GAUGE, Storage.CORE), *_COUNTERS, *_STATES]
_SPEAKING = [metric for metric in _CORE if metric in (*_COUNTERS, *_STATES, *BUSY, WATTS)]
"""What a sample says for longer than its instant, or a later one is compared with."""

_SETTINGS = {
    "max_threads": 1,
    "do_not_merge_across_partitions_select_final": 1,
    "max_execution_time": 600,
    "output_format_arrow_low_cardinality_as_dictionary": 1,
}

_HEAD = (
    "machine, toLowCardinality(view) AS view_text, reader, lane, provenance, epoch, seq, driver_session, measured_at"
)
_LANE = "machine, view, reader, lane"
_TAILS = "tail_int_ids, tail_int_values, tail_float_ids, tail_float_values"


def _names(metrics: list[Metric]) -> str:
    return ", ".join(f"`{metric.name}`" for metric in metrics)


_HOUR = f"SELECT {_HEAD}, {_names(_CORE)}, {_TAILS} FROM samples WHERE {CHUNK}"  # noqa: S608 - the names are the catalogue's own; what is asked for is bound
_BEFORE = f"SELECT {_HEAD}, {_names(_SPEAKING)}, {_TAILS} FROM samples FINAL WHERE {CHUNK}"  # noqa: S608 - as above
_AFTER = f"""
SELECT {_HEAD}, `{ENERGY.name}` FROM samples FINAL WHERE {CHUNK} AND view != '' AND isNotNull(`{ENERGY.name}`)
ORDER BY {_LANE}, measured_at LIMIT 1 BY {_LANE}
"""  # noqa: S608 - as above


def fetch_around(handle: Handle, where: dict[str, Any], first: int, *, final: bool) -> Any:
    """Return an Arrow table of the samples of an hour that begins at `first`, and of those with a say in it.

    Those before the hour lack gauges, and after it there is the first reading of energy alone. A sample of the hour
    that came more than once is there as often, unless `final`: that is worth its price only where there is one.
    """
    pa = importlib.import_module("pyarrow")
    last = first + HOUR_NS
    hour = _ask(handle, _HOUR.replace("FROM samples", "FROM samples FINAL") if final else _HOUR, where, first, last)
    before = _ask(handle, _BEFORE, where, max(0, first - AROUND_NS), first)
    after = _ask(handle, _AFTER, where, last, last + AROUND_NS)
    return pa.concat_tables([before, hour, after], promote_options="default").unify_dictionaries().combine_chunks()


def _ask(handle: Handle, query: str, where: dict[str, Any], since: int, until: int) -> Any:
    return handle.query_arrow(query, parameters={**where, "since": since, "until": until}, settings=_SETTINGS)
