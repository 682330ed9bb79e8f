"""Dialect of kube-state-metrics: NVIDIA resources of each Kubernetes node.

Source: its documentation and code (docs/metrics/cluster/node-metrics.md, v2.18). Since v1.2 one series per resource,
`kube_node_status_capacity{node,resource,unit}` and `kube_node_status_allocatable`, with every character of the resource
that labels do not allow as `_` (`nvidia_com_gpu`, `nvidia_com_mig_1g_10gb`); in v1.1 to v1.3
`kube_node_status_capacity_nvidia_gpu_cards{node}`. `kube_node_labels` has the label `nvidia.com/gpu.count` if
`--metric-labels-allowlist` includes it.
"""

from collections.abc import Iterable

from gpufleet.dialects.dialect import Dialect, FamilyMapping, MappedValue, SeriesSubject, table
from gpufleet.dialects.sample_builder import bounded
from gpufleet.model.catalogue import CATALOGUE
from gpufleet.model.catalogue.kubernetes import ALLOCATABLE, CAPACITY, LABELLED
from gpufleet.model.stored.samples import ImportedSeries

NVIDIA = "nvidia_com_"
"""Prefix of the resources of NVIDIA's device plugins."""

MAX_RESOURCE = 128

HAS, MAY_GIVE, LABELS = "kube_node_status_capacity", "kube_node_status_allocatable", "kube_node_labels"
COUNT_LABEL = "label_nvidia_com_gpu_count"
METRICS = {HAS: CAPACITY, MAY_GIVE: ALLOCATABLE}

OLD = ("alpha_kubernetes_io_nvidia_gpu",)
FAMILIES = table(
    FamilyMapping(name=f"{HAS}_nvidia_gpu_cards", metric=CAPACITY, labels=OLD),
    FamilyMapping(name=f"{MAY_GIVE}_nvidia_gpu_cards", metric=ALLOCATABLE, labels=OLD),
)


def identify(series: ImportedSeries) -> SeriesSubject | None:
    """Return the node of a series; `exported_node` if the scraper has its own label `node`."""
    node = series.labels.get("exported_node") or series.labels.get("node", "")
    return SeriesSubject(machine=node, view=None) if node else None


def _resource(series: ImportedSeries, value: float) -> Iterable[MappedValue]:
    resource, metric = series.labels.get("resource", ""), METRICS[series.name]
    if resource.startswith(NVIDIA) and len(resource) <= MAX_RESOURCE:
        yield metric, (resource,), bounded(CATALOGUE[metric], value, series.name)


def _labelled(series: ImportedSeries, _: float) -> Iterable[MappedValue]:
    count = series.labels.get(COUNT_LABEL, "")
    if count.isascii() and count.isdigit() and len(count) < 6:
        yield LABELLED, ("nvidia.com/gpu.count",), int(count)


KUBE_STATE_METRICS = Dialect(
    name="kube_state_metrics",
    prefixes=(HAS, MAY_GIVE, LABELS),
    families=FAMILIES,
    unread={
        f"{name}_{what}": "processors, memory and pods of the node, not GPUs"
        for name in (HAS, MAY_GIVE)
        for what in ("cpu_cores", "memory_bytes", "pods")
    },
    identify=identify,
    special={HAS: _resource, MAY_GIVE: _resource, LABELS: _labelled},
)

SELECTORS = (
    f'{{__name__=~"({HAS}|{MAY_GIVE})(_nvidia_gpu_cards)?",resource=~"({NVIDIA}.+)?"}}',
    f'{LABELS}{{{COUNT_LABEL}!=""}}',
)
"""Selectors of the needed series for a query to Prometheus."""


def is_of_gpus(series: ImportedSeries) -> bool:
    """Return whether a series of this dialect is about NVIDIA devices."""
    if series.name == LABELS:
        return COUNT_LABEL in series.labels
    return series.name not in METRICS or series.labels.get("resource", "").startswith(NVIDIA)
