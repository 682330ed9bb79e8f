"""Devices that ResourceClaims (DRA) reserve for pods, as holders beside those that nodes report. Pure.

The scheduler allocates devices to a claim and reserves the claim for pods. A device is named by driver, pool and name;
its ResourceSlice has its UUID. A pod holds the device once its kubelet accepted it, until it ends.

The holders of a node come from its agent, above all from the kubelet. What the claims add:

- a holder of both has `resource_claim` as a further method. A claim confirms a holder that its node cannot confirm now;
- a holder of a claim that the node does not report is `declared_only`;
- it is a `conflict` if the node declares the device exclusively for another holder, or reports it as free.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gpufleet.fleet.attribution.cluster_pods import with_pod
from gpufleet.fleet.attribution.evidence import OBSERVING, SHARED
from gpufleet.fleet.published_gpus import newest_slices
from gpufleet.model.holdings import DeviceState, Holder, HolderKind, HolderState, Holding, HoldingVerdict, Method, Share
from gpufleet.model.kubernetes import AllocatedDevice, ClusterClaim, ClusterDevice, ClusterPod, ClusterSlice
from gpufleet.model.stored.holdings import StoredHolding
from gpufleet.model.time import NANOS
from gpufleet.model.view import ViewKind

SETTLE_NS = 120 * NANOS
"""Time after the start of a pod in which its node may still report its devices as free."""

DevicePlace = tuple[str, str, str]
"""Driver, pool and name of a device."""

_ENDED = frozenset({"Succeeded", "Failed"})
_PODS = "pods"
_MIG, _PASSTHROUGH = "mig", "vfio"
_UNSURE = frozenset({HoldingVerdict.UNKNOWN, HoldingVerdict.NONE})
_UNDECLARED = _UNSURE | {HoldingVerdict.OBSERVED_ONLY}


class ReservedDevice(msgspec.Struct, frozen=True):
    """Device that a claim reserves for a pod.

    Attributes:
        pod: the pod, accepted by the kubelet of its node.
        claim: `namespace/name` of the claim.
        place: identity of the device in claims.
        known_at: time of the newest report of the claim.
    """

    pod: ClusterPod
    claim: str
    place: DevicePlace
    known_at: int


def reserved_devices(
    claims: Iterable[tuple[ClusterClaim, int]], pods: Iterable[ClusterPod]
) -> Iterator[ReservedDevice]:
    """Yield each device of each claim for each pod that has it.

    Claim and pod must name each other. A pod that ended, or that its kubelet did not accept yet, has nothing. Access
    for administration does not reserve a device.

    Args:
        claims: the present claims, each with the time of its newest report.
        pods: the present pods.
    """
    by_uid = {one.uid: one for one in pods if one.node and one.started is not None and one.phase not in _ENDED}
    for claim, known_at in claims:
        for user in claim.reserved_for:
            pod = by_uid.get(user.uid)
            if user.resource != _PODS or pod is None or not _names_each_other(claim, pod):
                continue
            for place in dict.fromkeys(_place(one) for one in claim.devices if not one.admin_access):
                yield ReservedDevice(pod, f"{claim.namespace}/{claim.name}", place, known_at)


def _names_each_other(claim: ClusterClaim, pod: ClusterPod) -> bool:
    return pod.namespace == claim.namespace and claim.name in pod.claims


def _place(device: AllocatedDevice | ClusterDevice) -> DevicePlace:
    return device.driver, device.pool, device.name


def device_views(slices: Iterable[ClusterSlice]) -> dict[DevicePlace, tuple[str, str]]:
    """Return the node and the view key of each device that its slice identifies.

    Only slices of the newest generation of a pool are valid. A device without UUID, or listed twice, is left out. A GPU
    for passthrough has the PCI address as its identity.
    """
    found: dict[DevicePlace, set[tuple[str, str]]] = {}
    for pool in newest_slices(slices).values():
        for device in (device for one in pool for device in one.devices):
            found.setdefault(_place(device), set()).add((device.node, _view_key(device)))
    single = {place: next(iter(identities)) for place, identities in found.items() if len(identities) == 1}
    return {place: (node, view) for place, (node, view) in single.items() if node and view}


def _view_key(device: ClusterDevice) -> str:
    """Return the key of a device's view; empty if nothing identifies it. Drivers write UUIDs in either case."""
    if device.kind == _PASSTHROUGH:
        return f"{ViewKind.GPU}/pci/{device.pci_address}" if device.pci_address else ""
    kind = ViewKind.MIG if device.kind == _MIG else ViewKind.GPU
    prefix, dash, rest = device.uuid.partition("-")
    if not dash or prefix.lower() != kind.value:
        return ""
    return f"{kind}/{prefix.upper()}-{rest.lower()}"


