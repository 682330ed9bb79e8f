"""Records of nodes, GPUs and senders, and the coverage of clusters: reporting against expected GPUs."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from gpufleet.fleet.devices import NAME_METRICS
from gpufleet.fleet.readings import (
    STATE,
    Freshness,
    StateReport,
    all_stale,
    deciding_state,
    device_samples,
    device_views,
    devices,
    known_views,
    shared_slots,
)
from gpufleet.hub.liveness.senders import SenderFreshness, answered_at
from gpufleet.hub.liveness.states import complete_up_to, view_liveness
from gpufleet.hub.query.holder_records import node_holders
from gpufleet.hub.receive.sequences import Intervals
from gpufleet.model.aggregate import aggregate
from gpufleet.model.api.answer import AnswerDevice, Coverage, GpuRecord, MachineRecord, NodeGpus, NodeRecord
from gpufleet.model.api.senders import EpochConflict, EpochRecord, SenderRecord
from gpufleet.model.cluster import Cluster
from gpufleet.model.declarations import DECLARATION_TTL_NS, DeclaredGpus
from gpufleet.model.device_state import LOST, OK
from gpufleet.model.holdings import Holding
from gpufleet.model.liveness import ExpectedGpus, Liveness
from gpufleet.model.reading import Provenance
from gpufleet.model.stored.ledger import MachineFreshness
from gpufleet.model.stored.samples import KnownGpus, SampleSummary, StoredSample
from gpufleet.model.time import NANOS, to_datetime, to_ns
from gpufleet.model.view import ViewKind
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import ClusterRegistry
from gpufleet.ports.store import FleetStore

GAPS_SHOWN = 20
"""Maximum number of gaps shown per epoch."""


def machine_freshness(one: MachineRecord) -> MachineFreshness:
    """Return the freshness of a machine from its record."""
    return MachineFreshness(
        id=one.id,
        cluster=one.cluster,
        sender=one.sender,
        last_seen=to_ns(one.last_seen),
        retired_at=to_ns(one.retired_at) if one.retired_at else None,
        conflict=one.conflict is not None,
        named_only=one.named_only,
    )


def with_age(machine: MachineRecord, now: int) -> MachineRecord:
    """Fill in the time since the machine was last seen."""
    return msgspec.structs.replace(machine, age_seconds=_age(now, to_ns(machine.last_seen)))


NODE_METRICS = frozenset({*NAME_METRICS, STATE, "gpu_utilization_ratio", "gpu_power_watts"})
"""Metrics on which `node_gpus` depends."""


def with_metrics(stored: Sequence[StoredSample], metrics: Collection[str]) -> tuple[StoredSample, ...]:
    """Return samples with the values of these metrics only, and none with dimensions.

    A machine keeps all values if they decide which of its GPUs are shown.
    """
    if values_decide(stored):
        return tuple(stored)
    return tuple(
        msgspec.structs.replace(
            one,
            sample=msgspec.structs.replace(
                one.sample,
                values={name: one.sample.values[name] for name in metrics if name in one.sample.values},
                dims=(),
            ),
        )
        for one in stored
    )


def gpu_records(
    machine: MachineRecord,
    stored: Sequence[StoredSample],
    freshness: Freshness,
    behind: Callable[[int, int], float],
) -> tuple[GpuRecord, ...]:
    """Return every view of a machine with its newest readings; values that are too old are absent.

    `behind` returns the ingest seconds between two reports, see `LivenessSnapshot.behind`.
    """
    records: list[GpuRecord] = []
    live = any(freshness.is_live(one.received_at) for one in stored)
    newest_by_key: dict[str, StoredSample] = {}
    for one in sorted(stored, key=lambda one: (one.received_at, one.sample.measured_at)):
        if one.sample.view is not None:
            newest_by_key[one.sample.view.key] = one
    views = device_views(stored)
    for device in devices(machine.cluster, machine.id, stored, freshness):
        if not live:
            device = msgspec.structs.replace(device, readings=all_stale(device.readings), dimensions=())
        key = device.id.split("/", 2)[2]
        newest = newest_by_key[key]
        records.append(
            GpuRecord(
                cluster=machine.cluster,
                node=machine.machine.name,
                index=views[key].index,
                device=device,
                measured_at=to_datetime(newest.sample.measured_at),
                received_at=to_datetime(newest.received_at),
                age_seconds=freshness.age_seconds(newest.received_at),
                liveness=machine.liveness
                and view_liveness(
                    machine.liveness,
                    behind(newest.received_at, to_ns(machine.last_seen)),
                    freshness.interval_of(newest.sample),
                ),
            )
        )
    return tuple(records)


def with_numa_nodes(gpus: Sequence[GpuRecord], nodes: Mapping[str, int]) -> tuple[GpuRecord, ...]:
    """Fill in the NUMA nodes of slots, by their PCI addresses."""
    return tuple(msgspec.structs.replace(one, numa_node=nodes.get(_slot_of(one.device))) for one in gpus)


def _slot_of(device: AnswerDevice) -> str:
    reading = device.readings.get("gpu_pci_address")
    return device.pci_address or str(reading and reading.value)


def values_decide(stored: Sequence[StoredSample]) -> bool:
    """Return whether values decide which GPUs of a machine are shown.

    They do if it has identified and unidentified GPUs, or a slot with several keys.
    """
    views = known_views(stored)
    named = {view.named for view in views.values() if view.kind is ViewKind.GPU}
    return len(named) > 1 or bool(shared_slots(views))


def count_shown(records: Sequence[GpuRecord]) -> tuple[int, int]:
    """Return the same as `count_gpus`, from a machine's records."""
    gpus = [one.device.readings for one in records if one.device.kind is ViewKind.GPU]
    return len(gpus), aggregate(gpus).reporting


