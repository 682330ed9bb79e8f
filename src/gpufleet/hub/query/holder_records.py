"""Records of holders: the present holders of devices and nodes, and the rows of a list of holders. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from gpufleet.fleet.attribution.device_states import device_holders, hidden_holders
from gpufleet.fleet.attribution.reported import NOT_REPORTED, known_until
from gpufleet.model.api.answer import GpuRecord, MachineRecord
from gpufleet.model.api.holders import HolderAllocation, HolderRecord, NodeHolder
from gpufleet.model.holdings import (
    MAX_STATE_TEXT,
    DeviceHolders,
    DeviceState,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Share,
)
from gpufleet.model.liveness import Liveness
from gpufleet.model.reading import Reading
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.text import bounded, printable
from gpufleet.model.time import NANOS, to_datetime
from gpufleet.model.view import Scope, View

NOT_RECEIVED = "its agent reports a holder, and the hub has no present holding of the device"
"""Detail of a device that is reported as held, and has no holdings."""

NOT_VERIFIED = "its machine has not reported since the hub started"
"""Detail of a device that is reported as free, while its machine is not verified."""

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


class MachineHolders(msgspec.Struct, frozen=True):
    """Present holders of a machine's devices.

    Attributes:
        holdings: present holdings.
        states: view key to holder state, as reported.
    """

    holdings: tuple[Holding, ...] = ()
    states: Mapping[str, DeviceState] = MappingProxyType({})


NO_HOLDERS = MachineHolders()
"""Of a machine that reports no holders."""


def with_holders(
    gpus: Sequence[GpuRecord], reported: MachineHolders, liveness: Liveness | None, known: Mapping[str, View]
) -> tuple[GpuRecord, ...]:
    """Fill in the present holders of the views of a machine.

    A GPU that is split into MIG devices or vGPUs has holders of its own only if it is held as a whole.

    Args:
        gpus: all views of the machine.
        reported: the machine's holders.
        liveness: of the machine.
        known: key to view of all views that the machine ever listed.
    """
    by_view: dict[str, list[Holding]] = {}
    for holding in reported.holdings:
        by_view.setdefault(holding.view, []).append(holding)
    keys = [one.device.id.split("/", 2)[2] for one in gpus]
    split = {one.device.parent for one in gpus}
    hidden = hidden_holders({key: known.get(key) for key in by_view}, {key: known[key] for key in keys})
    found = []
    for key, one in zip(keys, gpus, strict=True):
        own = by_view.get(key, ())
        if own or key not in split:
            holders = present_holders(own, reported.states.get(key), liveness, hidden.get(key, ""))
            found.append(msgspec.structs.replace(one, holders=holders))
        else:
            found.append(one)
    return tuple(found)


def present_holders(
    holdings: Sequence[Holding], reported: DeviceState | None, liveness: Liveness | None, hidden: str = ""
) -> DeviceHolders:
    """Return the present holders of a view. It is free only if its machine is live or late and reports that it is free.

    Args:
        holdings: its present holdings.
        reported: its present holder state, or None if it is not reported.
        liveness: of its machine.
        hidden: why a holder of another view may have it (`hidden_holders`), or empty.
    """
    if liveness is None or not liveness.is_current:
        state = "not known" if liveness is None else liveness.state.value
        return DeviceHolders(state=HolderState.UNKNOWN, detail=f"the machine is {state}")
    why_unknown = ""
    if reported is not None and reported.state is HolderState.UNKNOWN:
        why_unknown = printable(bounded(reported.detail, MAX_STATE_TEXT))
    if holdings:
        return device_holders(holdings, why_unknown)
    if reported is None:
        return DeviceHolders(state=HolderState.UNKNOWN, detail=NOT_REPORTED)
    if reported.state is HolderState.FREE:
        if liveness.unverified:
            return DeviceHolders(state=HolderState.UNKNOWN, detail=NOT_VERIFIED)
        if hidden:
            return DeviceHolders(state=HolderState.UNKNOWN, detail=hidden)
        return DeviceHolders(state=HolderState.FREE)
    return DeviceHolders(state=HolderState.UNKNOWN, detail=why_unknown or NOT_RECEIVED)


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
        total_replicas=one.total_replicas,
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
