"""API answers of the hub: the allocation contract and the lists around it."""

import datetime as dt

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.holders import NodeHolder
from gpufleet.model.api.inventory import GpuHistory
from gpufleet.model.api.kubernetes import KubernetesNodeRecord
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.holdings import DeviceHolders, HolderState, Share
from gpufleet.model.liveness import ExpectedGpus, Liveness
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimReading, Provenance, Reading, Value
from gpufleet.model.snapshot import Aggregate, ProcessReport
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.view import Scope, Side, ViewKind


class PassthroughState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a GPU that its host passed through to a virtual machine (bound to vfio).

    The host shows the GPU by PCI address; the guest shows the same GPU by UUID.

    Attributes:
        known: the other view is known: the host read the GPU's UUID before it was bound to vfio.
        views: ids of the GPU inside virtual machines, or of a virtual machine's GPU on its host, usable at
            `/v1/gpus/{id}`; empty in answers to tenants.
        detail: explanation for people.
    """

    known: bool
    views: tuple[str, ...] = ()
    detail: str


class AllocatedHolding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holding of a device by the pod or job of an allocation.

    Attributes:
        share: sharing mode.
        replicas: replicas of a time-sliced or MPS device that it has, or 0.
        total_replicas: replicas that the device is shared into, or 0 if unknown.
        containers: names of the pod's containers that have the device.
        claim: `namespace/name` of the resource claim, or empty.
        since: start of the holding. No value of an earlier time is shown.
    """

    share: Share
    replicas: int = 0
    total_replicas: int = 0
    containers: tuple[str, ...] = ()
    claim: str = ""
    since: dt.datetime


class AnswerDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Device in an answer.

    Attributes:
        id: the hub's id of the view: `cluster/machine/view key`, usable at `/v1/gpus/{id}`.
        machine: the hub's id of the machine that observed it.
        kind, side, uuid, pci_address, parent, name: as in a snapshot's device.
        instance: as in a snapshot's device, if it has no UUID.
        source: source of its readings.
        readings, dimensions: each with its own scope, times and age.
        passthrough: set in allocation answers if a virtual machine may have the GPU: the guest's answer then shows the
            same GPU again. In answers about a single GPU also set inside the virtual machine, if its host is known.
        holding: set in answers for allocations of pods and jobs.
    """

    id: str
    machine: str
    kind: ViewKind
    side: Side
    uuid: str | None
    pci_address: str | None = None
    instance: str | None = None
    parent: str | None = None
    name: str | None = None
    source: Provenance
    readings: dict[str, Reading]
    dimensions: tuple[DimReading, ...] = ()
    passthrough: PassthroughState | None = None
    holding: AllocatedHolding | None = None


class AllocationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/allocations/{id}/metrics`. Every field is always present.

    Attributes:
        allocation: the queried allocation.
        source: source of the readings; `unavailable` if no source may answer.
        reason: why there is no answer, or None.
        detail: adds to `reason`.
        measured_at: when the newest reading was measured, or None.
        received_at: when the hub received it, or None.
        age_seconds: since receipt, by the hub's clock, or None.
        last_error: the newest error of the readers behind the answer, verbatim, or None.
        aggregate: totals over the allocation's GPUs, with "n of m devices".
        machine: the hub's id of the machine that answers; None if there is none, or several.
        devices, host: the readings. An answer for a pod or job has none of the host.
    """

    allocation: Allocation
    source: Provenance
    reason: Reason | None
    detail: str
    measured_at: dt.datetime | None
    received_at: dt.datetime | None
    age_seconds: float | None
    last_error: str | None
    aggregate: Aggregate
    machine: str | None
    devices: tuple[AnswerDevice, ...]
    host: dict[str, Reading]
    host_dimensions: tuple[DimReading, ...]


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step of a series.

    Attributes:
        at: start of the step.
        value: None if nothing was measured in the step.
        absent: why there is no value, from the newest sample of the step. None if there is a value, if the step has no
            sample, and if its samples have expired.
    """

    at: dt.datetime
    value: Value | None
    absent: Reason | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Metric of a device over time, or of the machine (`device` is None).

    `scope` is `shared_device` if others shared the device at any time of the series.
    """

    device: str | None
    metric: str
    unit: str
    scope: Scope = Scope.OWN
    points: tuple[SeriesPoint, ...]


class SourceInterval(msgspec.Struct, frozen=True, kw_only=True):
    """Interval of a series that one source measured.

    Attributes:
        machine: machine of the series, `cluster/id`.
        source: the closest source to the machine that reported then.
        start, end: the interval, `end` excluded.
    """

    machine: str
    source: Provenance
    start: dt.datetime
    end: dt.datetime


class SeriesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/allocations/{id}/series`; reason and detail as in the metrics answer.

    `resolution` is the coarsest one that contributed; None if the answer has no points. `source` is the source of the
    last interval of `sources`.
    """

    allocation: Allocation
    source: Provenance
    reason: Reason | None
    detail: str
    start: dt.datetime
    end: dt.datetime
    step_seconds: float
    resolution: Resolution | None
    series: tuple[Series, ...]
    sources: tuple[SourceInterval, ...] = ()


class MachineSeriesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/machines/{id}/series`: series of a machine and its devices.

    Attributes:
        cluster, machine, name: the machine, by the hub's id and its host name.
        source: source of its series in the last interval of `sources`.
        start, end, step_seconds: interval and length of a step.
        resolution: the coarsest one that contributed.
        series: by metric and device.
        sources: source of each interval, in order of time.
    """

    cluster: str
    machine: str
    name: str
    source: Provenance
    start: dt.datetime
    end: dt.datetime
    step_seconds: float
    resolution: Resolution
    series: tuple[Series, ...]
    sources: tuple[SourceInterval, ...] = ()


class MachineRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Machine as the hub knows it.

    Attributes:
        id: given by the hub; never reused.
        cluster: cluster of the machine.
        machine: the newest evidence.
        sender: sender that reports the machine.
        first_seen, last_seen: by the hub's clock on receipt.
        conflict: explanation if the evidence contradicts another machine's, else None.
        hypervisor_id: of a guest, the hub's id of its hypervisor, or None if that is unknown.
        retired_at: when an operator retired the machine, or its last report if it was retired without one: Kubernetes
            deleted its node, or it was short-lived in a full cluster. A later report revives it.
        gpus: devices known on it.
        named_only: Kubernetes lists the machine, but nothing on it ever reported; `last_seen` is when it was listed.
        pci_gpus: NVIDIA controllers on its PCI buses, without virtual functions; None if it never reported its buses.
        kubernetes: GPU resources that Kubernetes declares for it, by reporter; empty if there is none.
        age_seconds: since it was last seen, by the hub's clock.
        liveness: state by the time in which the hub was ingesting; see `docs/freshness.md`.
        probe: readings of its performance probe by catalogue name, empty if it sent none; None in lists without them.
    """

    id: str
    cluster: str
    machine: Machine
    sender: str
    first_seen: dt.datetime
    last_seen: dt.datetime
    conflict: str | None = None
    hypervisor_id: str | None = None
    retired_at: dt.datetime | None = None
    gpus: int = 0
    named_only: bool = False
    pci_gpus: int | None = None
    kubernetes: tuple[DeclaredResource, ...] = ()
    age_seconds: float = 0.0
    liveness: Liveness | None = None
    probe: dict[str, Reading] | None = None

    @property
    def is_retired(self) -> bool:
        """Return whether it is retired and no report came since."""
        return self.retired_at is not None and self.retired_at >= self.last_seen


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of `GET /v1/gpus/{id}`.

    Attributes:
        cluster: cluster of the GPU.
        node: name of the machine that observed it.
        index: last index reported by the driver; not an identity.
        numa_node: NUMA node of its PCI slot, by the newest report of the buses of its machine; None if it is not known.
        device: the view and its readings.
        measured_at, received_at: of its newest sample.
        age_seconds: since receipt.
        liveness: state by the time in which the hub was ingesting.
        holders: present holders, none of them unless the machine is live or late. `free` only if its agent reports
            that it is free. None for a GPU that is held only in parts, as MIG devices or vGPUs.
        history: earlier slots of the GPU, and earlier GPUs of its slot; only in answers about a single GPU.
    """

    cluster: str
    node: str
    index: int | None = None
    numa_node: int | None = None
    device: AnswerDevice
    measured_at: dt.datetime
    received_at: dt.datetime
    age_seconds: float
    liveness: Liveness | None = None
    holders: DeviceHolders | None = None
    history: GpuHistory | None = None


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Row of `GET /v1/nodes`.

    Attributes:
        machine: the node.
        stale: nothing was received of it for longer than the hub's freshness limit.
        gpus: views of kind gpu known on it.
        gpus_reporting: views of kind gpu with at least one current number.
        last_error: the newest error of its readers, verbatim, or None.
        unresolved_devices: holder source to the number of its device names that identify no device of the node; None
            if the source fails. Empty if the node does not report them.
        unresolved_names: holder source to the first of these names.
        kubernetes_node: its Kubernetes node by identity, or None if there is none, or the cluster has no collector.
        kubernetes_candidates: names of the Kubernetes nodes if several can be this machine.
    """

    machine: MachineRecord
    stale: bool
    gpus: int
    gpus_reporting: int
    last_error: str | None
    unresolved_devices: dict[str, int | None] = {}
    unresolved_names: dict[str, tuple[str, ...]] = {}
    kubernetes_node: KubernetesNodeRecord | None = None
    kubernetes_candidates: tuple[str, ...] = ()