def count_gpus(summaries: Sequence[SampleSummary], freshness: Freshness) -> tuple[int, int]:
    """Return the number of GPUs of a machine, and of those with a current number that contributes to totals.

    A GPU whose state is `lost` does not report. Not for machines with `values_decide`.
    """
    units = device_samples([one.stored for one in summaries])
    gpus = {key: one.samples for key, one in units.items() if one.view.kind is ViewKind.GPU}
    if not any(freshness.is_live(one.stored.received_at) for one in summaries):
        return len(gpus), 0
    summary_of = {id(one.stored): one for one in summaries if freshness.is_current(one.stored)}
    current = [[summary_of[id(one)] for one in samples if id(one) in summary_of] for samples in gpus.values()]
    reporting = [of_gpu for of_gpu in current if any(one.has_totals for one in of_gpu)]
    return len(gpus), sum(not _is_lost_by(of_gpu, freshness) for of_gpu in reporting)


def _is_lost_by(summaries: Sequence[SampleSummary], freshness: Freshness) -> bool:
    """Return whether the current samples of a device show that it is lost."""
    if not any(one.is_lost for one in summaries):
        return False
    reports = [
        StateReport(
            LOST if one.is_lost else OK,
            one.stored.sample.measured_at,
            freshness.interval_of(one.stored.sample),
            one.stored.sample.provenance is Provenance.IMPORTED,
        )
        for one in summaries
        if one.is_lost is not None
    ]
    place = deciding_state(reports)
    return place is not None and reports[place].state == LOST


def node_record(
    machine: MachineRecord,
    gpus: tuple[int, int],
    last_error: str | None,
    unresolved_devices: Mapping[str, int | None],
    unresolved_names: Mapping[str, tuple[str, ...]],
    stale_after_seconds: float,
) -> NodeRecord:
    """Return the record of a node.

    Args:
        machine: the node.
        gpus: number of its GPUs, and of those that report.
        last_error, unresolved_devices, unresolved_names: as in `NodeRecord`.
        stale_after_seconds: the hub's freshness limit.
    """
    return NodeRecord(
        machine=msgspec.structs.replace(machine, gpus=gpus[0]),
        stale=machine.age_seconds > stale_after_seconds,
        gpus=gpus[0],
        gpus_reporting=gpus[1],
        last_error=last_error,
        unresolved_devices=dict(unresolved_devices),
        unresolved_names=dict(unresolved_names),
    )


def node_gpus(node: MachineRecord, gpus: Sequence[GpuRecord], holdings: Sequence[Holding]) -> NodeGpus:
    """Return the GPUs of a node as one row; `holdings` are its present holdings. See `NODE_METRICS`."""
    whole = [one.device for one in gpus if one.device.kind is ViewKind.GPU]
    total = aggregate([one.readings for one in whole]).metrics
    utilization, power = (total.get(name) for name in ("gpu_utilization_ratio", "gpu_power_watts"))
    return NodeGpus(
        machine=node.id,
        liveness=node.liveness,
        models=dict(Counter(one.name or "unknown" for one in whole)),
        utilization_ratio=utilization.value if utilization else None,
        utilization_gpus=utilization.reporting if utilization else 0,
        power_watts=power.value if power else None,
        power_gpus=power.reporting if power else 0,
        holders=node_holders(holdings, node.liveness),
        holder_states=dict(Counter(one.holders.state for one in gpus if one.holders is not None)),
    )


