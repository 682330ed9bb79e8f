"""GPUs that Kubernetes declares for machines, stored beside the machines' own readings."""

import datetime as dt

import msgspec

from gpufleet.model.time import NANOS

DECLARATION_TTL_NS = 600 * NANOS
"""Lifetime of a declaration that is not repeated."""


class DeclaredGpus(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of a cluster as Kubernetes counts them, from one reporter.

    Attributes:
        reader: transport and origin of the report, such as `remote_write/kube_state_metrics`.
        machines: number of machines that it reports.
        gpus: sum over the machines of their capacity of the whole-GPU resource or of `published`, whichever is larger;
            of both together as far as the label or the buses of a machine show that each has GPUs of its own.
        allocatable: sum over the machines with a reported allocatable count; None if no machine has one.
        allocated: sum of the devices of the whole-GPU resource and of published GPUs that pods have, by requests and
            claims; None if no machine has a reported number.
        published: sum of the GPUs in ResourceSlices of NVIDIA's DRA driver; None if no machine has a reported number.
        counted: part of `gpus` on machines without a later report from another reporter. A reporter with a number of
            published GPUs has precedence over one without.
        shares: part of `counted` that cannot be whole GPUs: the capacity of a machine exceeds its label
            `nvidia.com/gpu.count`, or is a multiple of the GPUs on its buses. Published GPUs are whole GPUs.
        measured_at: time of the newest report; if its capacity and published GPUs differ in age, the earlier time.
        received_at: time when the hub received that report.
    """

    reader: str
    machines: int
    gpus: int
    allocatable: int | None
    allocated: int | None = None
    published: int | None = None
    counted: int
    shares: int
    measured_at: dt.datetime
    received_at: dt.datetime


class DeclaredResource(msgspec.Struct, frozen=True, kw_only=True):
    """Resource of one machine as Kubernetes declares it.

    Attributes:
        resource: name of the resource with every character that labels do not allow replaced by `_`, such as
            `nvidia_com_gpu`; `gpu_nvidia_com` for the GPUs of the DRA driver; for the machine's label,
            `nvidia.com/gpu.count`.
        capacity: capacity of the node; None if not reported.
        allocatable: allocatable part of the capacity; None if not reported.
        reader: reporter, as in `DeclaredGpus`.
        measured_at, received_at: time of the report, and of its receipt by the hub.
    """

    resource: str
    capacity: int | None
    allocatable: int | None
    reader: str
    measured_at: dt.datetime
    received_at: dt.datetime
