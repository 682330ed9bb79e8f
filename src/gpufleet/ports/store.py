"""Store ports: samples and everything derived from them, split by use.

Methods block. One writing and several reading threads may call them at once. Every method raises StoreError if the
store refuses or cannot be reached. Times are nanoseconds since 1970, ends of intervals excluded.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from gpufleet.model.api.inventory import ChangeQuery, GpuPool, StoredChange, StoredSlot
from gpufleet.model.api.sql import QueryResult, SqlViewRecord
from gpufleet.model.api.usage import DeviceInterval, DeviceUsage
from gpufleet.model.declarations import DeclaredGpus, DeclaredResource
from gpufleet.model.reading import Provenance
from gpufleet.model.status import ReaderStatus
from gpufleet.model.stored.findings import NumberedTransition
from gpufleet.model.stored.holdings import HoldingQuery, StoredHolderStates, StoredHolding, StoredJob
from gpufleet.model.stored.kubernetes import ObjectQuery, StoredCollector, StoredObject
from gpufleet.model.stored.readings import (
    EventCount,
    NewestColumns,
    ReadingChangeQuery,
    StoredReadingChange,
    StoredText,
    ViewColumns,
)
from gpufleet.model.stored.retention import Retention
from gpufleet.model.stored.samples import (
    AcceptedBatch,
    EventQuery,
    HourRollup,
    KnownGpus,
    ProcessQuery,
    SampleSummary,
    StoredEvent,
    StoredProcesses,
    StoredSample,
    StoredSeries,
)


class SampleWriter(Protocol):
    """Writer of accepted batches."""

    def write(self, accepted: Sequence[AcceptedBatch], token: str, *, is_retry: bool = False) -> None:
        """Write all batches, durably, before returning.

        Args:
            accepted: the batches.
            token: identifies the write; a token is always used with the same batches.
            is_retry: whether an earlier write of these batches may have succeeded in full or in part. Rows that are
                already there are kept, and missing rows are added.

        Raises:
            UnstorableError: if a batch cannot be stored; nothing was written.
            StoreError: if the store fails otherwise; any part may have been written.
        """
        ...


class SampleStore(Protocol):
    """Newest state of machines."""

    def latest(self, cluster: str, machine: str, view: str | None = None) -> tuple[StoredSample, ...]:
        """Return the newest sample per view, reader and lane of a machine (of one view, by its key)."""
        ...

    def latest_of(self, cluster: str, machines: Sequence[str]) -> Mapping[str, tuple[StoredSample, ...]]:
        """Return machine id to newest samples, as `latest` does; machines without samples may be left out."""
        ...

    def sample_summaries(self, cluster: str, machines: Sequence[str]) -> Mapping[str, tuple[SampleSummary, ...]]:
        """Return machine id to newest samples without their values: enough to count GPUs."""
        ...

    def processes(self, query: ProcessQuery) -> tuple[StoredProcesses, ...]:
        """Return the newest process list per view and reader that matches, in order of view and reader."""
        ...

    def readers(self, cluster: str, machine: str) -> tuple[ReaderStatus, ...]:
        """Return the last reported status of each reader of a machine."""
        ...

    def readers_of(self, cluster: str, machines: Sequence[str]) -> Mapping[str, tuple[ReaderStatus, ...]]:
        """Return machine id to the status of its readers; machines without any may be left out."""
        ...

    def holdings(self, query: HoldingQuery) -> tuple[StoredHolding, ...]:
        """Return matching holdings as last reported, in the order of `holding_place`."""
        ...

    def slurm_jobs(self, query: HoldingQuery) -> tuple[StoredJob, ...]:
        """Return the runs of jobs of known SLURM clusters with a holding that matches by `cluster`, `ids` and `groups`.

        The other fields of the query are not used.
        """
        ...

    def holder_states(
        self, cluster: str, machines: Sequence[str], since: int
    ) -> Mapping[str, tuple[StoredHolderStates, ...]]:
        """Return machine id to each sender's newest report of holder states, reported since then, in order of sender.

        The hub orders the reports of an epoch. The newest reports of several epochs of a sender are ordered by
        `sent_at` or `reported_at`, whichever is earlier, so that a late batch of an earlier epoch replaces nothing.
        Machines without a report may be left out.
        """
        ...

    def declared_resources(
        self, cluster: str, machines: Sequence[str], since: int
    ) -> Mapping[str, tuple[DeclaredResource, ...]]:
        """Return machine id to the GPUs that Kubernetes declares, received since then; empty ones are left out."""
        ...

    def pci_gpu_counts(self, cluster: str, machines: Sequence[str]) -> Mapping[str, int]:
        """Return machine id to the number of GPUs on its PCI buses; machines that never reported them are left out."""
        ...

    def numa_nodes(self, cluster: str, machines: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        """Return machine id to PCI address to NUMA node, by the newest report of its buses.

        Machines that never reported them, and functions without a known node, are left out.
        """
        ...

    def reporters_of_view(self, cluster: str, view: str) -> tuple[str, ...]:
        """Return the ids of the machines that ever reported the view with this key, in order."""
        ...

    def shared_gpus(self, cluster: str) -> Mapping[str, tuple[str, ...]]:
        """Return keys of GPUs whose UUID several machines reported on the host side at any time, with the machines."""
        ...

    def views_with_prefix(self, cluster: str, prefixes: Sequence[str], limit: int) -> tuple[tuple[str, str], ...]:
        """Return (view key, machine id) of views ever reported whose key starts with one of these, in order.

        `limit` is the maximum number of entries.
        """
        ...

    def reporters_of_text(self, cluster: str, metric: str, text: str) -> tuple[str, ...]:
        """Return the ids of the machines with this text of an info metric in a newest sample, in order."""
        ...


class ClusterStore(Protocol):
    """Objects of Kubernetes clusters, and their collectors."""

    def cluster_objects(self, query: ObjectQuery) -> tuple[StoredObject, ...]:
        """Return matching objects as last reported, in order of UID; ended ones too."""
        ...

    def collectors(self, clusters: Sequence[str]) -> Mapping[str, tuple[StoredCollector, ...]]:
        """Return cluster to the newest report of its collectors, a bounded number of them, newest first.

        Clusters without a collector may be left out.
        """
        ...


class FleetStore(Protocol):
    """GPU counts of whole clusters."""

    def reporting_gpus(self, since: int, until: int) -> Mapping[str, int]:
        """Return cluster to the GPUs that reported a number of a metric that contributes to totals, in the interval.

        A GPU whose state is `lost` does not count: see `fleet.readings.deciding_state`. Only the newest states of
        readers count that were received in the interval.
        GPUs identified only by their index on a machine count only if no GPU with a UUID or address reported there.
        """
        ...

    def known_gpus(self, without: Sequence[str] = ()) -> Mapping[str, KnownGpus]:
        """Return cluster to the number of GPUs of its machines, except machines with the ids in `without`."""
        ...

    def declared_gpus(self, since: int, without: Sequence[str] = ()) -> Mapping[str, tuple[DeclaredGpus, ...]]:
        """Return cluster to the GPU counts that Kubernetes declares, by source, except machines in `without`.

        Declarations that were received before `since`, or have ended, do not count.
        """
        ...

    def pools(self, cluster: str | None = None) -> tuple[GpuPool, ...]:
        """Return groups of GPUs (of one cluster) with equal name, driver and VBIOS, in that order."""
        ...


class FactStore(Protocol):
    """Inputs of the rules about the fleet, in bulk."""

    def newest_columns(self, cluster: str, metrics: Collection[str]) -> NewestColumns:
        """Return the newest values of these metrics of all GPUs and machines of a cluster.

        A metric with dimensions is requested by its labels, see `model.stored.readings.labelled`.
        """
        ...

    def duplicate_views(self, since: int) -> ViewColumns:
        """Return the GPU UUIDs that two machines of any clusters reported since then, at most 10,000 rows.

        A report counts at its place in the order of reports, see `AcceptedBatch.reported_at`.
        """
        ...

    def event_counts(self, cluster: str, kinds: Collection[str], since: int) -> tuple[EventCount, ...]:
        """Return the number of events of these kinds since then, by machine, view, kind and code.

        At most 100,000 groups, and 1,000 of a machine, those with the newest events. An event that was written twice
        counts once.
        """
        ...

    def write_findings(self, transitions: Sequence[NumberedTransition]) -> None:
        """Write transitions for the SQL view of findings; a transition that was written before changes nothing."""
        ...


class HistoryStore(Protocol):
    """Series, usage, events and changes over time."""

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
        """Return (view key, metric) to (start of step, value), for steps with measurements of this provenance.

        A gauge gives the mean of its step; a counter, a state, and the newest XID give the last value. Only metrics
        without dimensions.
        Long intervals may be answered from minute and hour rollups. Steps of a series without a value have the reason
        of their newest sample, if it was kept. A mean over a reading that is `ambiguous_zero` would be too high: such a
        step has no value, and this reason.

        Args:
            cluster, machine: the machine, by the hub's id.
            metrics: names of metrics.
            start, end: nanoseconds since 1970, `end` excluded.
            step: length of a step in nanoseconds.
            provenance: of the measurements.
            views: keys of the views to return besides the machine's own series, or None for all.
            xids_since: leave out the newest XID, and its time, where that time is earlier: nanoseconds since 1970. An
                XID without a reported time is returned.
        """
        ...

    def device_usage(self, intervals: Sequence[DeviceInterval]) -> Sequence[DeviceUsage]:
        """Return the usage of a device within each interval, as defined in `docs/usage.md`.

        If several readers report a device at once, each hour is taken from the reader that covers most of it.
        """
        ...

    def slots(
        self, cluster: str, machines: Sequence[str], *, view: str | None = None, address: str | None = None
    ) -> tuple[StoredSlot, ...]:
        """Return the GPUs ever reported in PCI slots of machines (only this view, only this PCI address)."""
        ...

    def changes(self, query: ChangeQuery) -> tuple[StoredChange, ...]:
        """Return GPUs that moved or were replaced, as reported by hosts, newest first."""
        ...

    def reading_changes(self, query: ReadingChangeQuery) -> tuple[StoredReadingChange, ...]:
        """Return changed texts and integers of a machine itself by a reader, newest first.

        Changes are those between successive times of measurement. The first known values are none. Texts are kept
        permanently, integers as long as samples.
        """
        ...

    def texts_of_views(self, cluster: str, metric: str, text: str) -> tuple[StoredText, ...]:
        """Return every text of an info metric of the views that ever had this text, in order of time.

        A text is returned with each time at which the texts of its sample changed, or may have changed: a report is
        missing before it, or it arrived late.
        """
        ...

    def texts_of_machines(self, cluster: str, machines: Sequence[str], metric: str) -> tuple[StoredText, ...]:
        """Return every text of an info metric of machines and their devices, in order of time, as `texts_of_views`."""
        ...

    def events(self, query: EventQuery) -> tuple[StoredEvent, ...]:
        """Return matching events, newest first; an event that was written twice is returned once."""
        ...


class SqlStore(Protocol):
    """Read-only SQL for users."""

    def select(self, statement: str) -> QueryResult:
        """Run a user's statement: one SELECT over the SQL views, within limits. It can only read.

        Raises:
            SqlError: if the statement is rejected, wrong or exceeds a limit; the message names the cause.
        """
        ...

    def sql_views(self) -> tuple[SqlViewRecord, ...]:
        """Return the views that a statement may read."""
        ...


class StoreAdmin(Protocol):
    """Lifecycle and maintenance."""

    def migrate(self, retention: Retention | None = None, hub: str = "") -> None:
        """Bring the schema to this build's version, forward only. Called once, before any other method.

        Args:
            retention: how long rows are kept; None leaves it unchanged.
            hub: identifies the writing hub, the same after a restart; empty for a process that will not write.

        Raises:
            StoreError: if the store has a newer schema version, or another hub writes to it.
        """
        ...

    def load(self) -> None:
        """Load counts of GPUs, then newest samples, into memory, so that the first answers are quick.

        Writes go on meanwhile. Until the end of the load, queries about whole clusters raise `StoreStartingError`.
        """
        ...

    def load_counts(self) -> None:
        """Load the counts of GPUs only: the overview of the fleet needs nothing else of `load`."""
        ...

    def schema_version(self) -> int:
        """Return the schema version of the tables, 0 if there are none. May be called before `migrate`."""
        ...

    def check(self) -> None:
        """Raise StoreError unless the store answers a small query. Never answered from memory."""
        ...

    def is_empty(self) -> bool:
        """Return whether the store has no samples. May be called before `migrate`."""
        ...

    def roll_up(self, now: int, stopped: Callable[[], bool] = ...) -> HourRollup | None:
        """Compute the minute and hour rollups of the oldest hour that is due: past, and not written to recently.

        Repeat until None. An hour that is written to later becomes due again. Rollups of an incomplete run are ignored.

        Args:
            now: nanoseconds since 1970.
            stopped: polled during the work; once it returns true, the hour is left unchanged.

        Returns:
            None if no hour is due.
        """
        ...

    def abort_requests(self) -> None:
        """Make every call that waits for a server, and every later call, fail at once; `close` follows.

        Callable from any thread. No effect on an embedded store.
        """
        ...

    def close(self) -> None:
        """Close; completed writes persist."""
        ...


class Store(
    SampleWriter, SampleStore, ClusterStore, FleetStore, FactStore, HistoryStore, SqlStore, StoreAdmin, Protocol
):
    """The whole store, for the process that opens it."""
