"""Holders of the simulated devices, with the faults that change them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from gpufleet.model.holdings import (
    DeviceState,
    Holder,
    HolderKind,
    HolderState,
    Holding,
    HoldingVerdict,
    Method,
)
from gpufleet.model.machine import Machine
from gpufleet.model.view import View
from gpufleet.simulate.fleet.faults import FaultKind, FleetFault
from gpufleet.simulate.fleet.fleet import Fleet, replaced_guest
from gpufleet.simulate.fleet.layout import FleetNode, Workload, host_view, sharing_of
from gpufleet.simulate.fleet.random_values import number

METHOD = "simulated"
"""Method of the fleet's holdings: they are not observed."""

SOURCE = "simulated"
"""Name of the holder source of the agents. They count its unresolved device names."""

HOLDING_FAULTS: Mapping[FaultKind, str] = {
    FaultKind.HELD_IDLE: METHOD,
    FaultKind.HELD_PARKED: METHOD,
    FaultKind.HOLDER_CONFLICT: Method.PROCESS,
}
"""Faults in which a job has a GPU that it should not have, with the method that reports it."""


NO_KUBELET = "the kubelet does not answer"

_CHANGES = {
    *HOLDING_FAULTS,
    *(FaultKind.UNRESOLVED_DEVICES, FaultKind.ATTRIBUTION_GAP, FaultKind.HIDDEN_WHEN_IDLE),
    FaultKind.GUEST_REPLACED,
}


class PresentHolding(NamedTuple):
    """Holding at an instant. `until` is its end, which is known in advance."""

    view: View
    holder: Holder
    since: int
    until: int
    method: str
    verdict: HoldingVerdict


def holdings_due(fleet: Fleet, node: FleetNode, since: int, at: int) -> bool:
    """Return whether a holder has changed since an earlier instant, nanoseconds since 1970."""
    if any(work.job(at) != work.job(since) for _, work in _held(fleet, node, at)):
        return True
    return fleet.has_edge(node, _CHANGES, since, at)


def device_states(fleet: Fleet, node: FleetNode, at: int) -> tuple[DeviceState, ...]:
    """Return the holder state of every device of a node that is not divided into others."""
    present = present_holdings(fleet, node, at)
    reported = {one.view.key for one in _reported(fleet, node, at)}
    unknown = {one.view.key for one in present} - reported
    states = []
    for view in _leaves(fleet, node, at):
        if view.key in unknown:
            states.append(DeviceState(view=view.key, state=HolderState.UNKNOWN, detail=NO_KUBELET))
        else:
            is_held = view.key in reported
            states.append(DeviceState(view=view.key, state=HolderState.HELD if is_held else HolderState.FREE))
    return tuple(states)


def holdings(fleet: Fleet, node: FleetNode, since: int, at: int, ahead: int = 0) -> Iterator[Holding]:
    """Yield the holdings that ended since an earlier instant, then the present ones.

    Args:
        fleet: the fleet.
        node: a node, with its devices at `at`.
        since, at: nanoseconds since 1970.
        ahead: nanoseconds by which the node's clock is ahead.
    """
    present = _reported(fleet, node, at)
    names = {(one.view.key, one.holder.id) for one in present}
    ended = [one for one in _reported(fleet, node, since) if (one.view.key, one.holder.id) not in names]
    for one in (*ended, *present):
        yield Holding(
            view=one.view.key,
            holder=one.holder,
            container="main" if one.holder.kind is HolderKind.POD else "",
            share=sharing_of(one.view.kind),
            since=one.since + ahead,
            until=min(one.until, at) + ahead if one in ended else None,
            methods=(one.method,),
            verdict=one.verdict,
        )


def _reported(fleet: Fleet, node: FleetNode, at: int) -> list[PresentHolding]:
    """Return the holdings that the node's agent knows at an instant."""
    present = present_holdings(fleet, node, at)
    if not any(one.kind is FaultKind.ATTRIBUTION_GAP for one in fleet.node_faults(node, at)):
        return present
    return [one for one in present if one.holder.kind is not HolderKind.POD]


def present_holdings(fleet: Fleet, node: FleetNode, at: int) -> list[PresentHolding]:
    """Return the holdings of a node's devices at an instant."""
    conflicts = set()
    found = []
    for gpu in node.all_gpus:
        for fault in fleet.gpu_faults(node, gpu):
            method = HOLDING_FAULTS.get(fault.kind)
            if method is not None and fault.begin <= at < fault.end:
                view = host_view(node, gpu)
                in_conflict = fault.kind is FaultKind.HOLDER_CONFLICT
                verdict = HoldingVerdict.CONFLICT if in_conflict else HoldingVerdict.DECLARED_ONLY
                found.append(PresentHolding(view, _intruder(view, fault), fault.begin, fault.end, method, verdict))
                conflicts |= {view.key} if in_conflict else set()
    declared, replaced_at = [], fleet.guests_replaced_at(node, at)
    for view, work in _held(fleet, node, at):
        held = work.holder(at)
        if held is not None:
            holder, since, until = held
            if replaced_at and node.is_passthrough:
                holder, since = _replaced(holder, replaced_at), max(since, replaced_at)
            verdict = HoldingVerdict.CONFLICT if view.key in conflicts else HoldingVerdict.DECLARED_ONLY
            declared.append(PresentHolding(view, holder, since, until, METHOD, verdict))
    return [*declared, *found]


def _replaced(vm: Holder, at: int) -> Holder:
    guest = replaced_guest(Machine(name=vm.name), at)
    return msgspec.structs.replace(vm, id=guest.system_uuid, name=guest.name)


def _intruder(view: View, fault: FleetFault) -> Holder:
    id_ = str(100_000 + number(900_000, view.key, fault.kind.value, fault.begin))
    return Holder(kind=HolderKind.JOB, id=id_, name=fault.kind.value, user="mallory", queue="batch")


def _held(fleet: Fleet, node: FleetNode, at: int) -> Iterator[tuple[View, Workload]]:
    """Yield the devices that can have a holder, with their workloads."""
    for gpu in fleet.shown_gpus(node, at):
        if gpu.parts:
            yield from ((part.view, part.work) for part in gpu.parts)
        else:
            yield from ((host_view(node, gpu), work) for _, work in gpu.loads)


def _leaves(fleet: Fleet, node: FleetNode, at: int) -> Iterable[View]:
    for gpu in fleet.shown_gpus(node, at):
        yield from [part.view for part in gpu.parts] or [host_view(node, gpu)]
