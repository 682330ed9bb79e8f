"""What a hub answers: the allocation contract and the lists around it."""

import datetime as dt

import msgspec

from gpufleet.model.absence import Reason
from gpufleet.model.allocation import Allocation
from gpufleet.model.api.inventory import GpuHistory
from gpufleet.model.declared import DeclaredGpus, DeclaredResource
from gpufleet.model.liveness import Expected, Liveness
from gpufleet.model.machine import Machine
from gpufleet.model.reading import DimReading, Provenance, Reading, Value
from gpufleet.model.snapshot import Aggregate, ProcessReport
from gpufleet.model.stored.retention import Resolution
from gpufleet.model.view import Side, ViewKind


class InGuest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a host gave a GPU away (bound to vfio): a virtual machine that has it shows the same GPU under its UUID.

    Attributes:
        known: whether it is known which virtual machine has it: the host read that UUID before it gave the GPU away.
        views: ids of the GPU inside virtual machines, usable at `/v1/gpus/{id}`; none for a tenant.
        detail: the same in words.
    """

    known: bool
    views: tuple[str, ...] = ()
    detail: str


class AnswerDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device in an answer.

    Attributes:
        id: the hub's id of the view: `cluster/machine/view key`, usable at `/v1/gpus/{id}`.
        machine: the hub's id of the machine that observed it.
        kind, side, uuid, pci_address, parent, name: as in a snapshot's device.
        source: who measured it.
        readings, dimensions: each with its own scope, times and age.
        in_guest: set where a virtual machine may have it: then one GPU is in its answer, too. In those of allocations.
    """

    id: str
    machine: str
    kind: ViewKind
    side: Side
    uuid: str | None
    pci_address: str | None = None
    parent: str | None = None
    name: str | None = None
    source: Provenance
    readings: dict[str, Reading]
    dimensions: tuple[DimReading, ...] = ()
    in_guest: InGuest | None = None


class AllocationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/allocations/{id}/metrics`. Every field is always there.

    Attributes:
        allocation: what was asked about.
        source: who measured; `unavailable` when nobody may answer.
        reason: why there is no answer, or None.
        detail: adds to `reason`.
        measured_at: when the newest reading was measured, or None.
        received_at: when the hub received it, or None.
        age_seconds: since receipt, by the hub's clock, or None.
        last_error: the newest error of the readers behind the answer, in their own words, or None.
        aggregate: totals over the allocation's GPUs, saying "n of m devices".
        machine: the hub's id of the machine that answers, or None.
        devices, host: the readings.
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


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a series; `value` is None where nothing was measured in the step."""

    at: dt.datetime
    value: Value | None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one device (or of the machine: `device` is None) over time."""

    device: str | None
    metric: str
    unit: str
    points: tuple[SeriesPoint, ...]


class SeriesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/allocations/{id}/series`; source, reason and detail as in the metrics answer.

    `resolution` is that of the coarsest which it was made of; None where there is nothing in it.
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


class MachineRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A machine as the hub knows it.

    Attributes:
        id: given by the hub; never reused.
        cluster: the cluster it is in.
        machine: the newest evidence.
        sender: who reports it.
        first_seen, last_seen: by the hub's clock on receipt.
        conflict: set when the evidence contradicts another machine's, with the words for it.
        retired_at: when an operator said that it is gone; what is heard of it later brings it back.
        gpus: devices known on it.
        named_only: nobody ever heard of it, but Kubernetes names it: it was "seen" when that was said.
        pci_gpus: NVIDIA's controllers on its buses, without virtual functions; None where it never told of them.
        kubernetes: what Kubernetes says that it has, by each who tells; nothing where nobody does.
        age_seconds: since it was last heard of, by the hub's clock.
        liveness: how recently it was heard of, by the time in which the hub could hear; see `docs/freshness.md`.
    """

    id: str
    cluster: str
    machine: Machine
    sender: str
    first_seen: dt.datetime
    last_seen: dt.datetime
    conflict: str | None = None
    retired_at: dt.datetime | None = None
    gpus: int = 0
    named_only: bool = False
    pci_gpus: int | None = None
    kubernetes: tuple[DeclaredResource, ...] = ()
    age_seconds: float = 0.0
    liveness: Liveness | None = None

    @property
    def is_retired(self) -> bool:
        """Whether it is gone: not if it was heard of since an operator said so."""
        return self.retired_at is not None and self.retired_at >= self.last_seen


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of `GET /v1/gpus/{id}`.

    Attributes:
        cluster: which.
        node: name of the machine that observed it.
        index: the driver's position number when last told; it names nothing.
        device: the view and its readings.
        measured_at, received_at: of its newest sample.
        age_seconds: since receipt.
        liveness: how recently it was told of, by the time in which the hub could hear.
        history: where it was before, and what was where it is; only where one GPU is asked for.
    """

    cluster: str
    node: str
    index: int | None = None
    device: AnswerDevice
    measured_at: dt.datetime
    received_at: dt.datetime
    age_seconds: float
    liveness: Liveness | None = None
    history: GpuHistory | None = None


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `GET /v1/nodes`.

    Attributes:
        machine: the node.
        stale: nothing was received of it for longer than the hub's freshness limit.
        gpus: views of kind gpu known on it.
        gpus_reporting: those of them that gave at least one current number.
        last_error: the newest error of its readers, in their own words, or None.
    """

    machine: MachineRecord
    stale: bool
    gpus: int
    gpus_reporting: int
    last_error: str | None


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How many GPUs of a cluster report, of those that there should be.

    Attributes:
        cluster: which.
        reporting: views of kind gpu of which a number came within the hub's freshness limit; of a machine's, those
            known by their place in a list only if none with a name told one, since they may be the same.
        expected: how many there should be, by `expected_by`; None where nobody can say.
        expected_by: `registration` where that says, or else whoever tells of most.
        sources: the same by everyone who can tell, side by side.
        words: "8 of 512 expected by registration".
        kubernetes: who told what Kubernetes says, and when.
        kubernetes_shares: what of that can be no GPUs of their own: shares, where GPUs are shared out.
    """

    cluster: str
    reporting: int
    expected: int | None
    expected_by: str | None
    sources: Expected
    words: str
    kubernetes: tuple[DeclaredGpus, ...] = ()
    kubernetes_shares: int = 0


