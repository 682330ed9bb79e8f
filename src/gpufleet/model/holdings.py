"""Holdings: the pods, jobs, VMs and allocations that have a device, and how that is known."""

import enum
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

ObjectText = Annotated[str, msgspec.Meta(max_length=4096)]
"""Text of an object of the Kubernetes API."""

MAX_OWNERS = 16
"""Maximum length of an owner chain."""

MAX_LABELS = 64
"""Maximum number of labels, and of annotations, of a holder."""

MAX_STEPS = 64
"""Maximum number of SLURM steps of a holding."""

REPEAT_SECONDS = 600
"""Interval at which agents and importers report unchanged holdings again."""

MAX_DEVICE_STATES = 1024
"""Maximum number of devices of a machine whose holder states are reported."""

MAX_UNRESOLVED_SOURCES = 16
"""Maximum number of sources of a machine whose unresolved device names are counted."""

MAX_UNRESOLVED_NAMES = 8
"""Maximum number of unresolved device names of a source that a hub gets; all of them are counted."""

MAX_STATE_TEXT = 256
"""Maximum length of a detail of a holder state, of the name of a source, and of an unresolved device name."""


HET_COMPONENT = "HetJobComponent"
"""Kind of the first owner of a component's job: the component as SLURM names it, such as `200+1`."""

HET_JOB = "HetJob"
"""Kind of the owner of a component of a heterogeneous job."""


class HolderKind(enum.StrEnum):
    """Kind of a holder."""

    POD = "pod"
    CONTAINER = "container"  # a container that is not part of a pod
    JOB = "job"
    VM = "vm"
    ALLOCATION = "allocation"


class Share(enum.StrEnum):
    """Sharing mode of a device."""

    EXCLUSIVE = "exclusive"
    TIMESLICE = "timeslice"
    MPS = "mps"
    MIG = "mig"
    VGPU = "vgpu"
    DRA = "dra"  # a claim of Dynamic Resource Allocation; several pods can share it


class Method(enum.StrEnum):
    """Source of the evidence for a holding."""

    KUBELET = "kubelet"  # declared by the kubelet's PodResources API
    SCHEDULER = "slurm"  # declared by the SLURM controller
    HYPERVISOR = "libvirt"  # declared by the domain's definition
    PROCESS = "process"  # observed: a process on the device, and the cgroup it is in
    DEVICE_FILE = "device_file"  # observed: a process has the device node open
    IMPORTED = "imported"  # labels of an imported page
    CLAIM = "resource_claim"  # declared by the Kubernetes scheduler: a ResourceClaim; only the hub has it


class HoldingVerdict(enum.StrEnum):
    """Agreement between the evidence for a holding."""

    AGREED = "agreed"  # declared and observed
    DECLARED_ONLY = "declared_only"  # no process of the holder is on the device: allocated and idle, or not permitted
    OBSERVED_ONLY = "observed_only"  # no scheduler declares it
    CONFLICT = "conflict"  # the device is declared for others, exclusively
    UNKNOWN = "unknown"  # the declaring source does not answer now; the holding is as last declared
    NONE = "none"


class Owner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Controller of a holder, or of another owner.

    Attributes:
        kind, name, uid, api_version: as in a Kubernetes owner reference; `uid` and `api_version` are empty if unknown.
    """

    kind: ObjectText
    name: ObjectText
    uid: ObjectText = ""
    api_version: ObjectText = ""


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod, container, job, VM or allocation. Texts are empty if unknown or not applicable.

    Attributes:
        kind: kind of holder.
        id: its identity: pod UID, container id, job id, VM UUID or allocation id; `namespace/name` for a pod or a
            launcher pod's virtual machine whose UID is unknown.
        name: for display.
        namespace: Kubernetes namespace.
        owners: controllers, the nearest first.
        labels, annotations: those on the allow-list.
        user, account, queue: as the scheduler reports them; `queue` is SLURM's partition.
        qos: SLURM's quality of service.
        array_job, array_task: ids within a job array.
        slurm_cluster: `ClusterName` of the SLURM cluster that gave a job its id, in lower case.
        nodes, gpus: size of the whole job, or 0 if unknown.
    """

    kind: HolderKind
    id: str
    name: str = ""
    namespace: str = ""
    owners: Annotated[tuple[Owner, ...], msgspec.Meta(max_length=MAX_OWNERS)] = ()
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_LABELS)] = {}
    annotations: Annotated[dict[str, str], msgspec.Meta(max_length=MAX_LABELS)] = {}
    user: str = ""
    account: str = ""
    queue: str = ""
    qos: str = ""
    array_job: str = ""
    array_task: str = ""
    slurm_cluster: str = ""
    nodes: Count = 0
    gpus: Count = 0

    def __hash__(self) -> int:
        return hash((self.kind, self.id))


class CertainPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """First part of a holding, in which its verdict was certain.

    Attributes:
        verdict: the last certain verdict.
        until: end of the part, nanoseconds since 1970.
    """

    verdict: HoldingVerdict
    until: int


class Holding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Interval in which a holder has a view, with its evidence.

    A holding ends, and another one begins, when its verdict becomes `conflict` or ceases to be, and when the user,
    account or queue of its holder changes.

    Attributes:
        view: key of the view.
        holder: holder of the view.
        parent: holder of the holder (pod -> VM -> allocation is a chain).
        container: name of the pod's container, or empty.
        container_id: its id in the container runtime, or empty.
        steps: SLURM steps of the job that use the device, or empty.
        share: sharing mode.
        replicas: replicas of a time-sliced or MPS device that the holder has, or 0.
        total_replicas: replicas that the device is shared into, or 0 if unknown.
        claim: `namespace/name` of the resource claim, or empty.
        since, until: nanoseconds since 1970; `until` is None while the holding lasts.
        methods: sources of the evidence (`Method`).
        verdict: agreement between the evidence.
        certain: the part before the verdict became `unknown`; None if there is none, or with another verdict.
    """

    view: str
    holder: Holder
    parent: Holder | None = None
    container: str = ""
    container_id: str = ""
    steps: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_STEPS)] = ()
    share: Share = Share.EXCLUSIVE
    replicas: Count = 0
    total_replicas: Count = 0
    claim: str = ""
    since: int
    until: int | None = None
    methods: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)]
    verdict: HoldingVerdict
    certain: CertainPeriod | None = None


class HolderState(enum.StrEnum):
    """Whether the holders of a device are known. A name from a newer build decodes as `UNKNOWN`."""

    HELD = "held"
    FREE = "free"  # every source on this machine answers, and none reports a holder
    UNKNOWN = "unknown"  # a source that could declare a holder does not answer, or there is none

    @classmethod
    def _missing_(cls, value: object) -> "HolderState | None":
        return cls.UNKNOWN if isinstance(value, str) else None


class DeviceHolders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Present holders of a device.

    Attributes:
        state: whether all of them are known.
        detail: why they are not, or the holders that contradict each other.
        holdings: one per holder and container; several if the device is shared.
    """

    state: HolderState
    detail: str = ""
    holdings: tuple[Holding, ...] = ()


class DeviceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holder state of a device, as its machine reports it to a hub.

    Attributes:
        view: key of the view.
        state, detail: as in `DeviceHolders`.
    """

    view: str
    state: HolderState
    detail: str = ""


class UnresolvedCount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Number of device names of a holder source that identify no device of this machine.

    Attributes:
        source: name of the source.
        names: number of names; 0 if the source answers and has none; None if it fails.
        examples: the first of the names in their order, as the source writes them.
    """

    source: str
    names: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None
    examples: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_UNRESOLVED_NAMES)] = ()


class UnresolvedDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device name in the report of a holder source that identifies no device of this machine.

    Attributes:
        source: name of the source.
        name: the device name as the source writes it.
        detail: why it identifies none.
        holder: the holder that has the device, by the source.
        container: name of the pod's container, or empty.
    """

    source: str
    name: str
    detail: str
    holder: Holder
    container: str = ""


class UnresolvedDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Device names of the newest round over the holder sources that identify no device of this machine.

    Attributes:
        counts: number of names by source; 0 for a source that answers and has none.
        devices: the first of them, a bounded number.
    """

    counts: dict[str, int]
    devices: tuple[UnresolvedDevice, ...] = ()
