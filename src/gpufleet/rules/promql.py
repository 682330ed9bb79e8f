"""Building blocks of queries."""

from collections.abc import Iterable, Mapping

DAY_SECONDS = 86_400
"""Time for which the rules remember a device, a node or a fault after its series ended."""


def join_names(*labels: str) -> str:
    """Return label names as a list in PromQL."""
    return ", ".join(labels)


Sources = Mapping[str, tuple[str, ...]]
"""Labels of a result, to the labels of a series that can have their value; the first that is not empty counts."""


def scraped(*labels: str) -> dict[str, tuple[str, ...]]:
    """Return the sources of labels that a scrape without `honor_labels` renames to `exported_*`."""
    return {label: (f"exported_{label}", label) for label in labels}


def max_by(labels: Iterable[str], expr: str, sources: Sources | None = None) -> str:
    """Return the greatest value for each combination of labels.

    Labels are replaced after the aggregation, and several sources of a label are read into a label of its own first.
    Replaced in place, labels of two series could become equal, which fails the whole query.

    Args:
        labels: labels of the result.
        expr: query.
        sources: sources of those labels that are not read from the label of their name.
    """
    by, sources = tuple(labels), sources or {}
    read = {label: names[0] if len(names) == 1 else f"own_{label}" for label, names in sources.items()}
    for label, names in sources.items():
        if len(names) > 1:
            listed = ", ".join(f'"{name}"' for name in names)
            expr = f'label_join({expr}, "own_{label}", ";", {listed})'
            expr = f'label_replace({expr}, "own_{label}", "$1", "own_{label}", ";*([^;]*).*")'
    expr = f"max by ({join_names(*(read.get(label, label) for label in by))}) ({expr})"
    for label, source in read.items():
        expr = f'label_replace({expr}, "{label}", "$1", "{source}", "(.*)")'
    return f"max by ({join_names(*by)}) ({expr})" if sources else expr


def last_seen(record: str, present: str) -> str:
    """Return the query of a rule with the time at which `present` last had a result; it ends after a day.

    The rule reads its own newest sample, so that its cost does not grow with the day. `[1h]` bridges a restart of
    Prometheus.
    """
    return f"0 * ({present}) + time()\nor\n(last_over_time({record}[1h]) > time() - {DAY_SECONDS})"


def of_both(values: str, other: str) -> str:
    """Return the values of a query whose labels are also those of a value of another query."""
    return f"({values} and {other})"


def regex(values: Iterable[object]) -> str:
    """Return a regular expression that matches each of the values."""
    return "|".join(str(value) for value in values)
