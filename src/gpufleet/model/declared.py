"""What Kubernetes says of machines: somebody else's word, which is kept beside what they say of themselves."""

import datetime as dt

import msgspec

from gpufleet.model.time import NANOS

BELIEVED_NS = 600 * NANOS
"""What nobody said again for so long, nobody says any more."""


class DeclaredGpus(msgspec.Struct, frozen=True, kw_only=True):
    """What one teller says that Kubernetes counts in a cluster.

    Attributes:
        reader: who says it: how its word came, and whose it is, such as `remote_write/kube_state_metrics`.
        machines: of which it says so.
        gpus: what they have of the resource of whole GPUs.
        allocatable: what of it pods may be given, of those machines of which it says so; None where it says so of none.
        counted: of `gpus`, those of machines of which nobody said anything later.
        shares: of `counted`, what can be no GPUs of their own: a machine has more than its label `nvidia.com/gpu.count`
            says, or some times what is on its buses.
        measured_at: of its newest word.
        received_at: when the hub had that.
    """

    reader: str
    machines: int
    gpus: int
    allocatable: int | None
    counted: int
    shares: int
    measured_at: dt.datetime
    received_at: dt.datetime


class DeclaredResource(msgspec.Struct, frozen=True, kw_only=True):
    """What Kubernetes says of one machine and resource.

    Attributes:
        resource: with every character that no label may have as `_`, such as `nvidia_com_gpu`; of the machine's label,
            `nvidia.com/gpu.count`.
        capacity: how many there are; None where nobody says.
        allocatable: how many of them pods may be given; None where nobody says.
        reader: who says it.
        measured_at, received_at: when, and when the hub had it.
    """

    resource: str
    capacity: int | None
    allocatable: int | None
    reader: str
    measured_at: dt.datetime
    received_at: dt.datetime
