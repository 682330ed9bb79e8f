"""Metric catalogue, one row per metric: the only definition for storage, exporters and documentation."""

from gpufleet.model.catalogue.events import EVENT_METRICS
from gpufleet.model.catalogue.gpu import GPU_METRICS
from gpufleet.model.catalogue.gpu_activity import ACTIVITY_METRICS
from gpufleet.model.catalogue.gpu_board import BOARD_METRICS
from gpufleet.model.catalogue.gpu_errors import ERROR_METRICS
from gpufleet.model.catalogue.gpu_links import LINK_METRICS
from gpufleet.model.catalogue.guest import GUEST_METRICS
from gpufleet.model.catalogue.host import HOST_METRICS
from gpufleet.model.catalogue.instances import INSTANCE_METRICS
from gpufleet.model.catalogue.kubernetes import KUBERNETES_METRICS, KUBERNETES_REPORTED
from gpufleet.model.catalogue.metric import (
    Absence,
    GpuRole,
    Lane,
    Metric,
    MetricKind,
    Storage,
    Subject,
    ValueType,
)
from gpufleet.model.catalogue.probe import PROBE_METRICS

CATALOGUE_VERSION = 11
"""Version in documents and batches, incremented when a row is added or changes its meaning."""

ROWS = (
    *GPU_METRICS,
    *ACTIVITY_METRICS,
    *BOARD_METRICS,
    *ERROR_METRICS,
    *LINK_METRICS,
    *INSTANCE_METRICS,
    *EVENT_METRICS,
    *HOST_METRICS,
    *KUBERNETES_METRICS,
    *GUEST_METRICS,
    *PROBE_METRICS,
)
"""All rows in documentation order."""

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in ROWS}
"""All metrics by name."""

CORE_METRICS: tuple[Metric, ...] = tuple(m for m in CATALOGUE.values() if m.storage is Storage.CORE)
"""Metrics with their own typed column in the store."""

BY_ID: dict[int, Metric] = {metric.id: metric for metric in ROWS}
"""All metrics by stored id."""

__all__ = [
    "BY_ID",
    "CATALOGUE",
    "CATALOGUE_VERSION",
    "CORE_METRICS",
    "KUBERNETES_REPORTED",
    "ROWS",
    "Absence",
    "GpuRole",
    "Lane",
    "Metric",
    "MetricKind",
    "Storage",
    "Subject",
    "ValueType",
]
