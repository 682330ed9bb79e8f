"""A single node with chosen devices, for a simulated exporter. Pure."""

from collections.abc import Iterable, Mapping

from gpufleet.model.catalogue import Lane
from gpufleet.model.holdings import DeviceHolders
from gpufleet.model.time import NANOS
from gpufleet.model.wire.batch import MachineReport
from gpufleet.simulate.fleet.faults import FaultError, FaultKind, FleetFault
from gpufleet.simulate.fleet.fleet import Fleet, FleetSpec
from gpufleet.simulate.fleet.layout import NodeRole
from gpufleet.simulate.fleet.reports import CollectionPass, machine_reports

EVENT_SECONDS = 3600
"""Age up to which events are reported."""

LANES = (Lane.FAST, Lane.SLOW, Lane.STATIC)


WITHOUT_EFFECT = frozenset(
    {
        *(FaultKind.CLUSTER_OFF, FaultKind.HALF_CLUSTER, FaultKind.NODE_OFF, FaultKind.NODE_DELETED),
        FaultKind.AGENT_RESTART,
        *(FaultKind.BACKFILL, FaultKind.SPOOL_WIPED, FaultKind.LOST_BATCHES, FaultKind.DELAYED_BATCHES),
        *(FaultKind.STUCK_BATCHES, FaultKind.CLOCK_STEP, FaultKind.LATE_DATA),
        *(FaultKind.CLONED_MACHINE, FaultKind.CLONED_SPOOL, FaultKind.DUPLICATE_AGENT),
        *(FaultKind.GUEST_DOWN, FaultKind.GUEST_REPLACED, FaultKind.HOST_VALUES, FaultKind.NO_PCI),
        *(FaultKind.GPU_UNALLOCATABLE, FaultKind.UNRESOLVED_DEVICES),
    }
)
"""Faults of senders, guests and clusters, which change no page of an exporter."""


def single_node(
    *, seed: int = 0, gpus: int = 8, vgpus: int = 0, mig: bool = False, faults: Iterable[FleetFault] = ()
) -> Fleet:
    """Return a fleet of one node.

    Args:
        seed: decides the model, the identities and the loads.
        gpus: number of GPUs.
        vgpus: vGPU instances per GPU, which share its memory; 0 gives each GPU to a pod.
        mig: divide the first GPU into MIG devices instead.
        faults: scheduled faults of cluster 1, node 1.

    Raises:
        ValueError: if a fault has no effect on the page of an exporter or names a device that does not exist, or if
            the model has no MIG devices.
    """
    faults = tuple(faults)
    for fault in faults:
        if fault.kind in WITHOUT_EFFECT:
            raise FaultError(f"{fault.kind} has no effect on the page of an exporter")
        if (fault.cluster, fault.node) != (1, 1) or fault.gpu >= gpus:
            place = f"c{fault.cluster}/n{fault.node}/g{fault.gpu}"
            raise FaultError(f"{fault.kind}: there is no {place}: the only node is c1/n1, with {gpus} GPUs from g0 on")
    others = NodeRole.VGPU if vgpus else NodeRole.INFERENCE
    roles = (NodeRole.MIG, *[others] * (gpus - 1)) if mig else (others,) * gpus
    fleet = Fleet(FleetSpec(seed=seed, gpus=gpus, faults=faults, gpu_roles=roles, vgpus=vgpus))
    first = fleet.node(1, 1).gpus[0]
    if mig and not first.parts:
        raise ValueError(f"seed {seed} is a node with {first.model.name}, which has no MIG devices: use another seed")
    return fleet


def node_report(fleet: Fleet, at: int, interval_seconds: float) -> MachineReport:
    """Return everything about the node at an instant: all lanes, present holdings, events of the last hour.

    Args:
        fleet: of `single_node`.
        at: nanoseconds since 1970.
        interval_seconds: seconds between passes, for the readers' status.
    """
    pass_ = CollectionPass(
        at=at, since=at - EVENT_SECONDS * NANOS, lanes=LANES, intervals=dict.fromkeys(LANES, interval_seconds)
    )
    return machine_reports(fleet, fleet.node(1, 1), pass_)[0]


def holders_of(report: MachineReport) -> Mapping[str, DeviceHolders]:
    """Return the present holders of each device of a report, by view key."""
    present = [one for one in report.holdings if one.until is None]
    return {
        state.view: DeviceHolders(
            state=state.state, detail=state.detail, holdings=tuple(one for one in present if one.view == state.view)
        )
        for state in report.device_holders or ()
    }
