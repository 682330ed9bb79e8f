"""Holdings of pods, completed from the Kubernetes API: owners, labels, queue, and the virtual machine. Pure.

A pod is joined by its UID within its cluster. If node and cluster report different names for a UID, or the cluster
reports the pod on another node, nothing is added. If the node of a machine is unknown, the UID suffices: it is random,
and a node reads those of its own pods only.

A node agent can report owners, labels and queue too, from the same API server. What the collector reports replaces
them. An owner chain of the node stays if it continues a chain of the collector that is not complete.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gpufleet.fleet.attribution.reported import by_certainty, is_certain, known_until
from gpufleet.fleet.cluster_nodes import match_node
from gpufleet.fleet.cluster_objects import end_of
from gpufleet.model.holdings import MAX_LABELS, Holder, HolderKind, Holding, Owner
from gpufleet.model.kubernetes import ChainEnd, ClusterNode, ClusterPod, ClusterVmi
from gpufleet.model.machine import Machine
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.stored.kubernetes import StoredObject
from gpufleet.model.time import LATEST, NANOS

CLOCK_TOLERANCE_NS = 60 * NANOS
"""Assumed difference of the clocks of a node and of the API server."""

VMI_KIND = "VirtualMachineInstance"


def pod_uid(holder: Holder) -> str | None:
    """Return the UID of a pod, or None if the holder is no pod or its UID is unknown."""
    return holder.id if holder.kind is HolderKind.POD and "/" not in holder.id else None


def pod_name(holder: Holder) -> str | None:
    """Return `namespace/name` of a pod without UID, or None for other holders."""
    return holder.id if holder.kind is HolderKind.POD and "/" in holder.id else None


def without_repeated_names(stored: Iterable[StoredHolding], now: int) -> list[StoredHolding]:
    """Return holdings without those of pods without UID while a pod of the same name with UID has the device.

    Exporters name pods without UID, also beside an agent that reads the UID. The holding with UID must be certain.

    Args:
        stored: holdings of any holders.
        now: nanoseconds since 1970 by the hub's clock.
    """
    certain: dict[tuple[str, str, str, str], list[tuple[int, int]]] = {}
    found: list[StoredHolding] = []
    nameless: list[StoredHolding] = []
    for one in stored:
        holder = one.holding.holder
        (found if pod_name(holder) is None else nameless).append(one)
        if pod_uid(holder) is not None and holder.name:
            place = one.cluster, one.machine, one.holding.view, f"{holder.namespace}/{holder.name}"
            for part in by_certainty(one):
                if is_certain(part.holding):
                    until = known_until(part, now)
                    certain.setdefault(place, []).append((part.holding.since, LATEST if until is None else until))
    for intervals in certain.values():
        intervals.sort()
    for one in nameless:
        since, end = one.holding.since, one.holding.until
        for first, last in certain.get((one.cluster, one.machine, one.holding.view, one.holding.holder.id), ()):
            if since < first and (end is None or since < end):
                found.append(_during(one, since, first if end is None else min(first, end)))
            since = max(since, last)
        if since < (LATEST if end is None else end):
            found.append(_during(one, since, end))
    return found


def _during(stored: StoredHolding, since: int, until: int | None) -> StoredHolding:
    return msgspec.structs.replace(stored, holding=msgspec.structs.replace(stored.holding, since=since, until=until))


def identify_pod(
    stored: StoredHolding, candidates: Iterable[StoredObject], node: str, *, now: int, at: int
) -> ClusterPod | None:
    """Return the pod of a holding without UID.

    It is the only pod of its name that can have been on its node in that time, and existed for the whole holding. A pod
    that was there only within the tolerance of the begin or end of a longer holding is its predecessor or successor.

    Args:
        stored: a holding with `namespace/name` as its holder's id.
        candidates: every known pod of this name.
        node: name of the node in the cluster.
        now: nanoseconds since 1970 by the hub's clock.
        at: instant of `judged_at` for pods.

    Returns:
        None if there is none or several, or if the creation of one of them is unknown.
    """
    since, until = stored.holding.since, known_until(stored, now)
    is_long = (now if until is None else until) - since > 2 * CLOCK_TOLERANCE_NS
    edge = 2 * CLOCK_TOLERANCE_NS if is_long else 0
    found = []
    for one in candidates:
        pod, end = one.record, end_of(one, at)
        if not isinstance(pod, ClusterPod) or f"{pod.namespace}/{pod.name}" != stored.holding.holder.id:
            continue
        if pod.node != node:
            continue
        if pod.created is None:
            return None
        if _overlaps(pod.created, end, since + edge, None if until is None else until - edge):
            found.append((pod, pod.created, end))
    if len(found) != 1:
        return None
    pod, created, end = found[0]
    is_later = created - CLOCK_TOLERANCE_NS > since
    is_ended = end is not None and (until is None or until > end + CLOCK_TOLERANCE_NS)
    return None if is_later or is_ended else pod


def node_names(
    stored: StoredHolding, machine: Machine, nodes: Iterable[StoredObject], *, now: int, at: int
) -> frozenset[str]:
    """Return the names of the nodes that can be the machine of a holding, of those that existed during it.

    Args:
        stored: the holding.
        machine: evidence of its machine.
        nodes: nodes of its cluster, ended ones too.
        now: nanoseconds since 1970 by the hub's clock.
        at: instant of `judged_at` for nodes.
    """
    since, until = stored.holding.since, known_until(stored, now)
    during = [
        one.record
        for one in nodes
        if isinstance(one.record, ClusterNode) and _overlaps(one.record.created, end_of(one, at), since, until)
    ]
    match = match_node(machine, during)
    return frozenset(match.candidates if match.node is None else (match.node.name,))


def _overlaps(created: int | None, end: int | None, since: int, until: int | None) -> bool:
    """Return whether an object can have existed in an interval. An unknown creation is before it."""
    begins_before_end = created is None or until is None or created - CLOCK_TOLERANCE_NS < until
    return begins_before_end and (end is None or end + CLOCK_TOLERANCE_NS > since)


def complete_holding(stored: StoredHolding, pod: ClusterPod, vmi: ClusterVmi | None) -> StoredHolding:
    """Return a holding completed by its pod in the API; the same holding if the API contradicts the node.

    Args:
        stored: a holding of a pod with the UID of `pod`, or of a pod that `identify_pod` identified.
        pod: the pod.
        vmi: its virtual machine, if `pod.vmi` names one that is known.
    """
    completed = with_pod(stored.holding, pod, vmi)
    return stored if completed is stored.holding else msgspec.structs.replace(stored, holding=completed)


def with_pod(holding: Holding, pod: ClusterPod, vmi: ClusterVmi | None = None) -> Holding:
    """Return a reported holding completed by its pod in the API; arguments and result as `complete_holding`."""
    holder = holding.holder
    if _differ(holder.namespace, pod.namespace) or _differ(holder.name, pod.name):
        return holding
    completed = msgspec.structs.replace(
        holder,
        id=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        owners=_owners(holder.owners, pod),
        labels=_united(pod.labels, holder.labels),
        annotations=_united(pod.annotations, holder.annotations),
        queue=pod.queue or holder.queue,
    )
    return msgspec.structs.replace(holding, holder=completed, parent=_virtual_machine(holding.parent, pod, vmi))


def _virtual_machine(known: Holder | None, pod: ClusterPod, vmi: ClusterVmi | None) -> Holder | None:
    """Return the virtual machine of a launcher pod, or the node's own report of it if the API adds nothing.

    The label of a pod alone proves nothing: the controller of the pod, or the list of pods of the VMI, must confirm it.
    """
    if not pod.vmi:
        return known
    at = next((place for place, one in enumerate(pod.owners) if one.kind == VMI_KIND and one.uid == pod.vmi), None)
    is_confirmed = vmi is not None and vmi.uid == pod.vmi and vmi.namespace == pod.namespace and pod.uid in vmi.pods
    if at is not None:
        name, owners = pod.owners[at].name, pod.owners[at + 1 :]
    elif is_confirmed and vmi is not None:
        name, owners = vmi.name, ()
    else:
        return known
    if not owners and vmi is not None and (vmi.uid, vmi.namespace) == (pod.vmi, pod.namespace) and vmi.machine:
        owners = (vmi.machine,)
    machine = Holder(kind=HolderKind.VM, id=pod.vmi, name=name, namespace=pod.namespace, owners=owners)
    if known is None:
        return machine
    if known.kind is not HolderKind.VM or _differ(known.name, name) or _differ(known.namespace, pod.namespace):
        return known
    if "/" not in known.id and known.id != pod.vmi:
        return known
    return machine


def with_known_chain(pod: ClusterPod, known: ClusterPod) -> ClusterPod:
    """Return a pod with the owner chain of an earlier reading, if its own chain is not complete and begins equally.

    The owners of a UID do not change. A shorter chain means that an owner was deleted, or cannot be read any more.
    """
    if pod.chain_end is ChainEnd.TOP or not _starts_with(known.owners, pod.owners):
        return pod
    return msgspec.structs.replace(pod, owners=known.owners, chain_end=known.chain_end, queue=pod.queue or known.queue)


def _owners(known: tuple[Owner, ...], pod: ClusterPod) -> tuple[Owner, ...]:
    """Return the chain of the cluster, or that of the node if it continues the chain of the cluster."""
    is_continued = len(known) > len(pod.owners) and _starts_with(known, pod.owners)
    return known if is_continued and pod.chain_end is not ChainEnd.TOP else pod.owners


def _starts_with(known: tuple[Owner, ...], owners: tuple[Owner, ...]) -> bool:
    return len(known) >= len(owners) and all(
        (ours.kind, ours.name) == (theirs.kind, theirs.name) and not _differ(ours.uid, theirs.uid)
        for ours, theirs in zip(known, owners, strict=False)
    )


def _united(first: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of both, at most `MAX_LABELS`; those of `first` have precedence."""
    return dict([*first.items(), *((key, text) for key, text in then.items() if key not in first)][:MAX_LABELS])


def _differ(known: str, found: str) -> bool:
    """Return whether both texts are known and differ."""
    return bool(known and found and known != found)
