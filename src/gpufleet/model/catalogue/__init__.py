"""The catalogue: one row a metric. Everything that names, stores, renders or documents a metric reads it here."""

from gpufleet.model.catalogue.events import EVENT_METRICS
from gpufleet.model.catalogue.gpu import GPU_METRICS
from gpufleet.model.catalogue.host import HOST_METRICS
from gpufleet.model.catalogue.instances import INSTANCE_METRICS
from gpufleet.model.catalogue.metric import (
    Absence,
    Lane,
    Metric,
    MetricKind,
    Role,
    Storage,
    Subject,
    ValueType,
)

CATALOGUE_VERSION = 3
"""Raised whenever a row is added, or an existing row changes its meaning; carried by documents and batches."""

CATALOGUE: dict[str, Metric] = {
    metric.name: metric for metric in (*GPU_METRICS, *INSTANCE_METRICS, *EVENT_METRICS, *HOST_METRICS)
}
"""Every metric by name, in the order in which people want to read them."""

CORE_METRICS: tuple[Metric, ...] = tuple(m for m in CATALOGUE.values() if m.storage is Storage.CORE)
"""Metrics with a typed column of their own in the store."""

BY_ID: dict[int, Metric] = {metric.id: metric for metric in CATALOGUE.values()}
"""Every metric by its stored number."""

__all__ = [
    "BY_ID",
    "CATALOGUE",
    "CATALOGUE_VERSION",
    "CORE_METRICS",
    "Absence",
    "Lane",
    "Metric",
    "MetricKind",
    "Role",
    "Storage",
    "Subject",
    "ValueType",
]
