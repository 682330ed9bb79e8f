"""SQL views over minutes and hours. Pure."""

from collections.abc import Iterator

from gpufleet.dialects.all_smi import AMBIGUOUS
from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage
from gpufleet.stores.clickhouse.sql.definition import (
    SqlView,
    ViewColumn,
    escape_literal,
    named_source,
    table_columns,
)

_REPORTER = "cluster machine view reader lane provenance"


def _current_windows(table: str) -> str:
    """Return the source of a rollup table, without rows of incomplete or earlier runs (`rollup/tables.py`)."""
    current = "(toStartOfHour(at), version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)"
    return f"{named_source(table)} WHERE {current}"


_SPANS = (("minute", "a minute", "1m", " Fractions may be rounded to seven digits."), ("hour", "an hour", "1h", ""))
_AT = "start of the {}; the newest two hours are not rolled up yet"

_PARTS = {
    MetricKind.GAUGE: {
        "min": "minimum",
        "max": "maximum",
        "avg": "mean of the samples",
        "count": "samples with a value",
    },
    MetricKind.COUNTER: {"last": "last value", "increase": "increase, also across driver restarts"},
    MetricKind.STATE: {"last": "last state"},
}
_AMBIGUOUS_PARTS = {"avg": "; NaN if a sample is `ambiguous_zero`", "count": ", or with `ambiguous_zero`"}
_TAILS = {MetricKind.GAUGE: "tail_gauge", MetricKind.COUNTER: "tail_counter", MetricKind.STATE: "tail_state"}

_METRICS = (
    "for each metric without dimensions that is not a text, by its name in [metrics.md](metrics.md): for a gauge "
    "`_min`, `_max`, `_avg` and `_count` (samples with a value), for a counter `_last` and `_increase` (also across "
    "driver restarts), for a state `_last`; NULL, or a count of 0, if no sample has a value; a sample that is "
    "`ambiguous_zero` makes `_avg` NaN, and is in `_count`"
)


def _part(metric: Metric, part: str) -> str:
    """Return the SQL expression for a part of a metric; a state by name."""
    if metric.storage is Storage.CORE:
        value = f"`{metric.name}_{part}`"
    else:
        prefix = _TAILS[metric.kind]
        value = f"{prefix}_{part}[indexOf({prefix}_ids, {metric.id})]"
        if part != "count":  # an index outside the array gives 0, which is correct for a count
            value = f"if(has({prefix}_ids, {metric.id}), {value}, NULL)"
    if metric.kind is MetricKind.STATE:
        names = ", ".join(f"'{escape_literal(name)}'" for name in metric.states)
        value = f"if(isNull({value}), NULL, [{names}][assumeNotNull({value}) + 1])"
    return value


_STATES = ", ".join(
    f"'{metric.name}'"
    for metric in CATALOGUE.values()
    if metric.kind is MetricKind.STATE and metric.storage not in (Storage.CORE, Storage.TAIL)
)


def _whole(part: str) -> str:
    """Return the integer part of a counter with dimensions; NULL for states, which are stored as positions."""
    return f"if(metric IN ({_STATES}), NULL, int_{part})"


def _counted(part: str) -> str:
    return f"coalesce(toFloat64({_whole(part)}), float_{part})"


def _windows_metrics() -> Iterator[ViewColumn]:
    for metric in CATALOGUE.values():
        if metric.storage in (Storage.CORE, Storage.TAIL):
            for part, text in _PARTS[metric.kind].items():
                more = _AMBIGUOUS_PARTS.get(part, "") if metric.name in AMBIGUOUS else ""
                help_ = f"{metric.name}: {text}{more}"
                yield ViewColumn(f"{metric.name}_{part}", _part(metric, part), help_, of_metric=True)


def _at(span: str) -> ViewColumn:
    return ViewColumn("at", "at", _AT.format(span))


def _all(span: str, one: str, table: str, digits: str) -> Iterator[SqlView]:
    yield SqlView(
        name=f"fleet_{span}s",
        help=f"Aggregates of the samples of {one}, by device and reader; restrict `at`, `cluster` and "
        f"`machine`.{digits}",
        columns=(
            *table_columns(_REPORTER),
            _at(span),
            ViewColumn("samples", "samples", "number of samples"),
            *_windows_metrics(),
        ),
        source=_current_windows(f"windows_{table}"),
        metrics=_METRICS,
    )
    yield SqlView(
        name=f"fleet_dimension_{span}s",
        help=f"Aggregates of the values with dimensions of {one}; restrict as for `fleet_{span}s`.",
        columns=(
            *table_columns(f"{_REPORTER} metric labels"),
            _at(span),
            *(
                ViewColumn(part, part, f"{_PARTS[MetricKind.GAUGE][part]}; for gauges")
                for part in ("min", "max", "avg")
            ),
            ViewColumn("count", "count", _PARTS[MetricKind.GAUGE]["count"]),
            ViewColumn("last", _counted("last"), "last value; for counters, inexact beyond 2^53"),
            ViewColumn("last_integer", _whole("last"), "the same for integers: exact"),
            ViewColumn("increase", _counted("increase"), "increase, also across driver restarts; for counters"),
            ViewColumn("increase_integer", _whole("increase"), "the same for integers: exact"),
        ),
        source=_current_windows(f"dim_windows_{table}"),
    )
    yield SqlView(
        name=f"fleet_state_{span}s",
        help=f"Seconds of a device in a state in {one}; unknown time has no row.",
        columns=(
            *table_columns(f"{_REPORTER} metric labels"),
            ViewColumn("state", "state", "one of the metric's states"),
            _at(span),
            ViewColumn("seconds", "seconds", "seconds in this state"),
        ),
        source=_current_windows(f"state_windows_{table}"),
    )


WINDOW_VIEWS = tuple(view for span, one, table, digits in _SPANS for view in _all(span, one, table, digits))
"""Rollup views, in the order of the documentation."""
