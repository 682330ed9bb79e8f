"""Arrow tables of computed rollups, for inserts. Pure."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpufleet.model.catalogue import CATALOGUE, MetricKind, Storage
from gpufleet.model.time import NANOS
from gpufleet.stores.clickhouse.rollup.durations import HourUsage, StateDurations
from gpufleet.stores.clickhouse.rollup.rows import Array, SampleColumns
from gpufleet.stores.clickhouse.rollup.tables import metrics_stored_as
from gpufleet.stores.clickhouse.rollup.windows import CounterWindows, GaugeWindows, StateWindows, WindowSet
from gpufleet.stores.clickhouse.schema.tables import TableDefinition

_BY_ID = {metric.id: metric for metric in CATALOGUE.values()}


def windows_table(table: TableDefinition, version: int, rows: SampleColumns, windows: WindowSet) -> Any:
    """Return the rows of `windows_1m` or `windows_1h`."""
    count = len(windows.start)
    columns = _head(version, rows, windows.first_row, windows.start)
    columns["samples"] = windows.samples.astype(np.uint32)
    types = {column.name: column.type for column in table.columns}
    for metric in metrics_stored_as(MetricKind.GAUGE, Storage.CORE):
        gauge = windows.gauges.get(metric.id)
        if gauge is None:
            continue
        has_value = ~np.isnan(gauge.low)
        for part, at, values in (
            ("min", gauge.at[has_value], gauge.low[has_value]),
            ("max", gauge.at[has_value], gauge.high[has_value]),
            ("avg", gauge.at, gauge.total / gauge.count),
        ):
            name = f"{metric.name}_{part}"
            columns[name] = _scatter(count, at, values, types[name])
        counts = np.zeros(count, np.uint32)
        counts[gauge.at] = gauge.count
        columns[f"{metric.name}_count"] = counts
    for metric in metrics_stored_as(MetricKind.COUNTER, Storage.CORE):
        counter = windows.counters.get(metric.id)
        if counter is not None:
            for part, values in (("last", counter.last), ("increase", counter.increase)):
                name = f"{metric.name}_{part}"
                columns[name] = _scatter(count, counter.at, values, types[name])
    for metric in metrics_stored_as(MetricKind.STATE, Storage.CORE):
        state = windows.states.get(metric.id)
        if state is not None:
            columns[f"{metric.name}_last"] = _scatter(count, state.at, state.last, "UInt8")
            columns[f"{metric.name}_last_at"] = _scatter(count, state.at, state.last_at // NANOS, "UInt32")
    return _arrow().table({**columns, **_tails(count, windows)})


def states_table(version: int, rows: SampleColumns, durations: StateDurations) -> Any:
    """Return the rows of `state_windows_1m` or `state_windows_1h`."""
    pa = _arrow()
    pairs = durations.metric * 256 + durations.state
    found, which = np.unique(pairs, return_inverse=True)
    metrics = [_BY_ID[int(pair) // 256] for pair in found]
    states = [_state_name(metric.states, int(pair) % 256) for metric, pair in zip(metrics, found, strict=True)]
    return pa.table(
        {
            **_head(version, rows, durations.row, durations.start),
            "metric": _named(which, [metric.name for metric in metrics]),
            "state": _named(which, states),
            "seconds": durations.seconds,
        }
    )


def usage_table(version: int, rows: SampleColumns, usage: HourUsage, first: int) -> Any:
    """Return the rows of `usage_1h`."""
    starts = np.full(len(usage.row), first)
    return _arrow().table({**_head(version, rows, usage.row, starts), **usage.sums})


def _arrow() -> Any:
    return importlib.import_module("pyarrow")


def _state_name(states: tuple[str, ...], number: int) -> str:
    return states[number] if number < len(states) else str(number)


def _head(version: int, rows: SampleColumns, row: Array, start: Array) -> dict[str, Any]:
    codes, names = rows.provenance
    return {
        "subject": rows.subject[row].astype(np.uint32),
        "provenance": _coded(codes[row], names),
        "at": (start // NANOS).astype(np.uint32),
        "version": np.full(len(row), version, np.uint64),
    }


def _coded(numbers: Array, texts: list[str]) -> Any:
    pa = _arrow()
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), pa.array(texts, pa.string()))


def _named(numbers: Array, texts: list[str]) -> Any:
    """Return a column of texts by position; texts may be duplicated."""
    distinct = sorted(set(texts))
    places = np.array([distinct.index(text) for text in texts], np.int64)
    return _coded(places[numbers], distinct)


_TYPES = {"UInt8": np.uint8, "UInt32": np.uint32, "UInt64": np.uint64, "Float32": np.float32, "Float64": np.float64}


_MAX_FLOAT32 = float(np.finfo(np.float32).max)
"""Larger numbers are stored as this one, because infinity is no value."""


def _scatter(count: int, at: Array, values: Array, type_: str) -> Any:
    """Return a column with values at some rows, and NULL elsewhere."""
    type_ = type_.removeprefix("Nullable(").removesuffix(")")
    column = np.zeros(count, _TYPES[type_])
    column[at] = np.clip(values, -_MAX_FLOAT32, _MAX_FLOAT32) if type_ == "Float32" else values
    if len(at) == count:
        return _arrow().array(column)
    absent = np.ones(count, bool)
    absent[at] = False
    return _arrow().array(column, mask=absent)


def _tails(count: int, windows: WindowSet) -> dict[str, Any]:
    """Return the tail columns: arrays with an element per metric."""
    return {
        **_arrays(count, "tail_gauge", _tail_only(windows.gauges), _GAUGE_PARTS),
        **_arrays(count, "tail_counter", _tail_only(windows.counters), _COUNTER_PARTS),
        **_arrays(count, "tail_state", _tail_only(windows.states), _STATE_PARTS),
    }


_Found = Mapping[int, GaugeWindows] | Mapping[int, CounterWindows] | Mapping[int, StateWindows]

_GAUGE_PARTS: dict[str, tuple[type, Callable[[Any], Array]]] = {
    "min": (np.float64, lambda gauge: gauge.low),
    "max": (np.float64, lambda gauge: gauge.high),
    "avg": (np.float64, lambda gauge: gauge.total / gauge.count),
    "count": (np.uint32, lambda gauge: gauge.count),
}
_COUNTER_PARTS: dict[str, tuple[type, Callable[[Any], Array]]] = {
    "last": (np.uint64, lambda counter: counter.last),
    "increase": (np.uint64, lambda counter: counter.increase),
}
_STATE_PARTS: dict[str, tuple[type, Callable[[Any], Array]]] = {"last": (np.uint8, lambda state: state.last)}


def _tail_only(found: _Found) -> dict[int, Any]:
    return {id_: one for id_, one in found.items() if _BY_ID[id_].storage is Storage.TAIL}


def _arrays(
    count: int, prefix: str, found: dict[int, Any], parts: dict[str, tuple[type, Callable[[Any], Array]]]
) -> dict[str, Any]:
    if not found:
        return {}
    pa = _arrow()
    window = np.concatenate([one.at for one in found.values()])
    order = np.argsort(window, kind="stable")
    ids = np.repeat(np.fromiter(found, np.uint16), [len(one.at) for one in found.values()])
    offsets = pa.array(np.concatenate(([0], np.cumsum(np.bincount(window, minlength=count)))).astype(np.int32))
    columns = {f"{prefix}_ids": pa.ListArray.from_arrays(offsets, pa.array(ids[order]))}
    for name, (type_, part) in parts.items():
        flat = np.concatenate([part(one).astype(type_) for one in found.values()])[order]
        columns[f"{prefix}_{name}"] = pa.ListArray.from_arrays(offsets, pa.array(flat))
    return columns