def allocated_counts(reserved: Iterable[ReservedDevice]) -> dict[str, int]:
    """Return the number of devices that claims reserve on each node, by its name in lower case."""
    devices: dict[str, set[DevicePlace]] = {}
    for one in reserved:
        devices.setdefault(one.pod.node.lower(), set()).add(one.place)
    return {node: len(own) for node, own in devices.items()}


def claim_holdings(
    reserved: Iterable[ReservedDevice], views: Mapping[DevicePlace, tuple[str, str]], *, is_current: bool
) -> dict[str, list[tuple[Holding, int]]]:
    """Return name of a node to the holdings of its pods by claims, each with the time of the newest report.

    A device that is not identified, or that is of another node than the pod, is left out.

    Args:
        reserved: the devices.
        views: node and view key of each device.
        is_current: whether the copies of claims, slices and pods are current; the verdict is `unknown` otherwise.
    """
    found: dict[str, dict[tuple[str, str], tuple[Holding, int]]] = {}
    verdict = HoldingVerdict.DECLARED_ONLY if is_current else HoldingVerdict.UNKNOWN
    for one in reserved:
        node, view = views.get(one.place, ("", ""))
        if node != one.pod.node or one.pod.started is None:
            continue
        holding = Holding(
            view=view,
            holder=Holder(kind=HolderKind.POD, id=one.pod.uid),
            share=Share.DRA,
            claim=one.claim,
            since=one.pod.started,
            methods=(Method.CLAIM.value,),
            verdict=verdict,
        )
        found.setdefault(node, {}).setdefault((view, one.pod.uid), (with_pod(holding, one.pod), one.known_at))
    return {node: list(own.values()) for node, own in found.items()}


def with_claims(
    holdings: Sequence[StoredHolding], claimed: Sequence[StoredHolding], states: Mapping[str, DeviceState], now: int
) -> tuple[StoredHolding, ...]:
    """Return the present holdings of a machine together with those by claims.

    Args:
        holdings: the present holdings that the machine reports.
        claimed: the holdings by claims of its node.
        states: view key to the present holder state of a device.
        now: nanoseconds since 1970 by the hub's clock.
    """
    found = list(holdings)
    for one in claimed:
        own = [place for place, known in enumerate(found) if _is_same(known.holding, one.holding)]
        for place in own:
            found[place] = _confirmed(found[place], one.holding)
        if own:
            continue
        rivals = [place for place, known in enumerate(found) if _excludes(known.holding, one.holding)]
        if one.holding.verdict is HoldingVerdict.UNKNOWN or not (rivals or _is_free(one.holding, states, now)):
            found.append(one)
            continue
        for place in rivals:
            found[place] = _replaced(found[place], verdict=HoldingVerdict.CONFLICT)
        found.append(_replaced(one, verdict=HoldingVerdict.CONFLICT))
    return tuple(found)


def _is_same(known: Holding, claimed: Holding) -> bool:
    """Return whether both are of one pod and device. A node can know a pod by `namespace/name` only."""
    names = (claimed.holder.id, f"{claimed.holder.namespace}/{claimed.holder.name}")
    return known.view == claimed.view and known.holder.kind is HolderKind.POD and known.holder.id in names


def _excludes(known: Holding, claimed: Holding) -> bool:
    """Return whether a node declares the device exclusively for another holder."""
    is_declared = not OBSERVING.issuperset(known.methods) and known.verdict not in _UNDECLARED
    return known.view == claimed.view and is_declared and known.share not in SHARED


def _is_free(claimed: Holding, states: Mapping[str, DeviceState], now: int) -> bool:
    """Return whether the node reports the device as free although the pod had time to get it."""
    state = states.get(claimed.view)
    return state is not None and state.state is HolderState.FREE and now - claimed.since >= SETTLE_NS


def _confirmed(known: StoredHolding, claimed: Holding) -> StoredHolding:
    """Return a holding that a claim declares, too."""
    methods = tuple(sorted({*known.holding.methods, *claimed.methods}))
    verdict = known.holding.verdict
    if claimed.verdict is not HoldingVerdict.UNKNOWN:
        if verdict in _UNSURE:
            verdict = HoldingVerdict.DECLARED_ONLY
        elif verdict is HoldingVerdict.OBSERVED_ONLY:
            verdict = HoldingVerdict.AGREED
    return _replaced(known, methods=methods, verdict=verdict, claim=known.holding.claim or claimed.claim)


def _replaced(stored: StoredHolding, **fields: object) -> StoredHolding:
    return msgspec.structs.replace(stored, holding=msgspec.structs.replace(stored.holding, **fields))
