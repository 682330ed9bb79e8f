"""Store in memory that implements `ports.Store` and can be made to fail."""

import itertools
import threading
import zlib
from collections.abc import Callable, Collection, Sequence

from gpufleet.codecs.batch import to_rows
from gpufleet.fleet.attribution.reported import may_overlap
from gpufleet.fleet.cluster_objects import listed_objects, newest_objects, select_objects
from gpufleet.fleet.readings import StateReport, deciding_state
from gpufleet.model.absence import Absent, Reason
from gpufleet.model.aggregate import AGGREGATED
from gpufleet.model.api.inventory import (
    RETURN_GAP_NS,
    ChangeKind,
    ChangeQuery,
    GpuPool,
    SlotRow,
    StoredChange,
    StoredSlot,
)
from gpufleet.model.api.sql import QueryResult, SqlViewRecord
from gpufleet.model.api.usage import DeviceInterval, DeviceUsage
from gpufleet.model.catalogue import KUBERNETES_REPORTED, Lane
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.errors import SqlError, StoreError
from gpufleet.model.holdings import HET_JOB, Holder, HolderKind, Owner
from gpufleet.model.reading import Provenance, Sample, Value
from gpufleet.model.status import LANE_SECONDS, ReaderStatus
from gpufleet.model.stored.findings import NumberedTransition, TransitionKind
from gpufleet.model.stored.holdings import (
    HoldingPlace,
    HoldingQuery,
    StoredHolderStates,
    StoredHolding,
    StoredJob,
    holding_place,
)
from gpufleet.model.stored.kubernetes import ObjectQuery, ObjectReport, StoredCollector, StoredObject
from gpufleet.model.stored.readings import (
    EventCount,
    NewestColumns,
    ReadingChangeQuery,
    StoredReadingChange,
    StoredText,
    ViewColumns,
)
from gpufleet.model.stored.retention import Resolution, Retention
from gpufleet.model.stored.samples import (
    AcceptedBatch,
    EventQuery,
    EventSpan,
    HourRollup,
    KnownGpus,
    ProcessQuery,
    SampleSummary,
    StoredEvent,
    StoredProcesses,
    StoredSample,
    StoredSeries,
)
from gpufleet.model.view import Side, ViewKind
from gpufleet.model.wire.batch import MachineReport
from tests.fakes import declared, facts
from tests.fakes.xids import AllocatedXids


