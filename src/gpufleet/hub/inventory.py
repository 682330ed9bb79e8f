"""Lists around the allocation contract: nodes, GPUs, senders. Pure."""

from collections.abc import Sequence

import msgspec

from gpufleet.hub.freshness import MISSED_PASSES, Freshness
from gpufleet.hub.intervals import Intervals
from gpufleet.hub.readings import all_stale, devices
from gpufleet.model.aggregate import aggregate
from gpufleet.model.answer import EpochConflict, EpochRecord, GpuRecord, MachineRecord, NodeRecord, SenderRecord
from gpufleet.model.ledger import SenderState
from gpufleet.model.stored import StoredSample
from gpufleet.model.time import NANOS, to_datetime, to_ns
from gpufleet.model.view import ViewKind

GAPS_SHOWN = 20
"""Ranges of missing numbers that one run shows."""


def with_age(machine: MachineRecord, now: int) -> MachineRecord:
    """Fill in how long ago the machine was heard of."""
    return msgspec.structs.replace(machine, age_seconds=_age(now, to_ns(machine.last_seen)))


def gpu_records(machine: MachineRecord, stored: Sequence[StoredSample], freshness: Freshness) -> tuple[GpuRecord, ...]:
    """Return every view of a machine with its newest readings; values that are too old are absent."""
    records: list[GpuRecord] = []
    heard = any(freshness.is_heard(one.received_at) for one in stored)
    newest_by_key: dict[str, StoredSample] = {}
    for one in sorted(stored, key=lambda one: (one.received_at, one.sample.measured_at)):
        if one.sample.view is not None:
            newest_by_key[one.sample.view.key] = one
    for device in devices(machine.cluster, machine.id, stored, freshness):
        if not heard:
            device = msgspec.structs.replace(device, readings=all_stale(device.readings), dimensions=())
        newest = newest_by_key[device.id.split("/", 2)[2]]
        records.append(
            GpuRecord(
                cluster=machine.cluster,
                device=device,
                measured_at=to_datetime(newest.sample.measured_at),
                received_at=to_datetime(newest.received_at),
                age_seconds=freshness.age_seconds(newest.received_at),
            )
        )
    return tuple(records)


def node_record(
    machine: MachineRecord, gpus: Sequence[GpuRecord], last_error: str | None, stale_after_seconds: float
) -> NodeRecord:
    """Say how a node is doing: how many GPUs it has, and how many of them tell anything now."""
    total = aggregate([one.device.readings for one in gpus if one.device.kind is ViewKind.GPU])
    return NodeRecord(
        machine=msgspec.structs.replace(machine, gpus=total.devices),
        stale=machine.age_seconds > stale_after_seconds,
        gpus=total.devices,
        gpus_reporting=total.reporting,
        last_error=last_error,
    )


def sender_record(
    state: SenderState, runs: Sequence[tuple[str, Intervals]], now: int, conflict: EpochConflict | None
) -> SenderRecord:
    """Say how a sender is doing, and what is missing of it."""
    heard = state.heard
    heartbeat = heard.heartbeat
    age = _age(now, heard.received_at)
    epochs = tuple(
        EpochRecord(
            epoch=epoch,
            received=len(held),
            highest=held.highest,
            missing=held.missing,
            gaps=held.gaps(GAPS_SHOWN),
        )
        for epoch, held in sorted(runs, key=lambda run: run[0])
    )
    return SenderRecord(
        cluster=state.cluster,
        sender=state.sender,
        sent_at=to_datetime(heard.sent_at),
        received_at=to_datetime(heard.received_at),
        age_seconds=age,
        heartbeat_interval_seconds=heartbeat.interval_seconds if heartbeat else None,
        late=heartbeat is not None and age > MISSED_PASSES * heartbeat.interval_seconds,
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
