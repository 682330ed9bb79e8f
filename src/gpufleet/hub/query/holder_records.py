"""Records of holders: the present holders of devices and nodes, and the rows of a list of holders. Pure."""

from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.fleet.attribution.holdings import device_holders
from gpufleet.fleet.attribution.reported import known_until
from gpufleet.model.api.answer import GpuRecord, MachineRecord
from gpufleet.model.api.holders import HolderAllocation, HolderRecord, NodeHolder
from gpufleet.model.holdings import DeviceHolders, HolderKind, HolderState, Holding, HoldingVerdict, Share
from gpufleet.model.liveness import Liveness
from gpufleet.model.reading import Reading
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Scope

NOT_REPORTED = "no holder is reported: the device is free, or no source reports its holders"
"""Detail of a device without holdings: agents report holders, and not that a device is free."""

READINGS = ("gpu_utilization_ratio", "gpu_memory_used_bytes")
"""Readings of the device in a row of a list of holders."""

_LEAST_CERTAIN = (
    HoldingVerdict.CONFLICT,
    HoldingVerdict.UNKNOWN,
    HoldingVerdict.NONE,
    HoldingVerdict.OBSERVED_ONLY,
    HoldingVerdict.DECLARED_ONLY,
    HoldingVerdict.AGREED,
)

_UNDIVIDED = frozenset({Share.TIMESLICE, Share.MPS})
"""Shares with which a reading of the device is that of all its holders together."""


def with_holders(
    gpus: Sequence[GpuRecord], holdings: Iterable[Holding], liveness: Liveness | None
) -> tuple[GpuRecord, ...]:
    """Fill in the present holders of the views of a machine.

    A GPU that is split into MIG devices or vGPUs has holders of its own only if it is held as a whole.

    Args:
        gpus: all views of the machine.
        holdings: its present holdings.
        liveness: of the machine.
    """
    by_view: dict[str, list[Holding]] = {}
    for holding in holdings:
        by_view.setdefault(holding.view, []).append(holding)
    split = {one.device.parent for one in gpus}
    found = []
    for one in gpus:
        key = one.device.id.split("/", 2)[2]
        own = by_view.get(key, ())
        if own or key not in split:
            found.append(msgspec.structs.replace(one, holders=present_holders(own, liveness)))
        else:
            found.append(one)
    return tuple(found)


def present_holders(holdings: Sequence[Holding], liveness: Liveness | None) -> DeviceHolders:
    """Return the present holders of a view from its present holdings; `liveness` is that of the machine."""
    if liveness is None or not liveness.is_current:
        state = "not known" if liveness is None else liveness.state.value
        return DeviceHolders(state=HolderState.UNKNOWN, detail=f"the machine is {state}")
    if not holdings:
        return DeviceHolders(state=HolderState.UNKNOWN, detail=NOT_REPORTED)
    return device_holders(holdings)


def node_holders(holdings: Iterable[Holding], liveness: Liveness | None) -> tuple[NodeHolder, ...]:
    """Return the present holders of a node, each once, with the least certain of its verdicts.

    Args:
        holdings: present holdings of the node.
        liveness: of the node.
    """
    if liveness is None or not liveness.is_current:
        return ()
    by_holder: dict[tuple[HolderKind, str], list[Holding]] = {}
    for one in holdings:
        by_holder.setdefault((one.holder.kind, one.holder.id), []).append(one)
    return tuple(
        NodeHolder(
            holder=own[0].holder,
            parent=own[0].parent,
            devices=len({one.view for one in own}),
            verdict=min((one.verdict for one in own), key=_LEAST_CERTAIN.index),
        )
        for own in by_holder.values()
    )


def holder_record(
    stored: StoredHolding,
    machine: MachineRecord | None,
    gpu: GpuRecord | None,
    allocations: Iterable[HolderAllocation],
    now: int,
) -> HolderRecord:
    """Return the row of a holding.

    Args:
        stored: the holding.
        machine: its machine with liveness, or None if the hub has no record of it.
        gpu: its view with the present holders, or None if the hub has no sample of it.
        allocations: those that name the holder.
        now: nanoseconds since 1970 by the hub's clock.
    """
    one, until = stored.holding, known_until(stored, now)
    liveness = machine.liveness if machine is not None else None
    current = until is None and liveness is not None and liveness.is_current
    return HolderRecord(
        cluster=stored.cluster,
        machine=stored.machine,
        node=machine.machine.name if machine is not None else "",
        liveness=liveness,
        device=f"{stored.cluster}/{stored.machine}/{one.view}",
        uuid=gpu.device.uuid if gpu is not None else None,
        index=gpu.index if gpu is not None else None,
        model=gpu.device.name if gpu is not None else None,
        holder=one.holder,
        parent=one.parent,
        container=one.container,
        container_id=one.container_id,
        steps=one.steps,
        share=one.share,
        replicas=one.replicas,
        claim=one.claim,
        methods=one.methods,
        verdict=one.verdict,
        since=to_datetime(one.since),
        until=to_datetime(until) if until is not None else None,
        reported_at=to_datetime(stored.reported_at),
        age_seconds=max(0, now - stored.reported_at) / NANOS,
        current=current,
        readings=_readings(one, gpu) if current and gpu is not None else {},
        allocations=tuple(allocations),
    )


def _readings(holding: Holding, gpu: GpuRecord) -> dict[str, Reading]:
    """Return the readings of a held device; of a device with several holders, they are those of the shared device."""
    present = gpu.holders.holdings if gpu.holders is not None else ()
    shared = holding.share in _UNDIVIDED or len({(one.holder.kind, one.holder.id) for one in present}) > 1
    found = {}
    for name in READINGS:
        reading = gpu.device.readings.get(name)
        if reading is not None and shared and reading.scope is Scope.OWN:
            reading = msgspec.structs.replace(reading, scope=Scope.SHARED_DEVICE)
        if reading is not None:
            found[name] = reading
    return found
