"""Labels that nobody here reads. An exporter that calls a label otherwise takes with it what that label said. Pure."""

from collections.abc import Iterator

from gpufleet.dialects.dialect import Dialect
from gpufleet.model.series import Series

OF_TARGETS = frozenset(
    {
        *("job", "instance", "node", "cluster", "namespace", "pod", "pod_uid", "container", "service", "endpoint"),
        *("prometheus", "prometheus_replica"),
    }
)
"""What a Prometheus, or its operator, says of the target; of the exporter's own it puts `exported_` before these."""


def unknown_labels(dialect: Dialect, series: Series) -> Iterator[str]:
    """Yield the labels of a series of one of the dialect's families that neither its table nor a target has."""
    family = dialect.families.get(series.name)
    if family is None or family.unread or dialect.labels is None:
        return
    for label in series.labels:
        known = label in dialect.labels or label in family.dims or label.startswith(dialect.prefixes)
        if not known and label.removeprefix("exported_") not in OF_TARGETS:
            yield label
