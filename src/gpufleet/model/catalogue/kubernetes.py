"""Rows of the catalogue about what Kubernetes says of a node: others' word of the machine, and not its own."""

from gpufleet.model.catalogue.metric import Lane, Metric, MetricKind, Storage, Subject, ValueType

CAPACITY = "kubernetes_capacity_devices"
ALLOCATABLE = "kubernetes_allocatable_devices"
LABELLED = "kubernetes_labelled_devices"

GPU_RESOURCES = ("nvidia_com_gpu", "alpha_kubernetes_io_nvidia_gpu")
"""Resources of whole GPUs, written as labels are; of shares of them where the device plugin shares them out."""


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
    _row(320, CAPACITY, "What Kubernetes says that the node has of a resource of NVIDIA's", "resource"),
    _row(321, ALLOCATABLE, "What Kubernetes says that pods may be given of it", "resource"),
    _row(322, LABELLED, "GPUs of the node by its label nvidia.com/gpu.count", "label"),
)

SAID_BY_KUBERNETES = frozenset(metric.name for metric in KUBERNETES_METRICS)
"""What is said of a machine by somebody else: whoever brings it has not heard of the machine itself."""
