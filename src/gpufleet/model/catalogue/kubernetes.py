"""Rows of the catalogue about node resources in Kubernetes, reported by a cluster and not by the machine."""

from gpufleet.model.catalogue.metric import Lane, Metric, MetricKind, Storage, Subject, ValueType

CAPACITY = "kubernetes_capacity_devices"
ALLOCATABLE = "kubernetes_allocatable_devices"
LABELLED = "kubernetes_labelled_devices"
ALLOCATED = "kubernetes_allocated_devices"

DRA_DRIVER = "gpu.nvidia.com"
"""NVIDIA's driver of GPUs for Dynamic Resource Allocation."""

PUBLISHED_GPUS = "gpu_nvidia_com"
"""The driver in label notation: the resource of the GPUs that it publishes in ResourceSlices."""

GPU_RESOURCES = ("nvidia_com_gpu", "alpha_kubernetes_io_nvidia_gpu")
"""Resources of whole GPUs in label notation; they count shares if the device plugin shares GPUs."""


def _row(id: int, name: str, help: str, dim: str) -> Metric:  # noqa: A002 - the column's own name
    return Metric(
        id=id,
        name=name,
        kind=MetricKind.GAUGE,
        type=ValueType.INT,
        low=0,
        high=2**31,
        dims=(dim,),
        help=help,
        subjects=(Subject.MACHINE,),
        sides=("host",),
        lane=Lane.SLOW,
        storage=Storage.DIM,
        kernel=("the Node object in Kubernetes",),
    )


KUBERNETES_METRICS = (
    _row(320, CAPACITY, "Capacity of an NVIDIA resource of the node in Kubernetes; GPUs of its DRA driver", "resource"),
    _row(321, ALLOCATABLE, "Allocatable part of an NVIDIA resource of the node in Kubernetes", "resource"),
    _row(322, LABELLED, "GPUs of the node by its label nvidia.com/gpu.count", "label"),
    _row(323, ALLOCATED, "Devices that pods of the node have by requests, or by claims of the DRA driver", "resource"),
)

KUBERNETES_REPORTED = frozenset(metric.name for metric in KUBERNETES_METRICS)
"""Metrics reported about a machine by another party; they are no evidence that the machine itself is alive."""