class NodePage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/nodes`.

    Attributes:
        items: by cluster and name.
        coverage: of each cluster that was asked about, whatever page this is.
        next: the `cursor` of the page after this one; None on the last.
    """

    items: tuple[NodeRecord, ...]
    coverage: tuple[Coverage, ...]
    next: str | None


class MachinePage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/machines`; as `NodePage`."""

    items: tuple[MachineRecord, ...]
    coverage: tuple[Coverage, ...]
    next: str | None


class GpuPage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/gpus`; as `NodePage`, by cluster, machine and address."""

    items: tuple[GpuRecord, ...]
    coverage: tuple[Coverage, ...]
    next: str | None


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of sequence numbers of a sender.

    Attributes:
        epoch: which.
        received: batches held.
        highest: highest sequence number held.
        missing: numbers from 1 to `highest` that are not held.
        gaps: ranges of missing numbers, lowest first, at most 20 of them.
    """

    epoch: str
    received: int
    highest: int
    missing: int
    gaps: tuple[tuple[int, int], ...]


class EpochConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Two machines count under one epoch of a sender: a copied disk image, or one set back to a snapshot.

    Attributes:
        epoch: which.
        batches: turned away for it; a sender takes a new epoch then, and posts them again.
        first_at, last_at: when the first and the last of them came, by the hub's clock.
        detail: what showed it, of the last one.
    """

    epoch: str
    batches: int
    first_at: dt.datetime
    last_at: dt.datetime
    detail: str


class SenderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `GET /v1/senders`.

    Attributes:
        cluster, sender: which.
        sent_at: when its newest batch was made, by its clock.
        received_at: when that was received, by the hub's clock.
        age_seconds: since then.
        heartbeat_interval_seconds: how often it promised to speak, or None when it never did.
        liveness: how recently it was heard of, by the time in which the hub could hear.
        clock_ahead_seconds: how far its clock is ahead of the hub's, less the shortest time on the way; negative where
            it is behind.
        complete_up_to: up to when everything that it measured is here, but for `missing`, by its clock; None where it
            is lost or never said what waits.
        version: of gpufleet, as it says.
        queue_records: what waits in its spool, as it says, less what has come of it since.
        oldest_unsent: when the oldest of it was measured, as it says; None when nothing waits.
        dropped_total: what it dropped since its epoch began, as it says.
        missing: batches lost or still on the way, over all epochs.
        epochs: each run of sequence numbers.
        conflict: the newest since the hub started, or None.
    """

    cluster: str
    sender: str
    sent_at: dt.datetime
    received_at: dt.datetime
    age_seconds: float
    heartbeat_interval_seconds: float | None
    liveness: Liveness
    clock_ahead_seconds: float
    complete_up_to: dt.datetime | None
    version: str
    queue_records: int | None
    oldest_unsent: dt.datetime | None
    dropped_total: int | None
    missing: int
    epochs: tuple[EpochRecord, ...]
    conflict: EpochConflict | None = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one shape of every error.

    Attributes:
        error: short class of the error, for programs.
        detail: what, where and what to do, for people.
        field: what in the request it is about.
        candidates: ids that were meant by an ambiguous one.
    """

    error: str
    detail: str
    field: str = ""
    candidates: tuple[str, ...] = ()


class EventRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An event in a hub's answer.

    Attributes:
        cluster, machine: where it happened, by the hub's ids.
        node: name of the machine.
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
    """A page of events, the newest first; `next` is the cursor of the page after it, or None on the last one."""

    events: tuple[EventRecord, ...]
    next: str | None = None


class ProcessTable(msgspec.Struct, frozen=True, kw_only=True):
    """Who used one device at an instant.

    Attributes:
        device: key of the view.
        reader, source: who read it.
        measured_at: when it was read, by the machine's clock.
        received_at: when the hub received it.
        age_seconds: since receipt, by the hub's clock.
        stale: nothing newer came for longer than the hub's freshness limit: who is there now is not known.
        total: processes that there were; more than `processes` has where the agent cut the list.
        processes: those that held the most memory first.
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
    """The answer of `GET /v1/machines/{id}/processes`.

    Attributes:
        machine: the hub's id of it.
        node: its name.
        devices: the newest table of each device of which there is one; a device without one is not there: the driver
            lists no processes of it, or nobody told of it lately.
    """

    machine: str
    node: str
    devices: tuple[ProcessTable, ...]
