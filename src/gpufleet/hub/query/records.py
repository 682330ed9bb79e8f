"""Lists around the allocation contract: nodes, GPUs, senders. Pure.

How many GPUs report, of how many there should be, and who says so.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpufleet.fleet.readings import Freshness, all_stale, device_views, devices
from gpufleet.hub.liveness.senders import SenderLife
from gpufleet.hub.liveness.states import complete_up_to, judge_view
from gpufleet.hub.receive.sequences import Intervals
from gpufleet.model.aggregate import aggregate
from gpufleet.model.api.answer import (
    Coverage,
    EpochConflict,
    EpochRecord,
    GpuRecord,
    MachineRecord,
    NodeRecord,
    SenderRecord,
)
from gpufleet.model.cluster import Cluster
from gpufleet.model.declared import BELIEVED_NS, DeclaredGpus
from gpufleet.model.liveness import Expected, Liveness
from gpufleet.model.stored.samples import KnownGpus, Standing, StoredSample
from gpufleet.model.time import NANOS, to_datetime, to_ns
from gpufleet.model.view import ViewKind
from gpufleet.ports.clock import Clock
from gpufleet.ports.registry import Registry
from gpufleet.ports.store import Store

GAPS_SHOWN = 20
"""Ranges of missing numbers that one run shows."""


def with_age(machine: MachineRecord, now: int) -> MachineRecord:
    """Fill in how long ago the machine was heard of."""
    return msgspec.structs.replace(machine, age_seconds=_age(now, to_ns(machine.last_seen)))


def gpu_records(
    machine: MachineRecord,
    stored: Sequence[StoredSample],
    freshness: Freshness,
    behind: Callable[[int, int], float],
) -> tuple[GpuRecord, ...]:
    """Return every view of a machine with its newest readings; values that are too old are absent.

    `behind` says how many seconds in which the hub could hear lie between two words, see `Instant.behind`.
    """
    records: list[GpuRecord] = []
    heard = any(freshness.is_heard(one.received_at) for one in stored)
    newest_by_key: dict[str, StoredSample] = {}
    for one in sorted(stored, key=lambda one: (one.received_at, one.sample.measured_at)):
        if one.sample.view is not None:
            newest_by_key[one.sample.view.key] = one
    views = device_views(stored)
    for device in devices(machine.cluster, machine.id, stored, freshness):
        if not heard:
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
                and judge_view(
                    machine.liveness,
                    behind(newest.received_at, to_ns(machine.last_seen)),
                    freshness.interval_of(newest.sample),
                ),
            )
        )
    return tuple(records)


def may_count_twice(standings: Sequence[Standing]) -> bool:
    """Tell whether a machine has GPUs with a name and GPUs without: which are shown takes their values to say."""
    views = device_views([one.stored for one in standings]).values()
    return len({view.named for view in views if view.kind is ViewKind.GPU}) > 1


def count_shown(records: Sequence[GpuRecord]) -> tuple[int, int]:
    """Return the same as `count_gpus`, of a machine's records."""
    total = aggregate([one.device.readings for one in records if one.device.kind is ViewKind.GPU])
    return total.devices, total.reporting


def count_gpus(standings: Sequence[Standing], freshness: Freshness) -> tuple[int, int]:
    """Return how many GPUs a machine has, and how many of them tell a number now that totals are made of.

    Not for one that `may_count_twice`.
    """
    stored = [one.stored for one in standings]
    gpus = {key for key, view in device_views(stored).items() if view.kind is ViewKind.GPU}
    if not any(freshness.is_heard(one.received_at) for one in stored):
        return len(gpus), 0
    telling = {
        one.stored.sample.view.key
        for one in standings
        if one.tells and one.stored.sample.view is not None and freshness.is_current(one.stored)
    }
    return len(gpus), len(gpus & telling)


def node_record(
    machine: MachineRecord, gpus: tuple[int, int], last_error: str | None, stale_after_seconds: float
) -> NodeRecord:
    """Say how a node is doing; `gpus` are how many it has, and how many of them tell anything now."""
    return NodeRecord(
        machine=msgspec.structs.replace(machine, gpus=gpus[0]),
        stale=machine.age_seconds > stale_after_seconds,
        gpus=gpus[0],
        gpus_reporting=gpus[1],
        last_error=last_error,
    )


def sender_record(
    life: SenderLife,
    runs: Sequence[tuple[str, Intervals, Intervals]],
    liveness: Liveness,
    now: int,
    conflict: EpochConflict | None,
) -> SenderRecord:
    """Say how a sender is doing, and what is missing of it; `runs` are epochs, numbers held, and those not missing."""
    heard = life.heard
    heartbeat = heard.heartbeat
    complete = complete_up_to(life)
    epochs = tuple(
        EpochRecord(
            epoch=epoch,
            received=len(held),
            highest=held.highest,
            missing=known.missing,
            gaps=known.gaps(GAPS_SHOWN),
        )
        for epoch, held, known in sorted(runs, key=lambda run: run[0])
    )
    return SenderRecord(
        cluster=life.cluster,
        sender=life.sender,
        sent_at=to_datetime(heard.sent_at),
        received_at=to_datetime(heard.received_at),
        age_seconds=_age(now, heard.received_at),
        heartbeat_interval_seconds=heartbeat.interval_seconds if heartbeat else None,
        liveness=liveness,
        clock_ahead_seconds=life.clock_ahead_seconds,
        complete_up_to=to_datetime(complete) if complete else None,
        version=heartbeat.version if heartbeat else "",
        queue_records=heartbeat.queue_records if heartbeat else None,
        oldest_unsent=to_datetime(heartbeat.oldest_unsent) if heartbeat and heartbeat.oldest_unsent else None,
        dropped_total=heartbeat.dropped_total if heartbeat else None,
        missing=sum(one.missing for one in epochs),
        epochs=epochs,
        conflict=conflict,
    )


def _age(now: int, at: int) -> float:
    return max(0, now - at) / NANOS


class Covering:
    """Counts with a few questions to the store, however many GPUs there are. Everything here blocks."""

    def __init__(self, *, registry: Registry, store: Store, clock: Clock, stale_after_seconds: float) -> None:
        self._registry = registry
        self._store = store
        self._clock = clock
        self._stale_after = stale_after_seconds

    def of(self, cluster: str | None, retired: Sequence[str]) -> tuple[Coverage, ...]:
        """Return the coverage of one cluster, or of all that are not closed.

        `retired` are the ids of their machines of which nothing is expected.
        """
        now, limit = self._clock.now_ns(), int(self._stale_after * NANOS)
        reporting = self._store.reporting_gpus(now - limit, now + limit)  # not what came before the clock was set back
        known = self._store.known_gpus(retired)
        declared = self._store.declared_gpus(now - BELIEVED_NS, retired)
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
    sources = Expected(
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
        words=f"{reporting} of {best[0]} expected by {best[1]}" if best else f"{reporting}, expected: not said",
    )