class MemoryStore:
    """Store in memory.

    Attributes:
        writes: every write, as (token, batches added).
        tokens, is_retry: arguments of every write, including failed ones.
        refuse: called with each batch of a write; an exception fails the write.
        down: every call fails.
        fails_after_write: a write is stored completely and then fails.
        transitions: the written transitions of findings, by id, kind and time.
    """

    def __init__(self) -> None:
        self.writes: list[tuple[str, tuple[AcceptedBatch, ...]]] = []
        self.tokens: list[str] = []
        self.is_retry: list[bool] = []
        self.refuse: Callable[[AcceptedBatch], None] = lambda _: None
        self.down = False
        self.fails_after_write = False
        self.transitions: dict[tuple[str, TransitionKind, int], NumberedTransition] = {}
        self.requests_aborted = False
        self.closed = False
        self._lock = threading.Lock()
        self._reports: list[tuple[AcceptedBatch, str, MachineReport]] = []
        self._by_machine: dict[tuple[str, str], list[tuple[AcceptedBatch, MachineReport]]] = {}
        self._newest: dict[tuple[str, str], tuple[int, tuple[StoredSample, ...]]] = {}

    def migrate(self, retention: Retention | None = None, hub: str = "") -> None: ...

    def load(self) -> None: ...

    def load_counts(self) -> None: ...

    def schema_version(self) -> int:
        return 1  # a new instance stands for a store that kept its tables

    def check(self) -> None:
        if self.down:
            raise StoreError("the store is down")

    def is_empty(self) -> bool:
        return not self.writes

    def device_usage(self, intervals: Sequence[DeviceInterval]) -> list[DeviceUsage]:
        return [DeviceUsage() for _ in intervals]

    def roll_up(self, now: int, stopped: Callable[[], bool] = lambda: False) -> HourRollup | None:
        return None

    def write(self, accepted: Sequence[AcceptedBatch], token: str, *, is_retry: bool = False) -> None:
        with self._lock:
            self.tokens.append(token)
            self.is_retry.append(is_retry)
            if self.down:
                raise StoreError("the store is down")
            for one in accepted:
                self.refuse(one)
            there = {_name(one) for _, batches in self.writes for one in batches} if is_retry else set()
            if is_retry or token not in {known for known, _ in self.writes}:
                new = tuple(one for one in accepted if _name(one) not in there)
                self._note_reports(new)
                self.writes.append((token, new))  # now: a test waits for it, and then queries
            if self.fails_after_write:
                raise StoreError("the disk is full")

    def _note_reports(self, batches: Sequence[AcceptedBatch]) -> None:
        for one in batches:
            for id_, report in zip(one.machine_ids, to_rows(one.batch).reports, strict=True):
                self._reports.append((one, id_, report))
                self._by_machine.setdefault((one.batch.cluster, id_), []).append((one, report))

    @property
    def seqs(self) -> list[int]:
        """Sequence numbers of the stored batches, in order of insertion."""
        return [one.batch.seq for _, batches in self.writes for one in batches]

    def processes(self, query: ProcessQuery) -> tuple[StoredProcesses, ...]:
        """Return the newest list of each view and reader."""
        if self.down:
            raise StoreError("the store is down")
        found: dict[tuple[str, str], StoredProcesses] = {}
        for one, id_, report in self._reports:
            for sample in report.samples:
                if (one.batch.cluster, id_) != (query.cluster, query.machine):
                    continue
                if sample.view is None or sample.processes is None or query.view not in (None, sample.view.key):
                    continue
                place = (sample.view.key, sample.reader)
                newest = found[place].measured_at if place in found else 0
                if query.start <= sample.measured_at < query.end and sample.measured_at >= newest:
                    found[place] = StoredProcesses(
                        view=place[0], reader=place[1], provenance=sample.provenance,
                        measured_at=sample.measured_at, received_at=one.received_at,
                        total=len(sample.processes), processes=sample.processes,
                    )  # fmt: skip
        return tuple(found[place] for place in sorted(found))

    def slots(
        self, cluster: str, machines: Sequence[str], *, view: str | None = None, address: str | None = None
    ) -> tuple[StoredSlot, ...]:
        changes = [one for one in self._slot_changes() if one[:1] == (cluster,) and one[1] in machines]
        seen = {
            (machine, one.sample.view.key): one.received_at
            for machine in machines
            for one in self._samples(cluster, machine)
            if one.sample.view is not None
        }
        found: dict[tuple[str, str, str], list[SlotRow]] = {}
        for _, machine, key, at_slot, row in changes:
            if view in (None, key) and address in (None, at_slot):
                found.setdefault((machine, key, at_slot), []).append(row)
        return tuple(
            StoredSlot(cluster=cluster, machine=machine, view=key, address=at_slot, first=min(times),
                       newest=max(times), last_seen=seen[machine, key], begun=times, rows=tuple(sorted(rows)))
            for (machine, key, at_slot), rows in sorted(found.items())
            for times in [tuple(sorted({row.since for row in rows}))]
        )  # fmt: skip

    def changes(self, query: ChangeQuery) -> tuple[StoredChange, ...]:
        found: list[StoredChange] = []
        places: dict[str, tuple[str, ...]] = {}
        tenants: dict[tuple[str, ...], str] = {}
        for cluster, machine, key, address, row in sorted(self._slot_changes(), key=lambda one: (one[4].since, one)):
            at = row.since
            place = (cluster, machine, address)
            pairs: list[tuple[ChangeKind, tuple[str, ...] | None, tuple[str, ...]]] = [
                (ChangeKind.MOVED, places.get(key), place),
                (ChangeKind.REPLACED, (tenants[place],) if place in tenants else None, (key,)),
            ]
            for kind, before, now in pairs:
                if before not in (None, now):
                    assert before is not None
                    number = zlib.crc32(repr((kind, at, place, key, before)).encode())
                    found.append(StoredChange(id=number, at=at, kind=kind, cluster=cluster, machine=machine,
                                              address=address, view=key, before=before))  # fmt: skip
            places[key], tenants[place] = place, key
        wanted = [
            one
            for one in found
            if query.start <= one.at < query.end
            and query.cluster in (None, one.cluster)
            and (query.machines is None or one.machine in query.machines)
            and query.kind in (None, one.kind)
            and (query.before is None or (one.at, one.id) < query.before)
        ]
        return tuple(sorted(wanted, key=lambda one: (-one.at, -one.id))[: query.limit])

    def reading_changes(self, query: ReadingChangeQuery) -> tuple[StoredReadingChange, ...]:
        by_time = {
            one.sample.measured_at: {
                name: value for name, value in one.sample.values.items() if isinstance(value, int | str)
            }
            for one in self._samples(query.cluster, query.machine)
            if one.sample.view is None and one.sample.reader == query.reader
        }
        times = sorted(by_time)
        found = [
            StoredReadingChange(at=at, metric=name, before=by_time[earlier].get(name), value=by_time[at].get(name))
            for earlier, at in itertools.pairwise(times)
            for name in by_time[earlier].keys() | by_time[at].keys()
            if by_time[earlier].get(name) != by_time[at].get(name) and query.start <= at < query.end
        ]
        ordered = sorted(found, key=lambda one: (one.at, one.metric), reverse=True)
        wanted = [one for one in ordered if query.before is None or (one.at, one.metric) < query.before]
        return tuple(wanted[: query.limit])

    def pools(self, cluster: str | None = None) -> tuple[GpuPool, ...]:
        return ()

    def _slot_changes(self) -> list[tuple[str, str, str, str, SlotRow]]:
        """Return cluster, machine, view and slot of every change of a GPU's slot, and of its returns, by reader."""
        changes: list[tuple[str, str, str, str, SlotRow]] = []
        newest: dict[tuple[str, str, str, str], tuple[str, int]] = {}
        for cluster, machine in sorted(self._by_machine):
            for one in self._samples(cluster, machine):
                address = one.sample.values.get("gpu_pci_address")
                if one.sample.view is None or one.sample.view.kind is not ViewKind.GPU or not isinstance(address, str):
                    continue
                place, reader, at = (cluster, machine, one.sample.view.key), one.sample.reader, one.sample.measured_at
                before, seen = newest.get((*place, reader), ("", 0))
                if before != address or at - seen > RETURN_GAP_NS:
                    changes.append((*place, address, SlotRow(reader, at, seen if seen < at else 0)))
                newest[*place, reader] = address, max(at, seen)
        return changes

    def events(self, query: EventQuery) -> tuple[StoredEvent, ...]:
        """Return events as the store would; the `id` of an event is a hash of its contents."""
        if self.down:
            raise StoreError("the store is down")
        found: dict[tuple[object, ...], StoredEvent] = {}
        for one, id_, report in self._reports:
            for event in report.events:
                view = event.view.key if event.view else None
                cells = (one.batch.cluster, id_, view, event.at, event.kind, event.code)
                key = (*cells, *sorted(event.attributes.items()))
                found.setdefault(
                    key,
                    StoredEvent(
                        id=zlib.crc32(repr(key).encode()), cluster=one.batch.cluster, machine=id_, view=view,
                        at=event.at, kind=event.kind, code=event.code, attributes=event.attributes,
                        received_at=one.received_at,
                    ),
                )  # fmt: skip
        wanted = [
            event
            for event in found.values()
            if any(_in(event, span) for span in query.spans)
            and (query.view is None or (event.view or "") == query.view)
            and (not query.kinds or event.kind in query.kinds)
            and (not query.codes or event.code in query.codes)
            and (query.before is None or (event.at, event.id) < query.before)
        ]
        return tuple(sorted(wanted, key=lambda event: (-event.at, -event.id))[: query.limit])

    def newest_columns(self, cluster: str, metrics: Collection[str]) -> NewestColumns:
        self.check()
        machines = sorted(id_ for of_cluster, id_ in self._by_machine if of_cluster == cluster)
        return facts.newest_columns(self.latest_of(cluster, machines), self.readers_of(cluster, machines), metrics)

    def duplicate_views(self, since: int) -> ViewColumns:
        self.check()
        return facts.duplicate_views(
            (
                (one.batch.cluster, id_, sample.view, one.reported_at, one.received_at)
                for one, id_, report in self._reports
                for sample in report.samples
                if sample.view is not None
            ),
            since,
        )

    def event_counts(self, cluster: str, kinds: Collection[str], since: int) -> tuple[EventCount, ...]:
        spans = (EventSpan(cluster=cluster, start=since, end=2**63 - 1),)
        return facts.event_counts(
            self.events(EventQuery(spans=spans, kinds=tuple(kinds), limit=2**31)) if kinds else ()
        )

    def write_findings(self, transitions: Sequence[NumberedTransition]) -> None:
        self.check()
        for one in transitions:
            change = one.transition
            self.transitions[change.finding.id, change.kind, change.at] = one

    def _samples(self, cluster: str, machine: str) -> list[StoredSample]:
        """Return every sample, in the order of reports."""
        found = [
            (one.reported_at, sample.measured_at, StoredSample(sample=sample, received_at=one.received_at))
            for one, report in self._by_machine.get((cluster, machine), ())
            for sample in report.samples
            if not (sample.dims and all(dim.metric in KUBERNETES_REPORTED for dim in sample.dims))
        ]
        return [stored for _, _, stored in sorted(found, key=lambda one: one[:2])]

    def latest(self, cluster: str, machine: str, view: str | None = None) -> tuple[StoredSample, ...]:
        reports = len(self._by_machine.get((cluster, machine), ()))
        known, samples = self._newest.get((cluster, machine), (0, ()))
        if known != reports:
            newest = {_key(stored.sample): stored for stored in self._samples(cluster, machine)}
            samples = tuple(newest.values())
            self._newest[cluster, machine] = reports, samples
        return tuple(one for one in samples if view is None or _key(one.sample)[0] == view)

    def reporters_of_view(self, cluster: str, view: str) -> tuple[str, ...]:
        return tuple(
            machine
            for machine in self._machines()
            if any(_key(one.sample)[0] == view for one in self._samples(cluster, machine))
        )

    def shared_gpus(self, cluster: str) -> dict[str, tuple[str, ...]]:
        machines: dict[str, set[str]] = {}
        for of, machine in self._by_machine:
            views = {one.sample.view for one in self._samples(cluster, machine)} if of == cluster else set()
            for view in views:
                if view and view.uuid and view.kind is ViewKind.GPU and view.side is Side.HOST:
                    machines.setdefault(view.key, set()).add(machine)
        return {key: tuple(sorted(found)) for key, found in sorted(machines.items()) if len(found) > 1}

    def views_with_prefix(self, cluster: str, prefixes: Sequence[str], limit: int) -> tuple[tuple[str, str], ...]:
        keys = {
            (_key(one.sample)[0] or "", machine)
            for machine in self._machines()
            for one in self._samples(cluster, machine)
        }
        return tuple(sorted(one for one in keys if one[0].startswith(tuple(prefixes))))[:limit]

    def reporters_of_text(self, cluster: str, metric: str, text: str) -> tuple[str, ...]:
        return tuple(
            machine
            for machine in self._machines()
            if any(one.sample.values.get(metric) == text for one in self.latest(cluster, machine))
        )

    def texts_of_views(self, cluster: str, metric: str, text: str) -> tuple[StoredText, ...]:
        every = [
            StoredText(
                machine=machine,
                view=one.sample.view.key,
                reader=one.sample.reader,
                at=one.sample.measured_at,
                text=value,
            )
            for machine in self._machines()
            for one in self._samples(cluster, machine)
            if one.sample.view is not None and isinstance(value := one.sample.values.get(metric), str)
        ]
        places = {(one.machine, one.view) for one in every if one.text == text}
        return tuple(sorted((one for one in every if (one.machine, one.view) in places), key=lambda one: one.at))

    def texts_of_machines(self, cluster: str, machines: Sequence[str], metric: str) -> tuple[StoredText, ...]:
        found = [
            StoredText(
                machine=machine,
                view="" if one.sample.view is None else one.sample.view.key,
                reader=one.sample.reader,
                at=one.sample.measured_at,
                text=value,
            )
            for machine in machines
            for one in self._samples(cluster, machine)
            if isinstance(value := one.sample.values.get(metric), str)
        ]
        return tuple(sorted(found, key=lambda one: one.at))

    def _machines(self) -> list[str]:
        return sorted({id_ for _, id_ in self._by_machine})

    def latest_of(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[StoredSample, ...]]:
        return {machine: self.latest(cluster, machine) for machine in machines}

    def sample_summaries(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[SampleSummary, ...]]:
        return {
            machine: tuple(
                SampleSummary(stored=one, has_totals=_has_values(one.sample), is_lost=_is_lost(one.sample))
                for one in self.latest(cluster, machine)
            )
            for machine in machines
        }

    def readers_of(self, cluster: str, machines: Sequence[str]) -> dict[str, tuple[ReaderStatus, ...]]:
        return {machine: self.readers(cluster, machine) for machine in machines}

    def holdings(self, query: HoldingQuery) -> tuple[StoredHolding, ...]:
        newest: dict[HoldingPlace, StoredHolding] = {}
        for one, id_, report in self._reports:
            for holding in report.holdings:
                stored = StoredHolding(
                    cluster=one.batch.cluster, machine=id_, holding=holding, reported_at=one.reported_at
                )
                before = newest.get(holding_place(stored))
                if before is None or before.reported_at <= stored.reported_at:
                    newest[holding_place(stored)] = stored
        of_pods = self._texts_of_pods()
        found = [newest[place] for place in sorted(newest) if _matches(newest[place], query, of_pods)]
        return tuple(found[: query.limit])

    def slurm_jobs(self, query: HoldingQuery) -> tuple[StoredJob, ...]:
        found: dict[tuple[Holder, int], int] = {}
        for one, _, report in self._reports:
            for holding in report.holdings if one.batch.cluster == query.cluster else ():
                holder = holding.holder
                names = {holder.array_job, *(owner.name for owner in holder.owners if owner.kind == HET_JOB)}
                is_named = holder.id in query.ids or not names.isdisjoint(query.groups)
                if holder.kind is HolderKind.JOB and holder.slurm_cluster and is_named:
                    owners = tuple(Owner(kind=owner.kind, name=owner.name) for owner in holder.owners)
                    ids = {name: getattr(holder, name) for name in ("id", "array_job", "array_task", "slurm_cluster")}
                    job = Holder(kind=HolderKind.JOB, owners=owners, **ids)
                    run = (job, holding.since)
                    found[run] = max(holding.until or one.reported_at, found.get(run, 0))
        runs = [StoredJob(holder=job, first=first, last=last) for (job, first), last in found.items()]
        return tuple(sorted(runs, key=lambda one: (one.holder.id, one.holder.slurm_cluster, one.first)))

    def _texts_of_pods(self) -> set[tuple[str, str, str, str]]:
        """Return (cluster, UID or `namespace/name`, field, text) of every report of a pod by a collector."""
        return {
            (one.batch.cluster, identity, field, getattr(pod, field))
            for _, batches in self.writes
            for one in batches
            if one.batch.cluster_part is not None
            for pod in one.batch.cluster_part.pods
            for identity in (pod.uid, f"{pod.namespace}/{pod.name}")
            for field in ("namespace", "name", "queue")
        }

    def holder_states(
        self, cluster: str, machines: Sequence[str], since: int
    ) -> dict[str, tuple[StoredHolderStates, ...]]:
        of_epochs: dict[tuple[str, str, str], StoredHolderStates] = {}
        for id_ in machines:
            for one, report in self._by_machine.get((cluster, id_), ()):
                if report.device_holders is None or one.reported_at < since:
                    continue
                found = StoredHolderStates(
                    sender=one.batch.sender,
                    reported_at=one.reported_at,
                    sent_at=one.batch.sent_at,
                    devices=report.device_holders,
                    unresolved=report.unresolved,
                )
                place = (id_, found.sender, one.batch.epoch)
                of_epochs[place] = max(of_epochs.get(place, found), found, key=lambda stored: stored.reported_at)
        newest: dict[tuple[str, str], StoredHolderStates] = {}
        for (id_, sender, _), found in of_epochs.items():
            before = newest.get((id_, sender), found)
            newest[id_, sender] = max(
                before, found, key=lambda stored: (min(stored.sent_at, stored.reported_at), stored.reported_at)
            )
        return {
            machine: tuple(newest[place] for place in sorted(newest) if place[0] == machine) for machine in machines
        }

    def cluster_objects(self, query: ObjectQuery) -> tuple[StoredObject, ...]:
        newest: dict[tuple[str, str, bool], ObjectReport] = {}
        for one in [batch for _, batches in self.writes for batch in batches]:
            part = one.batch.cluster_part
            if part is None or one.batch.cluster != query.cluster or one.reported_at < query.since:
                continue
            records = [(record.uid, record, None) for kind, record in listed_objects(part) if kind is query.kind]
            ends = [(gone.uid, None, gone.at) for gone in part.removed if gone.resource == query.kind]
            for uid, record, ended_at in (*records, *ends):
                report = ObjectReport(
                    sender=one.batch.sender,
                    uid=uid,
                    record=record,
                    observed_at=part.observed_at,
                    reported_at=one.reported_at,
                    ended_at=ended_at,
                )
                place = (report.uid, report.sender, record is None)
                newest[place] = max(newest.get(place, report), report, key=lambda stored: stored.reported_at)
        return select_objects(newest_objects(query.cluster, newest.values()), query)

    def collectors(self, clusters: Sequence[str]) -> dict[str, tuple[StoredCollector, ...]]:
        newest: dict[tuple[str, str], StoredCollector] = {}
        for one in [batch for _, batches in self.writes for batch in batches]:
            part = one.batch.cluster_part
            if part is not None and part.copies and one.batch.cluster in clusters:
                found = StoredCollector(
                    sender=one.batch.sender,
                    observed_at=part.observed_at,
                    reported_at=one.reported_at,
                    system_uid=part.system_uid,
                    server_version=part.server_version,
                    copies=tuple(part.copies),
                )
                place = (one.batch.cluster, found.sender)
                newest[place] = max(newest.get(place, found), found, key=lambda stored: stored.reported_at)
        return {
            cluster: tuple(
                sorted(
                    (one for (of, _), one in newest.items() if of == cluster),
                    key=lambda stored: (-stored.reported_at, stored.sender),
                )
            )
            for cluster in clusters
        }

    def reporting_gpus(self, since: int, until: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for cluster, machine in self._by_machine:
            current = [one for one in self.latest(cluster, machine) if since <= one.received_at <= until]
            samples = [one.sample for one in current]
            views = {one.view.key: one.view for one in samples if one.view is not None and _has_values(one)}
            lost = _lost_views(current)
            named = [view.named for key, view in views.items() if view.kind is ViewKind.GPU and key not in lost]
            if named:
                found[cluster] = found.get(cluster, 0) + (sum(named) or len(named))
        return found

    def known_gpus(self, without: Sequence[str] = ()) -> dict[str, KnownGpus]:
        found: dict[str, KnownGpus] = {}
        for cluster, machine in sorted(self._by_machine):
            if machine in without:
                continue
            received: dict[str, tuple[int, bool]] = {}
            for one in self.latest(cluster, machine):
                view = one.sample.view
                if view is not None and view.kind is ViewKind.GPU and one.sample.reader != "pci":
                    received[view.key] = max(received.get(view.key, (0, False)), (one.received_at, view.named))
            since = max((at for at, _ in received.values()), default=0) - 1200 * 10**9
            named = [is_named for at, is_named in received.values() if at >= since]
            pci = self._on_buses(cluster, machine)
            nvml = (sum(named) or len(named)) if received else self._driver_gpus(cluster, machine)
            if nvml is None and pci is None:
                continue
            before = found.get(cluster, KnownGpus(pci=None, nvml=None))
            found[cluster] = KnownGpus(
                pci=before.pci if pci is None else (before.pci or 0) + pci,
                nvml=before.nvml if nvml is None else (before.nvml or 0) + nvml,
            )
        return found

    def _driver_gpus(self, cluster: str, machine: str) -> int | None:
        """Return 0 if the driver of a machine without reported GPUs reports none, else None."""
        rows = [one for one in self.latest(cluster, machine) if "nvidia_driver_state" in one.sample.values]
        newest = max(rows, key=lambda one: one.received_at, default=None)
        values = {} if newest is None else newest.sample.values
        is_zero = values.get("nvidia_devices") == 0 or values.get("nvidia_driver_state") == "no_supported_gpu"
        return 0 if is_zero else None

    def declared_gpus(self, since: int, without: Sequence[str] = ()) -> dict[str, tuple[DeclaredGpus, ...]]:
        batches = [one for _, some in self.writes for one in some]
        buses = {place: count for place in self._by_machine if (count := self._on_buses(*place)) is not None}
        return declared.gpus(declared.newest_records(batches, since), buses, without)

    def declared_resources(
        self, cluster: str, machines: Sequence[str], since: int
    ) -> dict[str, tuple[DeclaredResource, ...]]:
        records = declared.newest_records([one for _, some in self.writes for one in some], since)
        return declared.resources(records, cluster, machines)

    def pci_gpu_counts(self, cluster: str, machines: Sequence[str]) -> dict[str, int]:
        return {one: count for one in machines if (count := self._on_buses(cluster, one)) is not None}

    def numa_nodes(self, cluster: str, machines: Sequence[str]) -> dict[str, dict[str, int]]:
        reported = [
            (one, report.inventory)
            for one in machines
            for _, report in self._by_machine.get((cluster, one), ())
            if report.inventory is not None
        ]
        return {
            one: {function.address: function.numa_node for function in functions if function.numa_node is not None}
            for one, functions in reported
        }

    def _on_buses(self, cluster: str, machine: str) -> int | None:
        found = None
        for _, report in self._by_machine.get((cluster, machine), ()):
            if report.inventory is not None:
                mine = [f for f in report.inventory if f.vendor == 0x10DE and f.physical_function is None]
                found = len(mine)
        return found

    def readers(self, cluster: str, machine: str) -> tuple[ReaderStatus, ...]:
        newest: dict[tuple[str, str], ReaderStatus] = {}
        reports = self._by_machine.get((cluster, machine), ())
        for _, report in sorted(reports, key=lambda one: one[0].reported_at):
            newest.update({(status.reader, status.lane): status for status in report.readers})
        return tuple(newest.values())

    def series(
        self,
        cluster: str,
        machine: str,
        metrics: Sequence[str],
        start: int,
        end: int,
        step: int,
        provenance: Provenance = Provenance.HOST_LOCAL_PROBE,
        views: Collection[str] | None = None,
        xids_since: int = 0,
    ) -> StoredSeries:
        points: dict[tuple[str | None, str], dict[int, Value]] = {}
        absences: dict[tuple[str | None, str], dict[int, Reason]] = {}
        zeros: set[tuple[tuple[str | None, str], int]] = set()
        xids = AllocatedXids(xids_since)
        for stored in self._samples(cluster, machine):
            view = stored.sample.view
            if stored.sample.provenance is not provenance or (
                views is not None and view is not None and view.key not in views
            ):
                continue
            at = stored.sample.measured_at
            values = xids.values(stored)
            for metric in metrics:
                value = values.get(metric)
                key, bucket = (_key(stored.sample)[0], metric), start + (at - start) // step * step
                if start <= at < end and isinstance(value, int | float | str):
                    points.setdefault(key, {})[bucket] = value
                elif start <= at < end and isinstance(value, Absent):
                    absences.setdefault(key, {})[bucket] = value.reason
                    if value.reason is Reason.AMBIGUOUS_ZERO:
                        zeros.add((key, bucket))
        for key, bucket in zeros:  # such a step has no mean, whatever its other readings are
            points.setdefault(key, {}).pop(bucket, None)
            absences[key][bucket] = Reason.AMBIGUOUS_ZERO
        return StoredSeries(
            points={key: sorted(found.items()) for key, found in points.items()},
            resolution=Resolution.RAW,
            absences={
                key: {at: reason for at, reason in absences[key].items() if at not in found}
                for key, found in points.items()
                if key in absences
            },
        )

    def select(self, statement: str) -> QueryResult:
        raise SqlError("the store in memory does not support SQL")

    def sql_views(self) -> tuple[SqlViewRecord, ...]:
        return ()

    def abort_requests(self) -> None:
        self.requests_aborted = True

    def close(self) -> None:
        self.closed = True


def _name(accepted: AcceptedBatch) -> tuple[str, str, str, int]:
    batch = accepted.batch
    return batch.cluster, batch.sender, batch.epoch, batch.seq


def _is_lost(sample: Sample) -> bool | None:
    state = sample.values.get("gpu_state")
    return state == "lost" if isinstance(state, str) else None


def _lost_views(current: Sequence[StoredSample]) -> set[str]:
    """Return the keys of views whose state is `lost`."""
    reports: dict[str, list[StateReport]] = {}
    for one in current:
        state = one.sample.values.get("gpu_state")
        if one.sample.view is not None and isinstance(state, str):
            is_imported = one.sample.provenance is Provenance.IMPORTED
            report = StateReport(state, one.received_at, LANE_SECONDS[Lane.SLOW], is_imported)
            reports.setdefault(one.sample.view.key, []).append(report)
    places = {key: deciding_state(of_view) for key, of_view in reports.items()}
    return {key for key, place in places.items() if place is not None and reports[key][place].state == "lost"}


def _has_values(sample: Sample) -> bool:
    return any(isinstance(sample.values.get(name), int | float) for name in AGGREGATED)


def _key(sample: Sample) -> tuple[str | None, str, str]:
    return sample.view.key if sample.view else None, sample.reader, sample.lane


def _matches(stored: StoredHolding, query: HoldingQuery, of_pods: Collection[tuple[str, str, str, str]]) -> bool:
    holder = stored.holding.holder

    def has(field: str) -> bool:
        wanted, text = getattr(query, field), getattr(holder, field)
        is_added = not text and holder.kind is HolderKind.POD
        return wanted in (None, text) or (is_added and (stored.cluster, holder.id, field, wanted) in of_pods)

    groups = {holder.array_job, *(owner.name for owner in holder.owners if owner.kind == HET_JOB)}
    return (
        query.cluster in (None, stored.cluster)
        and (query.machines is None or stored.machine in query.machines)
        and query.kind in (None, holder.kind)
        and (not (query.ids or query.groups) or holder.id in query.ids or not groups.isdisjoint(query.groups))
        and has("namespace")
        and has("name")
        and query.user in (None, holder.user)
        and query.account in (None, holder.account)
        and has("queue")
        and may_overlap(stored, query.start, query.end)
        and (query.after is None or holding_place(stored) > query.after)
    )


def _in(event: StoredEvent, span: EventSpan) -> bool:
    return (
        span.cluster in (None, event.cluster)
        and span.machine in (None, event.machine)
        and (span.views is None or (event.view or "") in span.views)
        and span.start <= event.at < span.end
    )