class NodeGpus(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of `GET /v1/nodes/gpus`: the GPUs of a node as one row.

    Attributes:
        machine: the hub's id of the node.
        liveness: of the node.
        models: GPU name to number of GPUs; GPUs without a name count as `unknown`.
        utilization_ratio: mean of the GPUs that report it, or None if none does.
        utilization_gpus: number of these; `models` counts all GPUs.
        power_watts: sum of the GPUs that report it, or None if none does.
        power_gpus: number of these.
        holders: present holders of its GPUs, MIG devices and vGPU instances, each once; none unless the node is live or
            late.
        holder_states: number of its devices by holder state, as in `GpuRecord.holders`.
    """

    machine: str
    liveness: Liveness | None
    models: dict[str, int]
    utilization_ratio: float | None
    utilization_gpus: int
    power_watts: float | None
    power_gpus: int
    holders: tuple[NodeHolder, ...]
    holder_states: dict[HolderState, int] = {}


class NodeGpusPage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/nodes/gpus`; order and pages are those of `NodePage`."""

    items: tuple[NodeGpus, ...]
    next: str | None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Number of reporting and expected GPUs of a cluster.

    Attributes:
        cluster: id of the cluster.
        reporting: views of kind gpu with a number received within the hub's freshness limit, except lost ones. Views
            known only by their list position count only if no identified view of their machine reports, since they may
            be the same GPUs.
        expected: expected GPUs, by `expected_by`; None if unknown.
        expected_by: `registration` if it declares a number, else the source with the largest number.
        sources: the expected number of each source.
        summary: "8 of 512 expected by registration".
        kubernetes: Kubernetes declarations by reporter, with their times.
        kubernetes_shares: declared resources that may not be whole GPUs: shares, where GPUs are shared.
    """

    cluster: str
    reporting: int
    expected: int | None
    expected_by: str | None
    sources: ExpectedGpus
    summary: str
    kubernetes: tuple[DeclaredGpus, ...] = ()
    kubernetes_shares: int = 0


class NodePage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/nodes`.

    Attributes:
        items: by cluster and name.
        coverage: of each queried cluster, the same on every page.
        next: `cursor` of the next page; None on the last.
    """

    items: tuple[NodeRecord, ...]
    coverage: tuple[Coverage, ...]
    next: str | None


class MachinePage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/machines`; as `NodePage`."""

    items: tuple[MachineRecord, ...]
    coverage: tuple[Coverage, ...]
    next: str | None


class GpuPage(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/gpus`; as `NodePage`, by cluster, machine and address."""

    items: tuple[GpuRecord, ...]
    coverage: tuple[Coverage, ...]
    next: str | None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of every error response.

    Attributes:
        error: short class of the error, for programs.
        detail: what is wrong, where and what to do, for people.
        field: the request field that is wrong.
        candidates: ids that match an ambiguous name, or names similar to an unknown one.
    """

    error: str
    detail: str
    field: str = ""
    candidates: tuple[str, ...] = ()


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Event in a hub's answer.

    Attributes:
        cluster, machine: where it happened, by the hub's ids.
        node: name of the machine. A tenant sees the name or id in the target of its allocation; empty for a machine
            that the target meant earlier. Of a pod, job or virtual machine it is the name at that time, or the id of
            the machine if that name is not known.
        device: key of the view, or None for the machine itself.
        at: when it happened, by the machine's clock.
        received_at: when the hub received it.
        kind, code, attributes: as in `model.event`.
    """

    cluster: str
    machine: str
    node: str
    device: str | None
    at: dt.datetime
    received_at: dt.datetime
    kind: str
    code: int
    attributes: dict[str, str]


class EventsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Page of events, newest first; `next` is the cursor of the next page, or None on the last."""

    events: tuple[EventRecord, ...]
    next: str | None = None


class ProcessTable(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that used a device at an instant.

    Attributes:
        device: key of the view.
        reader, source: reader and source of the list.
        measured_at: when it was read, by the machine's clock.
        received_at: when the hub received it.
        age_seconds: since receipt, by the hub's clock.
        stale: nothing newer came within the hub's freshness limit: the current processes are unknown.
        total: number of processes; more than `processes` has if the agent cut the list.
        processes: sorted by memory, largest first.
    """

    device: str
    reader: str
    source: Provenance
    measured_at: dt.datetime
    received_at: dt.datetime
    age_seconds: float
    stale: bool
    total: int
    processes: tuple[ProcessReport, ...]


class ProcessesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/machines/{id}/processes`.

    Attributes:
        machine: the hub's id of the machine.
        node: its name.
        devices: the newest table of each device. A device is missing if its driver lists no processes, or if nothing
            reported it lately.
    """

    machine: str
    node: str
    devices: tuple[ProcessTable, ...]