def sender_record(
    freshness: SenderFreshness,
    runs: Sequence[tuple[str, Intervals, Intervals]],
    liveness: Liveness,
    now: int,
    conflict: EpochConflict | None,
) -> SenderRecord:
    """Return the record of a sender; `runs` are epochs, received numbers, and numbers that are not missing."""
    newest = freshness.newest
    heartbeat, own = newest.heartbeat, newest.own_heartbeat
    complete = complete_up_to(freshness)
    epochs = tuple(
        EpochRecord(
            epoch=epoch,
            received=len(received),
            highest=received.highest,
            missing=known.missing,
            gaps=known.gaps(GAPS_SHOWN),
        )
        for epoch, received, known in sorted(runs, key=lambda run: run[0])
    )
    return SenderRecord(
        cluster=freshness.cluster,
        sender=freshness.sender,
        sent_at=to_datetime(newest.sent_at),
        received_at=to_datetime(newest.received_at),
        age_seconds=_age(now, newest.received_at),
        last_seen_at=to_datetime(answered_at(newest)) if not freshness.never_answered else None,
        heartbeat_interval_seconds=heartbeat.interval_seconds if heartbeat else None,
        liveness=liveness,
        clock_ahead_seconds=freshness.clock_ahead_seconds,
        complete_up_to=to_datetime(complete) if complete else None,
        version=own.version if own else "",
        queue_records=own.queue_records if own else None,
        oldest_unsent=to_datetime(own.oldest_unsent) if own and own.oldest_unsent else None,
        dropped_total=own.dropped_total if own else None,
        missing=sum(one.missing for one in epochs),
        epochs=epochs,
        conflict=conflict,
    )


def _age(now: int, at: int) -> float:
    return max(0, now - at) / NANOS


class CoverageCounter:
    """Counts reporting and expected GPUs per cluster, with a constant number of store queries. Blocks."""

    def __init__(
        self, *, registry: ClusterRegistry, store: FleetStore, clock: Clock, stale_after_seconds: float
    ) -> None:
        self._registry = registry
        self._store = store
        self._clock = clock
        self._stale_after = stale_after_seconds

    def of(self, cluster: str | None, retired: Sequence[str]) -> tuple[Coverage, ...]:
        """Return the coverage of a cluster, or of all that are not closed.

        `retired` are the ids of retired machines, from which no GPU is expected.
        """
        now, limit = self._clock.now_ns(), int(self._stale_after * NANOS)
        reporting = self._store.reporting_gpus(now - limit, now + limit)  # not samples from before a clock step
        known = self._store.known_gpus(retired)
        declared = self._store.declared_gpus(now - DECLARATION_TTL_NS, retired)
        clusters = {one.id: one for one in self._registry.clusters() if one.closed_at is None}
        names = sorted({*clusters, *reporting}) if cluster is None else [cluster]
        return tuple(_coverage(name, reporting.get(name, 0), clusters, known, declared.get(name, ())) for name in names)


def _coverage(
    name: str,
    reporting: int,
    clusters: Mapping[str, Cluster],
    known: Mapping[str, KnownGpus],
    declared: tuple[DeclaredGpus, ...],
) -> Coverage:
    spec = clusters[name].spec if name in clusters else None
    gpus = known.get(name)
    sources = ExpectedGpus(
        registration=sum(spec.expected.values()) if spec is not None and spec.expected else None,
        pci=gpus.pci if gpus else None,
        nvml=gpus.nvml if gpus else None,
        kubernetes=sum(one.counted for one in declared) if declared else None,
    )
    shares = sum(one.shares for one in declared)
    best = sources.best(shares)
    return Coverage(
        cluster=name,
        reporting=reporting,
        expected=best[0] if best else None,
        expected_by=best[1] if best else None,
        sources=sources,
        kubernetes=declared,
        kubernetes_shares=shares,
        summary=f"{reporting} of {best[0]} expected by {best[1]}" if best else f"{reporting}, expected: unknown",
    )
