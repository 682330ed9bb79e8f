"""Views over minutes and hours: what is left of samples when their days are over. Pure."""

from collections.abc import Iterator

from gpufleet.model.catalogue import CATALOGUE, Metric, MetricKind, Storage
from gpufleet.stores.clickhouse.sql.shown import Shown, SqlView, escaped, same

_TELLER = "cluster machine view reader lane provenance"
_CURRENT = "FINAL WHERE (toStartOfHour(at), version) IN (SELECT hour, max(version) FROM rolled_hours GROUP BY hour)"
"""An attempt that was cut short, or knew less, is no answer (`rollup/tables.py`)."""

_SPANS = (("minute", "a minute", "1m", " Fractions may be rounded to seven digits."), ("hour", "an hour", "1h", ""))
_AT = "when the {} began; the newest two hours are not made yet"

_PARTS = {
    MetricKind.GAUGE: {
        "min": "least",
        "max": "greatest",
        "avg": "mean of the samples",
        "count": "samples that had a value",
    },
    MetricKind.COUNTER: {"last": "last value", "increase": "by how much it grew, over starts of the driver too"},
    MetricKind.STATE: {"last": "last state"},
}
_TAILS = {MetricKind.GAUGE: "tail_gauge", MetricKind.COUNTER: "tail_counter", MetricKind.STATE: "tail_state"}

_METRICS = (
    "for each metric that has no dimensions and is no text, by its name in [metrics.md](metrics.md): of a gauge "
    "`_min`, `_max`, `_avg` and `_count` (samples that had a value), of a counter `_last` and `_increase` (over starts "
    "of the driver too), of a state `_last`; NULL, or a count of 0, where no sample had a value"
)


def _part(metric: Metric, part: str) -> str:
    """Return what a row has of a part of a metric; a state by its name."""
    if metric.storage is Storage.CORE:
        value = f"`{metric.name}_{part}`"
    else:
        prefix = _TAILS[metric.kind]
        value = f"{prefix}_{part}[indexOf({prefix}_ids, {metric.id})]"
        if part != "count":  # outside an array stands 0, which is right for a count
            value = f"if(has({prefix}_ids, {metric.id}), {value}, NULL)"
    if metric.kind is MetricKind.STATE:
        names = ", ".join(f"'{escaped(name)}'" for name in metric.states)
        value = f"if(isNull({value}), NULL, [{names}][assumeNotNull({value}) + 1])"
    return value


_STATES = ", ".join(
    f"'{metric.name}'"
    for metric in CATALOGUE.values()
    if metric.kind is MetricKind.STATE and metric.storage not in (Storage.CORE, Storage.TAIL)
)


def _whole(part: str) -> str:
    """Return a part of a counter with dimensions; a state is kept as a position, which is nobody's number."""
    return f"if(metric IN ({_STATES}), NULL, int_{part})"


def _counted(part: str) -> str:
    return f"coalesce(toFloat64({_whole(part)}), float_{part})"


def _metrics() -> Iterator[Shown]:
    for metric in CATALOGUE.values():
        if metric.storage in (Storage.CORE, Storage.TAIL):
            for part, words in _PARTS[metric.kind].items():
                yield Shown(f"{metric.name}_{part}", _part(metric, part), f"{metric.name}: {words}", of_metric=True)


def _at(span: str) -> Shown:
    return Shown("at", "at", _AT.format(span))


def _all(span: str, one: str, table: str, digits: str) -> Iterator[SqlView]:
    yield SqlView(
        name=f"fleet_{span}s",
        help=f"What the samples of {one} come to, by device and reader; ask with bounds on `at`, `cluster` and "
        f"`machine`.{digits}",
        columns=(*same(_TELLER), _at(span), Shown("samples", "samples", "how many there were"), *_metrics()),
        source=f"windows_{table} {_CURRENT}",
        metrics=_METRICS,
    )
    yield SqlView(
        name=f"fleet_dimension_{span}s",
        help=f"What the values with dimensions of {one} come to; ask with bounds as of `fleet_{span}s`.",
        columns=(
            *same(f"{_TELLER} metric labels"),
            _at(span),
            *(Shown(part, part, f"{_PARTS[MetricKind.GAUGE][part]}; of gauges") for part in ("min", "max", "avg")),
            Shown("count", "count", _PARTS[MetricKind.GAUGE]["count"]),
            Shown("last", _counted("last"), "last value; of counters, inexact past 2^53"),
            Shown("last_integer", _whole("last"), "the same where it is whole: exact"),
            Shown("increase", _counted("increase"), "by how much it grew, over starts of the driver too; of counters"),
            Shown("increase_integer", _whole("increase"), "the same where it is whole: exact"),
        ),
        source=f"dim_windows_{table} {_CURRENT}",
    )
    yield SqlView(
        name=f"fleet_state_{span}s",
        help=f"How long a device was in a state in {one}; what nobody knew is in no row.",
        columns=(
            *same(f"{_TELLER} metric labels"),
            Shown("state", "state", "one of the metric's states"),
            _at(span),
            Shown("seconds", "seconds", "of it"),
        ),
        source=f"state_windows_{table} {_CURRENT}",
    )


WINDOW_VIEWS = tuple(view for span, one, table, digits in _SPANS for view in _all(span, one, table, digits))
"""All of them, in the order of the documentation."""
